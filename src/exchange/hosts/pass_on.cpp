// SPDX-License-Identifier: Apache-2.0
//
// What a forwarder does while it waits, and before an operation ends: tokens of its sources are
// received into its window and announced to the ranks of its host; what those return is sent back,
// each rank's rows or, under per_host, their sum.

#include <algorithm>
#include <cstring>

#include "exchange/hosts/hosts_exchange.h"

namespace switchyard {

void HostsExchange::start_receiving(const Slot& slot, State& state, std::size_t number) {
  const int source = forwarded_[number];
  Forward& forward = state.forwards[number];
  std::memcpy(&forward.header,
              state.memory->data() + layout_.headers_in + number * kMessageHeaderBytes,
              sizeof(DispatchHeader));
  check_header(config_, source, forward.header);
  std::byte* const part = base(rank_) + part_of(slot.call, source);
  forward.routing_in = channel_->receive(source, message_tag(slot.call, MessageKind::kRouting),
                                         {window_, part + layout_.routing_in_part,
                                          forward.header.routing(config_, false).size_bytes()});
  forward.in = RowBlocks({window_, part + layout_.rows_in_part, 0}, 0, shape_.window.row_stride,
                         forward.header.num_rows);
  forward.in.receive(*channel_, source, message_tag(slot.call, MessageKind::kRows));
  forward.has_header = true;
}

void HostsExchange::announce(const Slot& slot, Forward& forward, int source) {
  OperationHeader& line = far_header(slot, source);
  const DispatchHeader& header = forward.header;
  line.rows_ready.store(0, std::memory_order_relaxed);
  line.routing_call = header.routing_call;
  line.num_tokens = header.num_tokens;
  line.max_tokens = header.max_tokens;
  line.tensor_scale = header.tensor_scale;
  line.has_weights = header.has_weights ? 1 : 0;
  line.routing_only = header.routing_only ? 1 : 0;
  // Pairs with the acquire in await_routing().
  line.call.store(slot.call, std::memory_order_release);
  windows_.notify_all();
  forward.is_announced = true;
}

void HostsExchange::pass_on(Slot& slot) {
  State& state = state_of(slot);
  channel_->progress();  // what this rank has sent, too, once everything has come
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    Forward& forward = state.forwards[i];
    if (!forward.has_header) {
      if (!channel_->is_done(forward.header_in)) continue;
      start_receiving(slot, state, i);
    }
    if (!forward.is_announced) {
      if (!channel_->is_done(forward.routing_in)) continue;
      announce(slot, forward, forwarded_[i]);
    }
    const std::int64_t num_here = forward.in.num_received(*channel_);
    if (num_here == forward.num_announced) continue;
    // Pairs with the acquire in await_rows().
    far_header(slot, forwarded_[i]).rows_ready.store(num_here, std::memory_order_release);
    windows_.notify_all();
    forward.num_announced = num_here;
  }
}

// The rank of this host whose rows for a source are not there yet; -1: all are.
int HostsExchange::rank_still_summing(const Slot& slot, std::size_t number) const {
  const std::vector<std::int64_t>& served =
      slot.routing->hosts.forwarded[number].plan.num_tokens_to;
  const std::size_t part = part_of(slot.call, forwarded_[number]);
  for (const int rank : map_.ranks_of(own_host())) {
    if (served[static_cast<std::size_t>(rank)] == 0) continue;
    const auto& line =
        in_window<ArrivalLine>(rank_, part + layout_.arrived_in_part(map_.local_of(rank)));
    // Pairs with the release in send_returns().
    if (line.call.load(std::memory_order_acquire) != slot.call) return rank;
  }
  return -1;
}

void HostsExchange::pass_back(Slot& slot) {
  State& state = state_of(slot);
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    if (state.forwards[i].has_returned || rank_still_summing(slot, i) >= 0) continue;
    return_to_source(slot, state, i);
    state.forwards[i].has_returned = true;
  }
}

// One message for each rank of this host that has rows, or one for the host, with the rank that
// lacks weights in front, or -1; then the weights of all.
void HostsExchange::return_to_source(Slot& slot, State& state, std::size_t number) {
  const int source = forwarded_[number];
  const std::vector<std::int64_t>& served =
      slot.routing->hosts.forwarded[number].plan.num_tokens_to;
  const std::size_t stride = shape_.window.combine_row_stride;
  const std::size_t part = part_of(slot.call, source);
  std::vector<int> ranks;
  std::int64_t lacking = -1;
  for (const int rank : map_.ranks_of(own_host())) {
    if (served[static_cast<std::size_t>(rank)] == 0) continue;
    ranks.push_back(rank);
    const auto& line =
        in_window<ArrivalLine>(rank_, part + layout_.arrived_in_part(map_.local_of(rank)));
    if (line.has_weights == 0 && lacking < 0) lacking = rank;
  }
  if (ranks.empty()) return;
  const std::size_t room = (layout_.weights_out - layout_.rows_out) / layout_.num_parts;
  std::byte* next =
      state.memory->data() + layout_.rows_out + number * (room / kRowAlignment * kRowAlignment);
  const auto send_rows = [&](std::int64_t num_rows) {
    std::memcpy(next, &lacking, sizeof(lacking));
    RowBlocks({state.memory, next, 0}, kReturnHeaderBytes, stride, num_rows)
        .send(*channel_, source, message_tag(slot.call, MessageKind::kRows), num_rows,
              state.sent[static_cast<std::size_t>(source)]);
    next += kReturnHeaderBytes + static_cast<std::size_t>(num_rows) * stride;
  };
  if (config_.reduce == Reduce::kPerHost) {
    send_rows(sum_rows(slot, number, next + kReturnHeaderBytes));
  } else {
    for (const int rank : ranks) {
      send_rows(copy_rows_of(slot, number, rank, next + kReturnHeaderBytes));
    }
  }
  if (lacking >= 0) return;
  const std::size_t weights_room = (layout_.headers_in - layout_.weights_out) / layout_.num_parts;
  const std::size_t at =
      layout_.weights_out + number * (weights_room / sizeof(float)) * sizeof(float);
  auto* weights = reinterpret_cast<float*>(state.memory->data() + at);
  std::int64_t num_weights = 0;
  for (const int rank : ranks) {
    num_weights += copy_weights_of(slot, number, rank, weights + num_weights);
  }
  send(state, source, message_tag(slot.call, MessageKind::kWeights),
       private_part(state, at, static_cast<std::size_t>(num_weights) * sizeof(float)));
}

