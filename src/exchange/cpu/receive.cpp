// SPDX-License-Identifier: Apache-2.0
//
// The receive phase of dispatch: receives the peers' routing, plans, and has rows placed as they
// come.

#include <algorithm>
#include <cstring>

#include "core/fail.h"
#include "cpu/streaming.h"
#include "exchange/cpu/cpu_exchange.h"
#include "plan/overflow.h"

namespace switchyard {

Dispatched CpuExchange::dispatch(const DispatchCall& call) {
  return dispatch_receive(dispatch_send(call), call.stream);
}

Dispatched CpuExchange::dispatch_receive(const DispatchHandle& handle, Stream) {
  Slot& slot = find(handle, Stage::kSent, "dispatch_receive");
  control_.check_alive({Phase::kDispatchReceive, slot.call, -1});
  control_.enter(Phase::kDispatchReceive, slot.call);
  slot.wait_ns.assign(static_cast<std::size_t>(num_ranks_), 0);
  receive_routing(slot);
  try {
    for (int source = 0; source < num_ranks_; ++source) {
      if (source != rank_) require_alike(slot, source, sources_[static_cast<std::size_t>(source)]);
    }
    if (slot.is_new_routing()) {
      plan(slot);
      keep_plan(slot);
    }
  } catch (const Error&) {
    // Every rank sees the same difference: all give the call up, and the group goes on.
    handles_.advance(index_of(slot), Stage::kFree);
    drain(slot, Stage::kSent);
    finish(slot.call);
    throw;
  }
  gather_weights(slot);
  const Placing placing{
      scale_blocks(config_, shape_, rank_, slot.receive().num_buffer_rows),
      wants_streaming(slot.receive().placements.size() * shape_.payload_bytes, num_ranks_)};
  if (!slot.input.options.routing_only) {
    clear_padding(slot, placing);
    place_rows(slot, placing);
  }
  place_routing(slot);
  conclude(slot, Phase::kDispatchReceive);
  handles_.advance(index_of(slot), Stage::kReceived);
  finish(slot.call);
  return describe(slot, placing);
}

void CpuExchange::receive_routing(Slot& slot) {
  table_.assign(static_cast<std::size_t>(num_ranks_), {});
  sources_.assign(table_.size(), {});
  for (int source = 0; source < num_ranks_; ++source) {
    RankRouting& routing = table_[static_cast<std::size_t>(source)];
    if (source == rank_) {
      routing = own_routing(slot);
      continue;
    }
    SourceRouting& other = sources_[static_cast<std::size_t>(source)];
    other = await_routing(slot, source);
    routing = other.routing;
    require(routing.num_tokens >= 0 && routing.num_tokens <= config_.max_tokens_per_rank,
            Errc::kInternal, "dispatch: rank {} announces {} tokens, max_tokens_per_rank is {}",
            source, routing.num_tokens, config_.max_tokens_per_rank);
  }
}

// When values are not all equal, every rank sees at least one that differs from its own.
void CpuExchange::require_alike(const Slot& slot, int source, const SourceRouting& other) const {
  const auto& own = *slot.routing;
  require(other.routing_call == own.call, Errc::kInvalidArgument,
          "dispatch: rank {} uses the routing of call {}, rank {} that of call {}; every rank must "
          "pass the handle of the same dispatch",
          source, other.routing_call, rank_, own.call);
  require(other.max_tokens == own.max_tokens, Errc::kInvalidArgument,
          "dispatch: rank {} passed max_tokens {}, rank {} {}; every rank must pass the same",
          source, other.max_tokens, rank_, own.max_tokens);
  require((other.routing_only) == slot.input.options.routing_only, Errc::kInvalidArgument,
          "dispatch: rank {} passed routing_only {}, rank {} {}; every rank must pass the same",
          source, other.routing_only, rank_, slot.input.options.routing_only);
  require(std::memcmp(&other.tensor_scale, &slot.input.tensor_scale, sizeof(float)) == 0,
          Errc::kInvalidArgument,
          "dispatch: rank {} passed tensor_scale {}, rank {} {}; every rank must pass the same",
          source, other.tensor_scale, rank_, slot.input.tensor_scale);
}

void CpuExchange::plan(Slot& slot) {
  CachedRouting& routing = *slot.routing;
  ReceiveShape shape = shape_.receive;
  shape.max_tokens = routing.max_tokens;
  routing.receive.build(rank_, shape_.ownership, config_.num_topk, shape, table_);
  routing.is_received = true;
  const std::int64_t capacity = shape.capacity;
  const std::int32_t full =
      capacity == 0 ? -1 : find_overflow(routing.receive.expert_load, capacity);
  if (full < 0) return keep_received(routing);
  std::vector<std::int64_t> wanted = routing.receive.expert_load;
  routing.is_received = config_.overflow == Overflow::kDrop;
  require(routing.is_received, Errc::kCapacityExceeded,
          "dispatch: expert {} is sent {} rows, its capacity is {}; raise the capacity or choose "
          "Overflow::kDrop",
          full, wanted[static_cast<std::size_t>(full)], capacity);
  drop_overflow(config_.num_topk, capacity, wanted, table_, kept_ids_);
  const std::vector<std::uint16_t>& kept = kept_ids_[static_cast<std::size_t>(rank_)];
  if (!kept.empty()) {
    for (std::size_t i = 0; i < kept.size(); ++i)
      routing.num_dropped += kept[i] != routing.topk_ids[i];
    routing.topk_ids = kept;
    table_[static_cast<std::size_t>(rank_)].topk_ids = routing.topk_ids.data();
    routing.send.build(shape_.ownership, config_.num_topk, config_.layout, own_routing(slot));
  }
  routing.receive.build(rank_, shape_.ownership, config_.num_topk, shape, table_);
  routing.receive.expert_load = std::move(wanted);
  keep_received(routing);
}

// The first of an arrival's choices in the routing of its source.
std::int64_t CpuExchange::first_choice(const ReceivePlan& receive, std::size_t arrival) const {
  const Arrival& a = receive.arrivals[arrival];
  const auto first = receive.first_arrival[static_cast<std::size_t>(a.source)];
  return routing_of(a).entry(arrival - static_cast<std::size_t>(first), a.token) * config_.num_topk;
}

// Keeps what `describe` reports, for this dispatch and for those that reuse its routing.
void CpuExchange::keep_received(CachedRouting& routing) const {
  routing.rows_per_rank.clear();
  for (std::size_t r = 0; r < table_.size(); ++r) {
    routing.rows_per_rank.push_back(routing.receive.first_arrival[r + 1] -
                                    routing.receive.first_arrival[r]);
  }
  routing.arrival_ids.clear();
  if (is_expert_major(config_.layout)) return;
  const int first = shape_.ownership.first(rank_);
  const int num_local = shape_.ownership.count(rank_);
  for (std::size_t a = 0; a < routing.receive.arrivals.size(); ++a) {
    const std::int64_t choice = first_choice(routing.receive, a);
    const RankRouting& source = routing_of(routing.receive.arrivals[a]);
    for (int k = 0; k < config_.num_topk; ++k) {
      const std::uint16_t id = source.topk_ids[choice + k];
      std::int32_t kept = id == kNoExpert ? -1 : id;
      if (config_.layout == Layout::kCompact) {
        kept = kept >= first && kept < first + num_local ? kept - first : -1;
      }
      routing.arrival_ids.push_back(kept);
    }
  }
}

void CpuExchange::gather_weights(Slot& slot) const {
  slot.placement_weights.clear();
  if (!is_expert_major(config_.layout)) return;  // the caller applies these weights
  const bool any = std::any_of(table_.begin(), table_.end(),
                               [](const RankRouting& r) { return r.topk_weights != nullptr; });
  if (!any) return;
  slot.placement_weights.assign(slot.receive().placements.size(), 1.0f);
  for (std::size_t a = 0; a < slot.receive().arrivals.size(); ++a) {
    const Arrival& arrival = slot.receive().arrivals[a];
    const float* weights = routing_of(arrival).topk_weights;
    if (weights == nullptr) continue;
    const std::int64_t choice = first_choice(slot.receive(), a);
    for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      slot.placement_weights[at] = weights[choice + slot.receive().placements[at].k];
    }
  }
}

}  // namespace switchyard
