// SPDX-License-Identifier: Apache-2.0
//
// What dispatch returns: views of the receive buffers and counts of the plan.

#include "exchange/cpu/cpu_exchange.h"
#include "quant/scheme.h"

namespace switchyard {

HostCounts CpuExchange::host_counts(const Slot& slot) const {
  const ReceivePlan& receive = slot.receive();
  const bool is_major = is_expert_major(config_.layout);
  HostCounts counts;
  counts.num_rows =
      static_cast<std::int64_t>(is_major ? receive.placements.size() : receive.arrivals.size());
  counts.num_dropped = slot.routing->num_dropped;
  counts.rows_per_rank = slot.routing->rows_per_rank;
  counts.rows_per_expert = receive.num_rows;
  counts.expert_load = receive.expert_load;
  counts.wait_ns = slot.wait_ns;
  return counts;
}

Dispatched CpuExchange::places(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "places");
  const std::int64_t num_local = shape_.ownership.count(rank_);
  const std::int64_t rows = num_local * shape_.receive.capacity;
  Dispatched result;
  result.handle = handle;
  result.experts.scheme = config_.scheme;
  result.experts.rows = TensorView(slot.rows.data(), stored_dtype(config_.scheme),
                                   {num_local, shape_.receive.capacity, config_.hidden});
  if (config_.scheme.group != ScaleGroup::kTensor && shape_.num_scales > 0) {
    result.experts.scales = scale_blocks(config_, shape_, rank_, rows).view(slot.scales.data());
    result.experts.scale_layout = config_.scale_layout;
  }
  if (config_.sends_weights) {
    result.topk_weights = TensorView(slot.weights.data(), DType::kF32, {rows});
  }
  return result;
}

Dispatched CpuExchange::describe(Slot& slot, const Placing& placing) const {
  const ReceivePlan& receive = slot.receive();
  const std::int64_t rows = receive.num_buffer_rows;
  const std::int64_t num_local = shape_.ownership.count(rank_);
  const bool is_major = is_expert_major(config_.layout);
  Dispatched result;
  result.handle = handle_of(slot);
  result.experts.scheme = config_.scheme;
  const DType dtype = stored_dtype(config_.scheme);
  result.experts.rows = config_.layout == Layout::kBatched
                            ? TensorView(slot.rows.data(), dtype,
                                         {num_local, shape_.receive.capacity, config_.hidden})
                            : TensorView(slot.rows.data(), dtype, {rows, config_.hidden});
  if (config_.scheme.group == ScaleGroup::kTensor) {
    result.experts.scales = TensorView::of(&slot.input.tensor_scale, {1});
  } else if (shape_.num_scales > 0) {
    result.experts.scales = placing.scales.view(slot.scales.data());
    result.experts.scale_layout = config_.scale_layout;
  }
  if (config_.scheme.needs_tensor_scale()) {
    result.experts.tensor_scale = TensorView::of(&slot.input.tensor_scale, {1});
  }
  if (is_major) result.experts.first_row = TensorView::of(receive.first_row.data(), {num_local});
  result.experts.num_rows = TensorView::of(receive.num_rows.data(), {num_local});
  result.host = host_counts(slot);
  slot.total_rows = static_cast<std::int32_t>(result.host->num_rows);
  slot.num_dropped = static_cast<std::int32_t>(result.host->num_dropped);
  result.total_rows = TensorView::of(&slot.total_rows, {1});
  if (config_.overflow == Overflow::kDrop) {
    result.num_dropped = TensorView::of(&slot.num_dropped, {1});
  }
  if (!is_major && config_.num_topk > 0) {
    result.topk_ids =
        TensorView(slot.topk_ids.data(), DType::kI32, {rows, std::int64_t{config_.num_topk}});
  }
  if (config_.sends_weights && is_major) {
    result.topk_weights = TensorView(slot.weights.data(), DType::kF32, {rows});
  } else if (config_.sends_weights && config_.num_topk > 0) {
    result.topk_weights =
        TensorView(slot.weights.data(), DType::kF32, {rows, std::int64_t{config_.num_topk}});
  }
  for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
    result.payloads.emplace_back(
        slot.payloads[i].data(), DType::kU8,
        std::initializer_list<std::int64_t>{rows, config_.payload_bytes[i]});
  }
  return result;
}

}  // namespace switchyard