std::int64_t HostsExchange::copy_rows_of(const Slot& slot, std::size_t number, int rank,
                                         std::byte* to) const {
  const ForwardedRouting& routing = slot.routing->hosts.forwarded[number];
  const ReturnedRows rows{
      base(rank_) + part_of(slot.call, forwarded_[number]) + layout_.rows_in_part,
      shape_.window.combine_row_stride, shape_.window.num_columns()};
  std::int64_t num_rows = 0;
  const auto copy = [&](std::int64_t position, std::int32_t column) {
    std::memcpy(to + static_cast<std::size_t>(num_rows++) * rows.stride,
                rows.row(0, position, column), rows.stride);
  };
  for (std::size_t p = 0; p < routing.tokens.size(); ++p) {
    const std::int64_t token = routing.tokens[p];
    const auto position = static_cast<std::int64_t>(p);
    if (config_.reduce == Reduce::kPerExpert) {
      const std::uint16_t* ids = routing.topk_ids.data() + token * config_.num_topk;
      for (int k = 0; k < config_.num_topk; ++k) {
        if (ids[k] != kNoExpert && shape_.ownership.owner(ids[k]) == rank) copy(position, k);
      }
      continue;
    }
    for (const TokenRank& r : routing.plan.ranks_of(token)) {
      if (r.rank == rank) copy(position, shape_.window.column(r.rank, r.highest_k));
    }
  }
  return num_rows;
}

// One row for each token that this host serves: its ranks ascending, from +0, rounded once.
std::int64_t HostsExchange::sum_rows(const Slot& slot, std::size_t number, std::byte* to) {
  const ForwardedRouting& routing = slot.routing->hosts.forwarded[number];
  const ReturnedRows rows{
      base(rank_) + part_of(slot.call, forwarded_[number]) + layout_.rows_in_part,
      shape_.window.combine_row_stride, shape_.window.num_columns()};
  std::int64_t num_rows = 0;
  std::vector<TokenRank> ranks;
  for (std::size_t p = 0; p < routing.tokens.size(); ++p) {
    ranks.clear();
    for (const TokenRank& r : routing.plan.ranks_of(routing.tokens[p])) {
      if (is_near(r.rank)) ranks.push_back(r);
    }
    if (ranks.empty()) continue;
    std::sort(ranks.begin(), ranks.end(),
              [](const TokenRank& a, const TokenRank& b) { return a.rank < b.rank; });
    host_sum_.clear();
    for (const TokenRank& r : ranks) {
      const std::byte* partial =
          rows.row(0, static_cast<std::int64_t>(p), shape_.window.column(r.rank, r.highest_k));
      host_sum_.add_stored(config_.combine_scheme, partial, partial + shape_.combine_scales_in_row,
                           1.0f);
    }
    round_to_wire(host_sum_, to + static_cast<std::size_t>(num_rows++) * rows.stride);
  }
  host_sum_.clear();
  return num_rows;
}

std::int64_t HostsExchange::copy_weights_of(const Slot& slot, std::size_t number, int rank,
                                            float* to) const {
  const ForwardedRouting& routing = slot.routing->hosts.forwarded[number];
  const auto* from = reinterpret_cast<const float*>(
      base(rank_) + part_of(slot.call, forwarded_[number]) + layout_.routing_in_part);
  std::int64_t num_weights = 0;
  for (std::size_t p = 0; p < routing.tokens.size(); ++p) {
    const std::int64_t first = std::int64_t{routing.tokens[p]} * config_.num_topk;
    for (int k = 0; k < config_.num_topk; ++k) {
      const std::uint16_t id = routing.topk_ids[static_cast<std::size_t>(first + k)];
      if (id == kNoExpert || shape_.ownership.owner(id) != rank) continue;
      to[num_weights++] =
          from[p * static_cast<std::size_t>(config_.num_topk) + static_cast<std::size_t>(k)];
    }
  }
  return num_weights;
}

}  // namespace switchyard
