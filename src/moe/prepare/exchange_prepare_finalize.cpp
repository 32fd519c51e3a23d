// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/exchange_prepare_finalize.h"

#include <algorithm>
#include <numeric>

#include "switchyard/permute.h"

#include "core/fail.h"
#include "moe/kernel/split_call.h"
#include "moe/prepare/prepare_checks.h"

namespace switchyard {
ExchangePrepareFinalize::ExchangePrepareFinalize(const PrepareRecipe& recipe, const Group& group,
                                                 const PrepareFinalizeConfig& config)
    : recipe_(recipe),
      config_(config),
      group_(group),
      rank_(group.rank()),
      num_ranks_(group.size()),
      ownership_{config.num_experts, group.size()} {
  check_prepare_config(recipe, config, num_ranks_);
  batches_.resize(static_cast<std::size_t>(config.num_micro_batches));
  max_buffer_rows_ = exchange(false).max_buffer_rows();
  expert_map_ = Tensor(DType::kI32, {std::int64_t{config.num_experts} + 1});
  std::fill_n(expert_map_.as<std::int32_t>(), config.num_experts + 1, -1);
  std::iota(expert_map_.as<std::int32_t>() + ownership_.first(rank_),
            expert_map_.as<std::int32_t>() + ownership_.first(rank_) + ownership_.count(rank_), 0);
}

Exchange& ExchangePrepareFinalize::exchange(bool is_plain) {
  std::unique_ptr<Exchange>& exchange = exchanges_[is_plain];
  if (exchange != nullptr) return *exchange;
  exchange = std::make_unique<Exchange>(group_, exchange_config_of(recipe_, config_, is_plain));
  if (!is_plain && exchange->config().scheme != config_.scheme) {
    for (MicroBatch& batch : batches_) {
      batch.quantizer = std::make_unique<ArrivedRows>(
          config_.scheme, config_.hidden, config_.scale_layout, config_.static_scale,
          exchange->max_buffer_rows(), std::max(1, ownership_.count(rank_)));
    }
  }
  return *exchange;
}

const Exchange& ExchangePrepareFinalize::exchange_of(const MicroBatch& batch) const {
  require(batch.exchange != nullptr, Errc::kInvalidArgument,
          "{}: nothing was prepared in this micro-batch; prepare first", name());
  return *batch.exchange;
}

const ExchangePrepareFinalize::MicroBatch& ExchangePrepareFinalize::batch_of(
    int micro_batch) const {
  require(micro_batch >= 0 && micro_batch < config_.num_micro_batches, Errc::kInvalidArgument,
          "{}: micro_batch is {}, must be from 0 to {}", name(), micro_batch,
          config_.num_micro_batches - 1);
  return batches_[static_cast<std::size_t>(micro_batch)];
}

void ExchangePrepareFinalize::post_init_setup(const Experts& experts) {
  if (!sends_packed_scales(recipe_, config_, experts.supports_packed_ue8m0_act_scales())) return;
  for (const MicroBatch& batch : batches_) {
    require(batch.exchange == nullptr, Errc::kInvalidArgument,
            "{}: post_init_setup comes after prepare; call it before the first one", name());
  }
  PrepareFinalizeConfig packed = config_;
  packed.scheme.scale_format = ScaleFormat::kE8M0Packed;
  exchanges_[0] =
      std::make_unique<Exchange>(group_, exchange_config_of(recipe_, packed, /*is_plain=*/false));
  config_ = std::move(packed);
}

Pending<Prepared> ExchangePrepareFinalize::prepare_async(const PrepareArguments& arguments) {
  MicroBatch& batch = batch_of(arguments.micro_batch);
  require(!batch.is_busy, Errc::kInvalidArgument,
          "{}: micro_batch {} was prepared and not finalized; finalize it first", name(),
          arguments.micro_batch);
  check_ids_dtype(recipe_, config_, arguments.topk_ids);
  batch.is_weighted = arguments.apply_router_weight_on_input;
  batch.is_deferred = arguments.defer_input_quant && config_.scheme.is_quantized();
  const TensorView hidden = batch.is_weighted ? weigh_input(batch, arguments) : arguments.hidden;
  DispatchOptions options;
  options.max_tokens = rounded_max_tokens(recipe_, config_, arguments.max_tokens);
  if (config_.static_scale.has_value()) {
    options.tensor_scale = TensorView::of(&*config_.static_scale, {1});
  }
  Exchange& carrier = exchange(batch.is_deferred && wire_scheme_of(config_).is_quantized());
  batch.handle = carrier.dispatch_send(
      hidden, to_physical(batch, arguments.topk_ids),
      batch.is_weighted ? batch.ones.view() : arguments.topk_weights, options);
  batch.exchange = &carrier;
  batch.num_tokens = hidden.shape(0);
  batch.is_busy = true;
  if (batch.is_weighted && arguments.weighs_in_place) write_weighted(batch, arguments.hidden);
  return split_call<Prepared>([this, &batch] { receive(batch); },
                              [&batch] { return batch.prepared; });
}

void ExchangePrepareFinalize::receive(MicroBatch& batch) try {
  batch.dispatched = batch.exchange->dispatch_receive(batch.handle);
  if (!batch.is_deferred && batch.quantizer != nullptr) {
    batch.quantizer->quantize(recipe_.layout, batch.dispatched);
  }
  describe(batch);
} catch (const Error& error) {
  // The call is over on every rank and nothing moved.
  const bool is_harmless =
      error.code() == Errc::kCapacityExceeded || error.code() == Errc::kInvalidArgument;
  batch.is_busy = !is_harmless;
  throw;
}

// What the original hands out beside the rows.
void ExchangePrepareFinalize::describe(MicroBatch& batch) const {
  const Dispatched& from = batch.dispatched;
  Prepared& to = batch.prepared;
  to = Prepared{from.experts, from.num_rows, from.expert_load, std::nullopt, {}, {}};
  const std::span<const std::int32_t> counts = from.experts.num_rows;
  switch (recipe_.kind) {
    case PrepareKind::kLowLatency:
      to.metadata = ExpertTokensMetadata::make_from_list(counts);
      return;
    case PrepareKind::kElasticPrefill: {
      ExpertTokensMetadata aligned = ExpertTokensMetadata::make_from_list(counts);
      const std::int64_t alignment = config_.expert_alignment;
      for (std::int32_t& count : aligned.expert_num_tokens) {
        count = static_cast<std::int32_t>((count + alignment - 1) / alignment * alignment);
      }
      to.metadata = std::move(aligned);
      to.topk_ids = prefill_ids(batch);
      if (from.topk_weights.has_value()) {
        to.topk_weights =
            TensorView(from.topk_weights.data(), DType::kF32, {from.topk_weights.shape(0), 1});
      }
      return;
    }
    case PrepareKind::kElasticDecode:
    case PrepareKind::kAllToAll: to.topk_ids = physical_ids(batch); break;
    case PrepareKind::kAllGather:
    case PrepareKind::kAllToAllOneSided: to.topk_ids = from.topk_ids; break;
    case PrepareKind::kLocal: return;
  }
  to.topk_weights = from.topk_weights;
}

// Rows of expert e, alignment gaps included, all name e.
TensorView ExchangePrepareFinalize::prefill_ids(MicroBatch& batch) const {
  const ExpertRows& experts = batch.dispatched.experts;
  const std::int64_t num_rows = experts.rows.shape(0);
  batch.topk_ids = Tensor(DType::kI64, {num_rows, 1});
  auto* ids = batch.topk_ids.as<std::int64_t>();
  for (std::size_t e = 0; e < experts.first_row.size(); ++e) {
    const std::int64_t end = e + 1 < experts.first_row.size() ? experts.first_row[e + 1] : num_rows;
    std::fill(ids + experts.first_row[e], ids + end,
              ownership_.first(rank_) + static_cast<std::int64_t>(e));
  }
  return batch.topk_ids;
}

// Local ids back to physical ones. "None" stays -1, or is E where the original fills with its
// number of slots.
TensorView ExchangePrepareFinalize::physical_ids(MicroBatch& batch) const {
  const TensorView& local = batch.dispatched.topk_ids;
  const bool is_elastic = recipe_.kind == PrepareKind::kElasticDecode;
  const std::int32_t none = is_elastic ? -1 : config_.num_experts;
  const std::int32_t first = ownership_.first(rank_);
  batch.topk_ids = Tensor(is_elastic ? DType::kI64 : DType::kI32, {local.shape(0), local.shape(1)});
  for (std::int64_t i = 0; i < local.num_elements(); ++i) {
    const std::int32_t id = local.as<std::int32_t>()[i];
    const std::int32_t physical = id < 0 ? none : id + first;
    if (is_elastic) {
      batch.topk_ids.as<std::int64_t>()[i] = physical;
    } else {
      batch.topk_ids.as<std::int32_t>()[i] = physical;
    }
  }
  return batch.topk_ids;
}

// The rows that combine takes; with [M, K, H] this rank's choices of each row are summed first.
TensorView ExchangePrepareFinalize::to_send(MicroBatch& batch,
                                            const FinalizeArguments& arguments) const {
  const std::int64_t num_rows = batch.dispatched.experts.rows.shape(0);
  const auto [rows, needs_sum] = check_returned_rows(
      recipe_, config_, num_rows, arguments.expert_output, arguments.weight_and_reduce);
  if (!needs_sum) return rows;
  const std::int64_t num_topk = config_.num_topk;
  batch.reduced = Tensor(rows.dtype(), {num_rows, config_.hidden});
  const TensorView weights = batch.is_weighted ? TensorView() : batch.dispatched.topk_weights;
  if (arguments.weight_and_reduce.kind == WeightAndReduceKind::kContiguous) {
    weight_and_reduce(arguments.weight_and_reduce,
                      {rows, batch.dispatched.topk_weights, batch.prepared.topk_ids, expert_map_,
                       batch.is_weighted},
                      batch.reduced);
    return batch.reduced;
  }
  // delegate: one chain in f32, rounded once, as everywhere in this library.
  const Tensor identity(DType::kI32, {num_rows, num_topk});
  std::iota(identity.as<std::int32_t>(), identity.as<std::int32_t>() + num_rows * num_topk, 0);
  ep_gather(TensorView(rows.data(), rows.dtype(), {num_rows * num_topk, config_.hidden}),
            batch.prepared.topk_ids, weights, identity, expert_map_, batch.reduced);
  return batch.reduced;
}

// Rows that are weighted already count as they are.
CombineOptions ExchangePrepareFinalize::combine_options(MicroBatch& batch, bool is_weighted) const {
  CombineOptions options;
  if (!is_weighted || batch.exchange->config().reduce != Reduce::kPerExpert) return options;
  batch.ones = Tensor(DType::kF32, {batch.num_tokens, std::int64_t{config_.num_topk}});
  std::fill_n(batch.ones.as<float>(), batch.ones.view().num_elements(), 1.0f);
  options.topk_weights = batch.ones;
  return options;
}

Pending<void> ExchangePrepareFinalize::finalize_async(const FinalizeArguments& arguments) {
  MicroBatch& batch = batch_of(arguments.micro_batch);
  require(batch.is_busy, Errc::kInvalidArgument,
          "{}: nothing is prepared in micro_batch {}; prepare first", name(),
          arguments.micro_batch);
  const TensorView output = arguments.output;
  const bool is_weighted = arguments.weight_and_reduce.kind == WeightAndReduceKind::kNoOp;
  const CombineOptions options = combine_options(batch, is_weighted);
  batch.exchange->check_output(batch.handle, output, options);
  batch.exchange->combine_send(batch.handle, to_send(batch, arguments), {},
                               is_weighted ? RowsAre::kWeighted : RowsAre::kUnweighted);
  const auto receive_rows = [&batch, output, options] {
    batch.exchange->combine_receive(batch.handle, output, options);
    batch.is_busy = false;
  };
  return split_call<void>(receive_rows, [] {});
}

void ExchangePrepareFinalize::abandon(int micro_batch, const std::string& reason) {
  MicroBatch& batch = batch_of(micro_batch);
  if (num_ranks_ > 1) return group_.abort(reason);
  require(batch.is_busy, Errc::kInvalidArgument,
          "{}: nothing is prepared in micro_batch {} to abandon", name(), micro_batch);
  batch.exchange->release(batch.handle);
  batch.is_busy = false;
}

std::vector<RowOrigin> ExchangePrepareFinalize::row_origins(int micro_batch) const {
  const MicroBatch& batch = batch_of(micro_batch);
  return exchange_of(batch).row_origins(batch.handle);
}

WireBytes ExchangePrepareFinalize::wire_bytes(int micro_batch) const {
  const MicroBatch& batch = batch_of(micro_batch);
  return exchange_of(batch).wire_bytes(batch.handle);
}

}  // namespace switchyard
