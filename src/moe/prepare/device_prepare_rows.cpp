// SPDX-License-Identifier: Apache-2.0
//
// What goes into dispatch on a GPU: weights on the input, ids in physical numbering; and what is
// handed out of what came: ids as the mirrored class has them, rows quantized on arrival.

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "moe/prepare/exchange_device_prepare_finalize.h"
#include "plan/permute_views.h"

namespace switchyard {

// Checks what this class adds to dispatch, and enqueues what comes before it.
ExchangeDevicePrepareFinalize::Input ExchangeDevicePrepareFinalize::begin(
    MicroBatch& batch, const DevicePrepareArguments& arguments, Stream stream) {
  require(!batch.is_busy, Errc::kInvalidArgument,
          "{}: micro_batch {} was prepared and not finalized; finalize it first", name(),
          arguments.micro_batch);
  check_ids_dtype(recipe_, config_, arguments.topk_ids);
  const bool is_deferred = arguments.defer_input_quant && config_.scheme.is_quantized();
  DeviceExchange& exchange = exchange_for(arguments, is_deferred);
  const TensorView& hidden = arguments.hidden;
  const std::int64_t num_tokens = hidden.num_dims() == 2 ? hidden.shape(0) : 0;
  require(num_tokens <= config_.max_tokens_per_rank, Errc::kInvalidArgument,
          "{}: hidden has {} rows, but max_tokens_per_rank is {}", name(), num_tokens,
          config_.max_tokens_per_rank);
  Input input{hidden, arguments.topk_ids, arguments.topk_weights, {}};
  if (arguments.apply_router_weight_on_input) {
    check_weighed_input(recipe_, config_, hidden, arguments.topk_weights);
    check_matrix(hidden, {"prepare", "hidden", {hidden.dtype()}, num_tokens, config_.hidden});
    input.hidden = TensorView(batch.weighted.data(), hidden.dtype(), {num_tokens, config_.hidden});
    input.topk_weights = TensorView(ones_.data(), DType::kF32, {num_tokens, 1});
    cuda_module().weigh_rows(
        {hidden.data(), input.hidden.data(), arguments.topk_weights.as<float>(), num_tokens,
         config_.hidden, hidden.dtype()},
        stream);
  }
  input.topk_ids = to_physical(batch, arguments.topk_ids, stream);
  input.options.tensor_scale = static_scale_;
  input.options.max_tokens = rounded_max_tokens(recipe_, config_, arguments.max_tokens);
  batch.is_weighted = arguments.apply_router_weight_on_input;
  batch.is_deferred = is_deferred;
  batch.exchange = &exchange;
  batch.num_tokens = num_tokens;
  return input;
}

// Ids that no expert has stay ids that no expert has: dispatch finds them.
TensorView ExchangeDevicePrepareFinalize::to_physical(MicroBatch& batch, const TensorView& topk_ids,
                                                      Stream stream) const {
  const bool is_id = topk_ids.dtype() == DType::kI32 || topk_ids.dtype() == DType::kI64;
  if (!physical_.has_value() || topk_ids.num_dims() != 2 || !is_id || !topk_ids.is_contiguous() ||
      topk_ids.num_elements() > batch.physical_ids.num_elements()) {
    return topk_ids;  // what is wrong with them is for dispatch to say
  }
  check_address(topk_ids, "prepare", "topk_ids");
  const TensorView renamed(batch.physical_ids.data(), DType::kI32,
                           {topk_ids.shape(0), topk_ids.shape(1)});
  cuda::RenameIdsArgs args;
  args.from = id_table("prepare", topk_ids);
  args.to = id_table("prepare", renamed);
  args.table = physical_.as<std::int32_t>();
  args.num_ids = config_.num_experts;
  args.invalid = config_.num_experts;
  cuda_module().rename_ids(args, stream);
  return renamed;
}

// After dispatch took the rows: arguments that it refuses leave the caller's memory as it was.
void ExchangeDevicePrepareFinalize::sent(MicroBatch& batch, const DevicePrepareArguments& arguments,
                                         Stream stream) const {
  batch.is_busy = true;
  if (!batch.is_weighted || !arguments.weighs_in_place || batch.num_tokens == 0) return;
  const TensorView& hidden = arguments.hidden;
  const auto row_bytes = static_cast<std::size_t>(config_.hidden * bits_of(hidden.dtype()) / 8);
  const auto stride = static_cast<std::int64_t>(row_bytes);
  cuda_module().copy_rows({batch.weighted.as<std::byte>(), batch.num_tokens, row_bytes, stride},
                          {hidden.as<std::byte>(), batch.num_tokens, row_bytes, stride}, stream);
}

// What the original hands out beside the rows.
void ExchangeDevicePrepareFinalize::arrived(MicroBatch& batch, Stream stream) const {
  const DeviceDispatched& from = batch.dispatched;
  const ExchangeConfig& wire = batch.exchange->config();
  DevicePrepared& to = batch.prepared;
  to = DevicePrepared{};
  to.experts = {from.rows,     from.scales,  wire.scheme,      from.first_row,
                from.num_rows, TensorView(), wire.scale_layout};
  if (wire.scheme.needs_tensor_scale()) to.experts.tensor_scale = static_scale_;
  to.total_rows = from.total_rows;
  if (recipe_.kind == PrepareKind::kLowLatency) to.metadata = DeviceTokensMetadata{from.num_rows};
  if (marks_rows()) mark_rows(batch, stream);
  if (renames_received()) rename_received(batch, stream);
  if (recipe_.layout == Layout::kAllGather || recipe_.layout == Layout::kByRank) {
    to.topk_ids = from.topk_ids;
    to.topk_weights = from.topk_weights;
  }
  if (!batch.is_deferred && batch.quantizer.has_value()) {
    batch.quantizer->quantize(valid_rows(batch), to.experts, stream);
  }
}

// Rows of expert e, alignment gaps included, all name e.
void ExchangeDevicePrepareFinalize::mark_rows(MicroBatch& batch, Stream stream) const {
  const DeviceDispatched& from = batch.dispatched;
  DevicePrepared& to = batch.prepared;
  cuda::MarkRowsArgs args;
  args.num_rows = from.num_rows.as<std::int32_t>();
  args.first_row = from.first_row.as<std::int64_t>();
  args.num_local = num_local_experts();
  args.first_expert = ownership_.first(group_.rank());
  args.alignment = config_.expert_alignment;
  args.m = from.rows.shape(0);
  args.ids = batch.topk_ids.as<std::int64_t>();
  if (from.topk_weights.has_value()) args.weights = from.topk_weights.as<float>();
  args.aligned_counts = batch.aligned_counts.as<std::int32_t>();
  args.end = batch.end.as<std::int32_t>();
  cuda_module().mark_rows(args, stream);
  to.metadata = DeviceTokensMetadata{batch.aligned_counts};
  to.topk_ids = TensorView(args.ids, DType::kI64, {args.m, 1});
  if (args.weights != nullptr) {
    to.topk_weights = TensorView(args.weights, DType::kF32, {args.m, 1});
  }
}

// Local ids back to physical ones. "None" stays -1, or is E where the original fills with its
// number of slots.
void ExchangeDevicePrepareFinalize::rename_received(MicroBatch& batch, Stream stream) const {
  const DeviceDispatched& from = batch.dispatched;
  cuda::RenameIdsArgs args;
  const TensorView renamed(batch.topk_ids.data(), batch.topk_ids.dtype(),
                           {from.topk_ids.shape(0), from.topk_ids.shape(1)});
  args.from = id_table("prepare", from.topk_ids);
  args.to = id_table("prepare", renamed);
  args.num_ids = num_local_experts();
  args.offset = ownership_.first(group_.rank());
  args.none = recipe_.kind == PrepareKind::kElasticDecode ? -1 : config_.num_experts;
  args.invalid = args.none;
  args.num_rows = from.total_rows.as<std::int32_t>();
  if (from.topk_weights.has_value()) args.weights = from.topk_weights.as<float>();
  cuda_module().rename_ids(args, stream);
  batch.prepared.topk_ids = renamed;
  batch.prepared.topk_weights = from.topk_weights;
}

// Counts for the rows that are quantized here; absent: all of them.
TensorView ExchangeDevicePrepareFinalize::valid_rows(const MicroBatch& batch) const {
  switch (recipe_.layout) {
    case Layout::kBatched: return batch.dispatched.num_rows;
    case Layout::kByRank: return {};
    default: return batch.end.has_value() ? batch.end : batch.dispatched.total_rows;
  }
}

}  // namespace switchyard
