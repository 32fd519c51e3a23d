// SPDX-License-Identifier: Apache-2.0
//
// What goes into combine: the experts' rows, weighed and summed where their policy asks for it, and
// the weights that combine applies.

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "device/layer_rows.h"
#include "moe/prepare/exchange_prepare_finalize.h"
#include "plan/id_tensor.h"

namespace switchyard {

// Ids and weights are those that prepare handed out, else the caller's own.
void ExchangePrepareFinalize::check_choices(const MicroBatch& batch,
                                            const FinalizeArguments& arguments) const {
  const TensorView& weights = arguments.topk_weights;
  const TensorView& ids = arguments.topk_ids;
  const TensorView& received = batch.prepared.topk_ids;
  const std::int64_t rows = received.has_value() ? received.shape(0) : batch.num_tokens;
  const std::int64_t columns = received.has_value() ? received.shape(1) : config_.num_topk;
  require_device("finalize", device(), {{"topk_weights", weights}, {"topk_ids", ids}});
  const auto has_shape = [&](const TensorView& view) {
    return view.num_dims() == 2 && view.shape(0) == rows && view.shape(1) == columns;
  };
  require(!weights.has_value() ||
              (has_shape(weights) && weights.dtype() == DType::kF32 && weights.is_contiguous()),
          Errc::kInvalidArgument,
          "{}: topk_weights of finalize is {}, must be f32 [{}, {}], "
          "contiguous",
          name(), weights, rows, columns);
  check_address(weights, "finalize", "topk_weights");
  if (!ids.has_value()) return;
  require(has_shape(ids), Errc::kInvalidArgument,
          "{}: topk_ids of finalize is {}, must be [{}, {}] as those of prepare", name(), ids, rows,
          columns);
  require_ids("finalize", "topk_ids", ids);
  if (device().is_cuda()) return;
  const IdTensor given("finalize", "topk_ids", ids);
  const IdTensor own("finalize", "topk_ids of prepare",
                     received.has_value() ? received : batch.sent_ids.view());
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    require(given[i] == own[i], Errc::kInvalidArgument,
            "{}: element {} of topk_ids is {} in finalize, must be {} as in prepare", name(), i,
            given[i], own[i]);
  }
}

// The weights of the caller, where they are applied before combine or by the owner of the tokens;
// else absent: then only those that travelled with the rows can count.
TensorView ExchangePrepareFinalize::new_weights(const MicroBatch& batch,
                                                const FinalizeArguments& arguments) const {
  const TensorView& weights = arguments.topk_weights;
  const WeightAndReduceKind kind = arguments.weight_and_reduce.kind;
  if (!weights.has_value() || batch.is_weighted || kind == WeightAndReduceKind::kNoOp) return {};
  const TensorView& received = batch.prepared.topk_weights;
  const bool before_combine =
      !is_expert_major(recipe_.layout) || kind == WeightAndReduceKind::kContiguous;
  const bool by_owner =
      batch.exchange->config().reduce == Reduce::kPerExpert && !received.has_value();
  if (before_combine || by_owner) return weights;
  require(weights.data() == received.data(), Errc::kNotSupported,
          "{}: topk_weights of finalize are not those that prepare handed out, must be: combine "
          "applies those that came with the rows; pass these, none, or weighted rows with no_op",
          name());
  return {};
}

// The rows that combine takes; with [M, K, H] this rank's choices of each row are summed first.
TensorView ExchangePrepareFinalize::to_send(MicroBatch& batch, const FinalizeArguments& arguments,
                                            Stream stream) const {
  require_stream("finalize", device(), stream);
  require_device("finalize", device(),
                 {{"expert_output", arguments.expert_output}, {"reduced", arguments.reduced}});
  const TensorView& received = batch.dispatched.experts.rows;
  const std::int64_t num_rows =
      received.num_dims() == 3 ? received.shape(0) * received.shape(1) : received.shape(0);
  const auto [rows, needs_sum] = check_returned_rows(
      recipe_, config_, num_rows, arguments.expert_output, arguments.weight_and_reduce);
  const TensorView given = new_weights(batch, arguments);
  if (!needs_sum) return rows;
  TensorView reduced = arguments.reduced;
  if (!reduced.has_value() && device().is_cpu()) {
    batch.reduced = Tensor(rows.dtype(), {num_rows, config_.hidden});
    reduced = batch.reduced;
  }
  check_matrix(reduced, {"finalize", "reduced", {rows.dtype()}, num_rows, config_.hidden});
  const Prepared& prepared = batch.prepared;
  const TensorView weights = given.has_value() ? given : prepared.topk_weights;
  if (arguments.weight_and_reduce.kind == WeightAndReduceKind::kContiguous) {
    weight_and_reduce(arguments.weight_and_reduce,
                      {rows, weights, prepared.topk_ids, expert_map_, batch.is_weighted}, reduced,
                      stream);
    return reduced;
  }
  // delegate: one chain in f32, rounded once, as everywhere in this library.
  sum_choices(rows, prepared.topk_ids, batch.is_weighted ? TensorView() : weights, expert_map_,
              reduced, stream);
  return reduced;
}

// Rows that are weighted already count as they are.
CombineOptions ExchangePrepareFinalize::combine_options(const MicroBatch& batch,
                                                        const FinalizeArguments& arguments) const {
  check_choices(batch, arguments);
  const bool is_weighted = arguments.weight_and_reduce.kind != WeightAndReduceKind::kDelegate;
  CombineOptions options;
  options.shared = arguments.shared;
  options.rows_are = is_weighted ? RowsAre::kWeighted : RowsAre::kUnweighted;
  if (batch.exchange->config().reduce != Reduce::kPerExpert) return options;
  if (is_weighted) {
    options.topk_weights = TensorView(ones_.data(), DType::kF32,
                                      {batch.num_tokens, std::int64_t{config_.num_topk}}, device());
  } else {
    options.topk_weights = new_weights(batch, arguments);
  }
  return options;
}

}  // namespace switchyard
