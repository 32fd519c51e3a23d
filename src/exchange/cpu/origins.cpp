// SPDX-License-Identifier: Apache-2.0
//
// What the plan of a handle says of its rows: whose they are, and how many bytes they are.

#include <algorithm>

#include "exchange/check_returns.h"
#include "exchange/cpu/cpu_exchange.h"

namespace switchyard {

void CpuExchange::write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                                    Stream) const {
  const Slot& slot = slot_of(handle, "write_row_sources");
  const std::vector<RowOrigin> origins = row_origins(handle);
  check_row_sources(sources, slot.receive().num_buffer_rows, num_ranks_);
  const auto write = [&](const TensorView& list, std::int32_t RowOrigin::*value) {
    if (!list.has_value()) return;
    std::fill_n(list.as<std::int32_t>(), list.num_elements(), -1);
    for (const RowOrigin& origin : origins) list.as<std::int32_t>()[origin.row] = origin.*value;
  };
  write(sources.rank, &RowOrigin::rank);
  write(sources.token, &RowOrigin::token);
  write(sources.k, &RowOrigin::k);
  if (!sources.rows_per_rank.has_value()) return;
  auto* count = sources.rows_per_rank.as<std::int32_t>();
  for (const std::int64_t rows : slot.routing->rows_per_rank) {
    *count++ = static_cast<std::int32_t>(rows);
  }
}

std::vector<RowOrigin> CpuExchange::row_origins(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "row_origins");
  require(handles_.stage(index_of(slot)) != Stage::kSent, Errc::kInvalidArgument,
          "row_origins: the handle was sent by dispatch, must have been received");
  const ReceivePlan& receive = slot.receive();
  std::vector<RowOrigin> origins;
  if (!is_expert_major(config_.layout)) {
    for (const Arrival& a : receive.arrivals) {
      const std::int32_t k = a.count == 0 ? -1 : placements_of(slot, a).back().k;
      origins.push_back({a.row, -1, a.source, a.token, k, 1.0f});
    }
    return origins;
  }
  origins.resize(receive.placements.size());
  // Rows of an expert are consecutive, so a row's place in the list follows from its number.
  std::vector<std::int64_t> first(receive.num_rows.size(), 0);
  for (std::size_t e = 1; e < first.size(); ++e) first[e] = first[e - 1] + receive.num_rows[e - 1];
  for (const Arrival& arrival : receive.arrivals) {
    for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
      const Placement& p = receive.placements[static_cast<std::size_t>(i)];
      const auto e = static_cast<std::size_t>(p.expert);
      const std::int64_t place = first[e] + p.row - receive.first_row[e];
      origins[static_cast<std::size_t>(place)] = {p.row,         p.expert, arrival.source,
                                                  arrival.token, p.k,      slot.weight(i)};
    }
  }
  return origins;
}

std::int64_t CpuExchange::routing_bytes_to(const Slot& slot, int /*peer*/) const {
  const bool sends_ids = slot.routing->call == slot.dispatch_call;
  const bool sends_weights = own_routing(slot).topk_weights != nullptr;
  return slot.num_tokens() * config_.num_topk * ((sends_ids ? 2 : 0) + (sends_weights ? 4 : 0));
}

WireBytes CpuExchange::wire_bytes(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "wire_bytes");
  std::int64_t row_bytes =
      static_cast<std::int64_t>(shape_.payload_bytes + shape_.window.shape.scale_bytes);
  for (const std::int64_t bytes : config_.payload_bytes) row_bytes += bytes;
  if (slot.input.options.routing_only) row_bytes = 0;
  WireBytes bytes;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_ || slot.dispatch_call == 0) continue;
    bytes.dispatch += rows_sent_to(slot, peer) * row_bytes + routing_bytes_to(slot, peer);
  }
  if (handles_.stage(index_of(slot)) == Stage::kSent) return bytes;
  bytes.combine =
      num_rows_returned(slot) * static_cast<std::int64_t>(shape_.window.shape.combine_row_bytes);
  return bytes;
}

std::int64_t CpuExchange::rows_sent_to(const Slot& slot, int peer) const {
  return config_.layout == Layout::kAllGather
             ? slot.num_tokens()
             : slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)];
}

std::int64_t CpuExchange::num_rows_returned(const Slot& slot) const {
  std::int64_t num_rows = 0;
  for (const Arrival& arrival : slot.receive().arrivals) {
    if (arrival.source == rank_ || !returns_row(arrival)) continue;
    num_rows += config_.reduce == Reduce::kPerExpert ? arrival.count : 1;
  }
  return num_rows;
}

}  // namespace switchyard
