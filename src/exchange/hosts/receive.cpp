// SPDX-License-Identifier: Apache-2.0
//
// What a rank receives from other hosts: tokens from the windows of forwarders, and what returns
// for its own tokens by messages.

#include <algorithm>
#include <cstring>

#include "exchange/hosts/hosts_exchange.h"

namespace switchyard {

SourceRouting HostsExchange::await_routing(Slot& slot, int source) {
  if (is_near(source)) return PullExchange::await_routing(slot, source);
  // A forwarder that is not in this call is to blame, not the source.
  (void)PullExchange::await_routing(slot, forwarder_of(source));
  const OperationHeader& line = far_header(slot, source);
  wait_for(slot, source, [&] {
    pass_on(slot);
    return line.call.load(std::memory_order_acquire) == slot.call;
  });
  SourceRouting other{{line.num_tokens},
                      line.routing_call,
                      line.max_tokens,
                      line.tensor_scale,
                      line.routing_only != 0};
  const DispatchHeader header{.num_entries = line.num_tokens,
                              .has_ids = line.routing_call == slot.call,
                              .has_weights = line.has_weights != 0};
  const RoutingMessage message = header.routing(config_, false);
  const std::byte* from =
      base(forwarder_of(source)) + part_of(slot.call, source) + layout_.routing_in_part;
  if (message.has_ids) {
    other.routing.topk_ids = reinterpret_cast<const std::uint16_t*>(from + message.ids());
  }
  if (message.has_weights) {
    other.routing.topk_weights = reinterpret_cast<const float*>(from + message.weights());
  }
  return other;
}

// Which of the tokens that crossed come to this rank, and, for the sources whose tokens it passes
// on, which ranks of this host serve them.
void HostsExchange::keep_plan(Slot& slot) {
  HostRouting& kept = slot.routing->hosts;
  kept.positions.assign(slot.receive().arrivals.size(), 0);
  for (int source = 0; source < num_ranks_; ++source) {
    if (!is_near(source) && !takes_all_) find_positions(slot, source);
  }
  kept.forwarded.resize(forwarded_.size());
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    const auto s = static_cast<std::size_t>(forwarded_[i]);
    const RankRouting& served = table_[s];
    ForwardedRouting& forwarded = kept.forwarded[i];
    const std::int64_t num_ids = served.num_tokens * config_.num_topk;
    forwarded.topk_ids.assign(served.topk_ids, served.topk_ids + num_ids);
    forwarded.plan.build(shape_.ownership, config_.num_topk, config_.layout, served);
    forwarded.tokens.clear();
    for (std::int64_t t = 0; t < served.num_tokens; ++t) {
      if (takes_all_ || comes_here(sources_[s].routing, t)) {
        forwarded.tokens.push_back(static_cast<std::int32_t>(t));
      }
    }
  }
}

bool HostsExchange::comes_here(const RankRouting& routing, std::int64_t token) const {
  const std::uint16_t* ids = routing.topk_ids + token * config_.num_topk;
  return std::any_of(ids, ids + config_.num_topk, [&](std::uint16_t id) {
    return id != kNoExpert && is_near(shape_.ownership.owner(id));
  });
}

void HostsExchange::find_positions(Slot& slot, int source) const {
  const RankRouting& sent = sources_[static_cast<std::size_t>(source)].routing;
  const auto first = slot.receive().first_arrival[static_cast<std::size_t>(source)];
  std::int32_t* next = slot.routing->hosts.positions.data() + first;
  std::span<const Arrival> arrivals = arrivals_of(slot, source);
  std::int32_t position = 0;
  for (std::int64_t t = 0; !arrivals.empty() && t < sent.num_tokens; ++t) {
    if (!comes_here(sent, t)) continue;
    if (arrivals.front().token == t) {
      *next++ = position;
      arrivals = arrivals.subspan(1);
    }
    ++position;
  }
}

SourceRows HostsExchange::rows_of(Slot& slot, int source) {
  if (is_near(source)) return PullExchange::rows_of(slot, source);
  SourceRows rows;
  rows.first = base(forwarder_of(source)) + part_of(slot.call, source) + layout_.rows_in_part;
  rows.stride = shape_.window.row_stride;
  rows.is_by_token = takes_all_;
  const auto first = slot.receive().first_arrival[static_cast<std::size_t>(source)];
  rows.positions = slot.routing->hosts.positions.data() + first;
  return rows;
}

std::int64_t HostsExchange::await_rows(Slot& slot, int source, std::int64_t position) {
  if (is_near(source)) return PullExchange::await_rows(slot, source, position);
  const OperationHeader& line = far_header(slot, source);
  std::int64_t num_ready = 0;
  wait_for(slot, source, [&] {
    pass_on(slot);
    num_ready = line.rows_ready.load(std::memory_order_acquire);
    return position < num_ready;
  });
  return num_ready;
}

