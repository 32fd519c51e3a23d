// SPDX-License-Identifier: Apache-2.0
//
// Places rows as they come. Per rank: one read per arriving token, and one write per local expert
// that wants it, or per token in layouts with one row per token.

#include <algorithm>
#include <cstring>

#include "cpu/streaming.h"
#include "exchange/cpu/cpu_exchange.h"

namespace switchyard {

// Zeroes what no row fills but consumers read: the rest of swizzled scale tiles and, with
// zero_padding, the alignment gaps.
void CpuExchange::clear_padding(Slot& slot, const Placing& placing) const {
  const bool is_batched = config_.layout == Layout::kBatched;
  // The geometry of layout batched never changes, so its padding keeps the zeros of allocation.
  const bool is_swizzled = config_.scale_layout == ScaleLayout::kSwizzled && !is_batched;
  if (is_swizzled || config_.zero_padding) {
    std::memset(slot.scales.data(), 0, placing.scales.num_bytes());
  }
  if (!config_.zero_padding) return;
  const ReceivePlan& receive = slot.receive();
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    const auto rows = static_cast<std::size_t>(end - begin);
    std::memset(slot.rows.data() + static_cast<std::size_t>(begin) * shape_.payload_bytes, 0,
                rows * shape_.payload_bytes);
    for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(config_.payload_bytes[i]);
      std::memset(slot.payloads[i].data() + static_cast<std::size_t>(begin) * bytes, 0,
                  rows * bytes);
    }
  };
  std::int64_t filled = 0;
  for (std::size_t e = 0; e < receive.num_rows.size(); ++e) {
    clear(filled, receive.first_row[e]);
    filled = receive.first_row[e] + receive.num_rows[e];
  }
  clear(filled, receive.num_buffer_rows);
}

void CpuExchange::place_rows(Slot& slot, const Placing& placing) {
  place_rows_of(slot, rank_, placing);
  remaining_.clear();
  for (int i = 1; i < num_ranks_; ++i) remaining_.push_back((rank_ + i) % num_ranks_);
  while (!remaining_.empty()) {
    const std::size_t next = next_source(slot, remaining_);
    place_rows_of(slot, remaining_[next], placing);
    remaining_.erase(remaining_.begin() + static_cast<std::ptrdiff_t>(next));
  }
  if (placing.streaming) streaming_store_fence();
}

void CpuExchange::place_rows_of(Slot& slot, int source, const Placing& placing) {
  const std::span<const Arrival> arrivals = arrivals_of(slot, source);
  if (arrivals.empty()) return;
  const bool in_place = source == rank_ && is_in_place(slot);
  const bool is_major = is_expert_major(config_.layout);
  const SourceRows rows = in_place ? SourceRows{} : rows_of(slot, source);
  std::int64_t num_ready = 0;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& arrival = arrivals[i];
    const std::byte* from = nullptr;
    if (in_place) {
      from = slot.input.row(arrival.token);
    } else {
      const std::int64_t position = rows.position(i, arrival);
      if (position >= num_ready) num_ready = await_rows(slot, source, position);
      from = rows.row(position);
    }
    places_.clear();
    const auto place = [&](std::int64_t row) {
      places_.push_back(slot.rows.data() + static_cast<std::size_t>(row) * shape_.payload_bytes);
      if (!in_place) place_extras(slot, from, row, placing);
    };
    if (!is_major) place(arrival.row);
    for (const Placement& placement : placements_of(slot, arrival)) {
      if (is_major) place(placement.row);
    }
    copy_row(from, places_, shape_.payload_bytes, placing.streaming);
  }
}

// Places the scales and extra payloads of one row.
void CpuExchange::place_extras(Slot& slot, const std::byte* from, std::int64_t row,
                               const Placing& placing) {
  if (shape_.num_scales > 0) {
    placing.scales.place(from + shape_.window.scales_in_row, row, slot.scales.data());
  }
  for (std::size_t i = 0; i < slot.payloads.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(config_.payload_bytes[i]);
    std::memcpy(slot.payloads[i].data() + static_cast<std::size_t>(row) * bytes,
                from + shape_.extras_in_row[i], bytes);
  }
}

// Writes ids and weights of received rows; rows without a token get -1 and 0.
void CpuExchange::place_routing(Slot& slot) const {
  const ReceivePlan& receive = slot.receive();
  auto* weights = slot.weights.as<float>();
  if (is_expert_major(config_.layout)) {
    if (!config_.sends_weights) return;
    std::fill_n(weights, receive.num_buffer_rows, 0.0f);
    for (std::size_t i = 0; i < receive.placements.size(); ++i) {
      weights[receive.placements[i].row] = slot.weight(static_cast<std::int32_t>(i));
    }
    return;
  }
  const int num_topk = config_.num_topk;
  auto* ids = slot.topk_ids.as<std::int32_t>();
  std::fill_n(ids, receive.num_buffer_rows * num_topk, -1);
  if (config_.sends_weights) std::fill_n(weights, receive.num_buffer_rows * num_topk, 0.0f);
  const std::int32_t* kept = slot.routing->arrival_ids.data();
  for (std::size_t a = 0; a < receive.arrivals.size(); ++a) {
    const Arrival& arrival = receive.arrivals[a];
    std::copy_n(kept, num_topk, ids + arrival.row * num_topk);
    kept += num_topk;
    if (!config_.sends_weights) continue;
    const float* sent = routing_of(arrival).topk_weights;
    float* to = weights + arrival.row * num_topk;
    if (sent == nullptr) {
      std::fill_n(to, num_topk, 1.0f);
    } else {
      std::copy_n(sent + first_choice(receive, a), num_topk, to);
    }
  }
}

}  // namespace switchyard
