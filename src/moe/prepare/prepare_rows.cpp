// SPDX-License-Identifier: Apache-2.0
//
// What goes into dispatch: weights on the input, ids in physical numbering; and what is handed out
// of what came: ids as the mirrored class has them, rows quantized on arrival.

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "core/round_up.h"
#include "device/layer_rows.h"
#include "moe/prepare/exchange_prepare_finalize.h"
#include "plan/id_tensor.h"
#include "plan/permute_views.h"

namespace switchyard {

// Checks what this class adds to dispatch, and does what comes before it.
ExchangePrepareFinalize::Input ExchangePrepareFinalize::begin(MicroBatch& batch,
                                                              const PrepareArguments& arguments,
                                                              Stream stream) const {
  require(!batch.is_busy, Errc::kInvalidArgument,
          "{}: micro_batch {} was prepared and not finalized; finalize it first", name(),
          arguments.micro_batch);
  require_stream("prepare", device(), stream);
  require_device("prepare", device(),
                 {{"hidden", arguments.hidden},
                  {"topk_ids", arguments.topk_ids},
                  {"topk_weights", arguments.topk_weights}});
  const bool is_deferred = arguments.defer_input_quant && config_.scheme.is_quantized();
  batch.num_tokens = arguments.hidden.num_dims() == 2 ? arguments.hidden.shape(0) : 0;
  Input input{&exchange_for(arguments, is_deferred),
              is_deferred,
              arguments.hidden,
              arguments.topk_ids,
              arguments.topk_weights,
              {}};
  if (arguments.apply_router_weight_on_input) weigh_input(batch, arguments, input, stream);
  input.topk_ids = to_physical(batch, arguments.topk_ids, stream);
  input.options.tensor_scale = static_scale_;
  input.options.max_tokens = rounded_max_tokens(recipe_, config_, arguments.max_tokens);
  input.options.host_counts = arguments.host_counts;
  input.options.slot = arguments.micro_batch;
  input.options.copies_inputs = arguments.copies_inputs;
  return input;
}

// The weight is rounded to the dtype of the row, as in the originals, then the f32 product is.
void ExchangePrepareFinalize::weigh_input(MicroBatch& batch, const PrepareArguments& arguments,
                                          Input& input, Stream stream) const {
  const TensorView& hidden = arguments.hidden;
  const std::int64_t num_tokens = batch.num_tokens;
  check_weighed_input(recipe_, config_, hidden, arguments.topk_weights);
  check_matrix(hidden, {"prepare", "hidden", {hidden.dtype()}, num_tokens, config_.hidden});
  require(num_tokens <= config_.max_tokens_per_rank, Errc::kInvalidArgument,
          "{}: hidden has {} rows, but max_tokens_per_rank is {}", name(), num_tokens,
          config_.max_tokens_per_rank);
  input.hidden =
      TensorView(batch.weighted.data(), hidden.dtype(), {num_tokens, config_.hidden}, device());
  input.topk_weights = TensorView(ones_.data(), DType::kF32, {num_tokens, 1}, device());
  weigh_rows(hidden, arguments.topk_weights, input.hidden, stream);
}

// On GPUs ids that no expert has stay ids that no expert has: dispatch finds them.
TensorView ExchangePrepareFinalize::to_physical(MicroBatch& batch, const TensorView& topk_ids,
                                                Stream stream) const {
  const bool is_id = topk_ids.dtype() == DType::kI32 || topk_ids.dtype() == DType::kI64;
  if (!physical_.view().has_value() || topk_ids.num_dims() != 2 || !is_id ||
      !topk_ids.is_contiguous() ||
      topk_ids.num_elements() > batch.physical_ids.view().num_elements()) {
    return topk_ids;  // what is wrong with them is for dispatch to say
  }
  check_address(topk_ids, "prepare", "topk_ids");
  const TensorView renamed(batch.physical_ids.data(), DType::kI32,
                           {topk_ids.shape(0), topk_ids.shape(1)}, device());
  cuda::RenameIdsArgs args;
  args.from = id_table("prepare", topk_ids);
  args.to = id_table("prepare", renamed);
  args.table = physical_.as<std::int32_t>();
  args.num_ids = static_cast<std::int32_t>(config_.global_to_physical.size());
  args.invalid = config_.num_experts;
  switchyard::rename_ids(args, stream);
  return renamed;
}

// After dispatch took the rows: arguments that it refuses leave the caller's memory and what is
// known of the last prepare as they were.
void ExchangePrepareFinalize::sent(MicroBatch& batch, const Input& input,
                                   const PrepareArguments& arguments, Stream stream) const {
  batch.is_busy = true;
  batch.is_weighted = arguments.apply_router_weight_on_input;
  batch.is_deferred = input.is_deferred;
  batch.exchange = input.exchange;
  if (batch.sent_ids.view().has_value()) keep_ids(batch, arguments.topk_ids);
  if (!batch.is_weighted || !arguments.weighs_in_place || batch.num_tokens == 0) return;
  const TensorView weighted(batch.weighted.data(), arguments.hidden.dtype(),
                            {batch.num_tokens, config_.hidden}, device());
  copy_tensor(weighted, arguments.hidden, stream);
}

// For finalize, whose ids must be the same.
void ExchangePrepareFinalize::keep_ids(MicroBatch& batch, const TensorView& topk_ids) const {
  const IdTensor given("prepare", "topk_ids", topk_ids);
  for (std::int64_t i = 0; i < batch.num_tokens * config_.num_topk; ++i) {
    batch.sent_ids.as<std::int64_t>()[i] = given[i];
  }
}

// What the original hands out beside the rows.
void ExchangePrepareFinalize::arrived(MicroBatch& batch, Stream stream) const {
  const Dispatched& from = batch.dispatched;
  Prepared& to = batch.prepared;
  to = Prepared{from.experts, from.total_rows, std::nullopt, {}, {}, from.host};
  if (from.experts.scheme.needs_tensor_scale()) to.experts.tensor_scale = static_scale_;
  if (recipe_.kind == PrepareKind::kLowLatency) add_metadata(batch, from.experts.num_rows);
  if (config_.ep_size > 1) keep_own_counts(batch);
  if (marks_rows()) mark_received(batch, stream);
  if (renames_received()) rename_received(batch, stream);
  if (recipe_.layout == Layout::kAllGather || recipe_.layout == Layout::kByRank) {
    to.topk_ids = from.topk_ids;
    to.topk_weights = from.topk_weights;
  }
  if (!batch.is_deferred && batch.quantizer != nullptr) {
    batch.quantizer->quantize(valid_rows(batch, stream), to, stream);
  }
}

void ExchangePrepareFinalize::add_metadata(MicroBatch& batch, const TensorView& counts) const {
  TensorView on_host = device().is_cpu() ? counts : TensorView();
  if (device().is_cuda() && batch.dispatched.host.has_value()) {
    const std::span<const std::int32_t> real = batch.dispatched.host->rows_per_expert;
    batch.host_counts.assign(real.begin(), real.end());
    if (marks_rows()) {
      const auto alignment = static_cast<std::int32_t>(config_.expert_alignment);
      for (std::int32_t& count : batch.host_counts) count = align_up(count, alignment);
    }
    on_host = TensorView::of(batch.host_counts.data(), {num_local_experts()});
  }
  batch.prepared.metadata = {counts, on_host};
}

// The exchange counts the rows of every expert.
void ExchangePrepareFinalize::keep_own_counts(MicroBatch& batch) const {
  Prepared& to = batch.prepared;
  const std::int64_t num_local = num_local_experts();
  to.experts.num_rows = TensorView(to.experts.num_rows.as<std::int32_t>() + experts_.first(),
                                   DType::kI32, {num_local}, device());
  if (!to.host.has_value() || to.host->rows_per_expert.empty()) return;
  to.host->rows_per_expert = to.host->rows_per_expert.subspan(
      static_cast<std::size_t>(experts_.first()), static_cast<std::size_t>(num_local));
}

// Rows of expert e, alignment gaps included, all name e.
void ExchangePrepareFinalize::mark_received(MicroBatch& batch, Stream stream) const {
  const Dispatched& from = batch.dispatched;
  Prepared& to = batch.prepared;
  cuda::MarkRowsArgs args;
  args.num_rows = from.experts.num_rows.as<std::int32_t>();
  args.first_row = from.experts.first_row.as<std::int64_t>();
  args.num_local = num_local_experts();
  args.first_expert = experts_.first();
  args.alignment = config_.expert_alignment;
  args.m = from.experts.rows.shape(0);
  args.ids = batch.topk_ids.as<std::int64_t>();
  if (from.topk_weights.has_value()) args.weights = from.topk_weights.as<float>();
  args.aligned_counts = batch.aligned_counts.as<std::int32_t>();
  args.end = batch.end.as<std::int32_t>();
  switchyard::mark_rows(args, stream);
  add_metadata(batch, batch.aligned_counts);
  to.topk_ids = TensorView(args.ids, DType::kI64, {args.m, 1}, device());
  if (args.weights != nullptr) {
    to.topk_weights = TensorView(args.weights, DType::kF32, {args.m, 1}, device());
  }
}

// Local ids back to physical ones. "None" stays -1, or is E where the original fills with its
// number of slots.
void ExchangePrepareFinalize::rename_received(MicroBatch& batch, Stream stream) const {
  const Dispatched& from = batch.dispatched;
  cuda::RenameIdsArgs args;
  const TensorView renamed(batch.topk_ids.data(), batch.topk_ids.dtype(),
                           {from.topk_ids.shape(0), from.topk_ids.shape(1)}, device());
  args.from = id_table("prepare", from.topk_ids);
  args.to = id_table("prepare", renamed);
  args.num_ids = num_local_experts();
  args.offset = experts_.first();
  args.none = recipe_.kind == PrepareKind::kElasticDecode ? -1 : config_.num_experts;
  args.invalid = args.none;
  args.num_rows = from.total_rows.as<std::int32_t>();
  if (from.topk_weights.has_value()) args.weights = from.topk_weights.as<float>();
  switchyard::rename_ids(args, stream);
  batch.prepared.topk_ids = renamed;
  batch.prepared.topk_weights = from.topk_weights;
}

// On GPUs, counts for the rows that are quantized here.
TensorView ExchangePrepareFinalize::valid_rows(const MicroBatch& batch, Stream stream) const {
  switch (recipe_.layout) {
    case Layout::kBatched: return batch.dispatched.experts.num_rows;
    case Layout::kByRank:
      if (batch.rows_per_rank.view().has_value()) {
        RowSources sources;
        sources.rows_per_rank = batch.rows_per_rank;
        batch.exchange->write_row_sources(batch.handle, sources, stream);
      }
      return batch.rows_per_rank;
    default: return batch.end.view().has_value() ? batch.end.view() : batch.dispatched.total_rows;
  }
}

}  // namespace switchyard