// Where what returns from other hosts goes: by host and rank, as forwarders send it.
void HostsExchange::place_returns(const Slot& slot, std::uint64_t call, State& state) {
  state.returning.assign(static_cast<std::size_t>(num_ranks_), {});
  state.host_weights.assign(static_cast<std::size_t>(map_.num_hosts()), 0);
  state.has_asked_weights.assign(state.host_weights.size(), false);
  if (!config_.slices_experts) {
    for (const std::uint16_t id : slot.routing->topk_ids) {
      if (id == kNoExpert) continue;
      ++state.returning[static_cast<std::size_t>(shape_.ownership.owner(id))].num_weights;
    }
  }
  const std::vector<std::int64_t>& served = slot.routing->send.num_tokens_to;
  const std::size_t stride = shape_.window.combine_row_stride;
  std::size_t next_rows = layout_.rows_in;
  std::size_t next_weights = layout_.weights_in;
  for (int host = 0; host < map_.num_hosts(); ++host) {
    if (host == own_host()) continue;
    const int forwarder = map_.forwarder(rank_, host);
    const auto expect = [&](int rank, std::int64_t num_rows) {
      Returning& from = state.returning[static_cast<std::size_t>(rank)];
      from.rows_in = next_rows;
      from.in = RowBlocks(private_part(state, next_rows, 0), kReturnHeaderBytes, stride, num_rows);
      from.in.receive(*channel_, forwarder, message_tag(call, MessageKind::kRows));
      next_rows += kReturnHeaderBytes + static_cast<std::size_t>(num_rows) * stride;
    };
    if (config_.reduce == Reduce::kPerHost) expect(forwarder, num_served_by(slot, host));
    for (const int rank : map_.ranks_of(host)) {
      Returning& from = state.returning[static_cast<std::size_t>(rank)];
      from.weights_in = next_weights;
      next_weights += static_cast<std::size_t>(from.num_weights) * sizeof(float);
      if (config_.reduce == Reduce::kPerRank) expect(rank, served[static_cast<std::size_t>(rank)]);
      if (config_.reduce == Reduce::kPerExpert) expect(rank, from.num_weights);
    }
  }
}

// How many of this rank's tokens some rank of a host serves.
std::int64_t HostsExchange::num_served_by(const Slot& slot, int host) const {
  std::int64_t num_tokens = 0;
  for (std::int64_t t = 0; t < slot.num_tokens(); ++t) {
    const auto ranks = slot.routing->send.ranks_of(t);
    num_tokens += std::any_of(ranks.begin(), ranks.end(),
                              [&](const TokenRank& r) { return map_.host_of(r.rank) == host; });
  }
  return num_tokens;
}

bool HostsExchange::await_returns(Slot& slot, int peer) {
  if (is_near(peer)) return PullExchange::await_returns(slot, peer);
  State& state = state_of(slot);
  const int host = map_.host_of(peer);
  const auto h = static_cast<std::size_t>(host);
  const int forwarder = map_.forwarder(rank_, host);
  const int author = config_.reduce == Reduce::kPerHost ? forwarder : peer;
  Returning& from = state.returning[static_cast<std::size_t>(author)];
  const WaitSite site{Phase::kCombineReceive, slot.call, peer};
  control_.wait(site, [&] {
    pass_back(slot);
    return from.in.num_received(*channel_) == from.in.num_rows();
  });
  std::int64_t lacking = 0;
  std::memcpy(&lacking, state.memory->data() + from.rows_in, sizeof(lacking));
  if (lacking >= 0) return lacking != peer;
  if (!state.has_asked_weights[h]) {
    std::int64_t num_weights = 0;
    for (const int rank : map_.ranks_of(host)) {
      num_weights += state.returning[static_cast<std::size_t>(rank)].num_weights;
    }
    const int first = map_.ranks_of(host).front();
    state.host_weights[h] = channel_->receive(
        forwarder, message_tag(slot.call, MessageKind::kWeights),
        private_part(state, state.returning[static_cast<std::size_t>(first)].weights_in,
                     static_cast<std::size_t>(num_weights) * sizeof(float)));
    state.has_asked_weights[h] = true;
  }
  control_.wait(site, [&] {
    pass_back(slot);
    return channel_->is_done(state.host_weights[h]);
  });
  return true;
}

ReturnedRows HostsExchange::returns_of(Slot& slot, int peer) {
  if (is_near(peer)) return PullExchange::returns_of(slot, peer);
  const State& state = state_of(slot);
  const Returning& from = state.returning[static_cast<std::size_t>(peer)];
  std::byte* const memory = state.memory->data();
  return {memory + from.rows_in + kReturnHeaderBytes, shape_.window.combine_row_stride, 0,
          reinterpret_cast<float*>(memory + from.weights_in)};
}

}  // namespace switchyard
