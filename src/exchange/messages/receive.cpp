// SPDX-License-Identifier: Apache-2.0
//
// What a rank receives. Headers say how large the rest is; what returns has sizes that the owner
// knows.

#include <algorithm>
#include <cstring>

#include "core/fail.h"
#include "exchange/messages/messages_exchange.h"

namespace switchyard {

// Starts to receive the routing and the rows of every source whose header has come.
void MessagesExchange::look_for_headers(const Slot& slot, Staging& staging) {
  for (int source = 0; source < num_ranks_; ++source) {
    Traffic& traffic = with(staging, source);
    if (source == rank_ || traffic.has_header || !channel_->is_done(traffic.header_in)) continue;
    const auto s = static_cast<std::size_t>(source);
    std::byte* const base = staging.memory->data();
    std::memcpy(&traffic.header, base + layout_.headers_in + s * kMessageHeaderBytes,
                sizeof(DispatchHeader));
    const DispatchHeader& header = traffic.header;
    check_header(config_, source, header);
    const RoutingMessage message = header.routing(config_, lists_tokens_);
    traffic.routing_in = channel_->receive(
        source, message_tag(slot.call, MessageKind::kRouting),
        part(staging, layout_.routing_in + s * layout_.routing_bytes, message.size_bytes()));
    const std::size_t stride = shape_.window.row_stride;
    traffic.rows_in =
        layout_.rows_in + s * static_cast<std::size_t>(config_.max_tokens_per_rank) * stride;
    traffic.in = RowBlocks(part(staging, traffic.rows_in, 0), 0, stride, header.num_rows);
    traffic.in.receive(*channel_, source, message_tag(slot.call, MessageKind::kRows));
    traffic.has_header = true;
  }
}

SourceRouting MessagesExchange::await_routing(Slot& slot, int source) {
  Staging& staging = staging_of(slot);
  const Traffic& traffic = with(staging, source);
  wait_for(slot, source, [&] {
    look_for_headers(slot, staging);
    return traffic.has_header && channel_->is_done(traffic.routing_in);
  });
  const DispatchHeader& header = traffic.header;
  const RoutingMessage message = header.routing(config_, lists_tokens_);
  const std::byte* from = staging.memory->data() + layout_.routing_in +
                          static_cast<std::size_t>(source) * layout_.routing_bytes;
  SourceRouting other{{header.num_tokens},
                      header.routing_call,
                      header.max_tokens,
                      header.tensor_scale,
                      header.routing_only};
  RankRouting& routing = other.routing;
  if (header.has_ids) {
    routing.topk_ids = reinterpret_cast<const std::uint16_t*>(from + message.ids());
  }
  if (header.has_weights) {
    routing.topk_weights = reinterpret_cast<const float*>(from + message.weights());
  }
  routing.is_list = lists_tokens_;
  if (!lists_tokens_) return other;
  routing.num_listed = header.num_entries;
  routing.tokens = reinterpret_cast<const std::int32_t*>(from + message.tokens());
  routing.expert_counts = reinterpret_cast<const std::uint32_t*>(from + message.counts());
  return other;
}

// The first that has rows here; if none has, waits for one.
std::size_t MessagesExchange::next_source(Slot& slot, std::span<const int> remaining) {
  Staging& staging = staging_of(slot);
  std::size_t found = 0;
  wait_for(slot, remaining.front(), [&] {
    for (found = 0; found < remaining.size(); ++found) {
      RowBlocks& in = with(staging, remaining[found]).in;
      if (in.num_rows() == 0 || in.num_received(*channel_) > 0) return true;
    }
    return false;
  });
  return found;
}

SourceRows MessagesExchange::rows_of(Slot& slot, int source) {
  Staging& staging = staging_of(slot);
  const Traffic& traffic = with(staging, source);
  SourceRows rows;
  rows.first = staging.memory->data() + (source == rank_ ? traffic.rows_out : traffic.rows_in);
  rows.stride = shape_.window.row_stride;
  if (drops_ && slot.is_new_routing() && !takes_all_) {
    find_positions(slot, source, staging);
    rows.positions = staging.positions.data();
  }
  return rows;
}

// Rows were sent before anybody knew which choices would be dropped: those of a token that has no
// place here any more are skipped.
void MessagesExchange::find_positions(const Slot& slot, int source, Staging& staging) const {
  staging.positions.clear();
  std::int32_t position = 0;
  std::span<const Arrival> arrivals = arrivals_of(slot, source);
  const auto visit = [&](std::int64_t token) {
    if (!arrivals.empty() && arrivals.front().token == token) {
      staging.positions.push_back(position);
      arrivals = arrivals.subspan(1);
    }
    ++position;
  };
  if (source == rank_) {
    std::for_each(staging.own_tokens.begin(), staging.own_tokens.end(), visit);
    return;
  }
  const RankRouting& sent = sources_[static_cast<std::size_t>(source)].routing;
  const int first = shape_.ownership.first(rank_);
  const int last = first + shape_.ownership.count(rank_);
  for (std::int64_t t = 0; t < sent.num_tokens; ++t) {
    const std::uint16_t* ids = sent.topk_ids + t * config_.num_topk;
    const bool is_here = std::any_of(ids, ids + config_.num_topk,
                                     [&](std::uint16_t id) { return id >= first && id < last; });
    if (is_here) visit(t);
  }
}

std::int64_t MessagesExchange::await_rows(Slot& slot, int source, std::int64_t position) {
  if (source == rank_) return rows_sent_to(slot, source);
  Traffic& traffic = with(staging_of(slot), source);
  require(position < traffic.in.num_rows(), Errc::kInternal,
          "dispatch: rank {} sends {} rows, its routing says more than {}", source,
          traffic.in.num_rows(), position);
  std::int64_t num_ready = 0;
  wait_for(slot, source, [&] {
    num_ready = traffic.in.num_received(*channel_);
    return position < num_ready;
  });
  return num_ready;
}

// Where what this rank returns, and what returns to it, lies; starts to receive the latter.
void MessagesExchange::place_returns(const Slot& slot, std::uint64_t call, Staging& staging) {
  const bool is_per_expert = config_.reduce == Reduce::kPerExpert;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    Traffic& traffic = with(staging, peer);
    for (const Arrival& arrival : arrivals_of(slot, peer)) {
      traffic.num_weights_out += arrival.count;
      if (returns_row(arrival)) traffic.num_rows_out += is_per_expert ? arrival.count : 1;
    }
    traffic.num_rows_in = slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)];
  }
  if (!config_.slices_experts) {
    for (const std::uint16_t id : slot.routing->topk_ids) {
      if (id != kNoExpert) ++with(staging, shape_.ownership.owner(id)).num_weights_in;
    }
  }
  const std::size_t stride = shape_.window.combine_row_stride;
  const auto bytes_of = [&](std::int64_t rows) {
    return kReturnHeaderBytes + static_cast<std::size_t>(rows) * stride;
  };
  Traffic next;
  next.rows_out = layout_.rows_out;
  next.rows_in = layout_.rows_in;
  next.weights_out = layout_.weights_out;
  next.weights_in = layout_.weights_in;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    Traffic& traffic = with(staging, peer);
    if (is_per_expert) traffic.num_rows_in = traffic.num_weights_in;
    if (peer == rank_) traffic.num_rows_in = 0;
    if (peer == rank_ && !slot.copies_results) traffic.num_rows_out = 0;
    traffic.rows_out = next.rows_out;
    traffic.rows_in = next.rows_in;
    traffic.weights_out = next.weights_out;
    traffic.weights_in = next.weights_in;
    next.rows_out += bytes_of(traffic.num_rows_out);
    next.rows_in += bytes_of(traffic.num_rows_in);
    next.weights_out += static_cast<std::size_t>(traffic.num_weights_out) * sizeof(float);
    next.weights_in += static_cast<std::size_t>(traffic.num_weights_in) * sizeof(float);
    if (peer == rank_) continue;
    traffic.in = RowBlocks(part(staging, traffic.rows_in, 0), kReturnHeaderBytes, stride,
                           traffic.num_rows_in);
    traffic.in.receive(*channel_, peer, message_tag(call, MessageKind::kRows));
  }
}

bool MessagesExchange::await_returns(Slot& slot, int peer) {
  Staging& staging = staging_of(slot);
  Traffic& traffic = with(staging, peer);
  const WaitSite site{Phase::kCombineReceive, slot.call, peer};
  control_.wait(site, [&] { return traffic.in.num_received(*channel_) == traffic.in.num_rows(); });
  std::uint64_t has_weights = 0;
  std::memcpy(&has_weights, staging.memory->data() + traffic.rows_in, sizeof(has_weights));
  if (has_weights == 0 || traffic.num_weights_in == 0) return has_weights != 0;
  const MessageId message =
      channel_->receive(peer, message_tag(slot.call, MessageKind::kWeights),
                        part(staging, traffic.weights_in,
                             static_cast<std::size_t>(traffic.num_weights_in) * sizeof(float)));
  control_.wait(site, [&] { return channel_->is_done(message); });
  return true;
}

ReturnedRows MessagesExchange::returns_of(Slot& slot, int peer) {
  if (peer == rank_) return returns_to(slot, peer);
  const Staging& staging = staging_of(slot);
  const Traffic& traffic = staging.with[static_cast<std::size_t>(peer)];
  std::byte* const base = staging.memory->data();
  return {base + traffic.rows_in + kReturnHeaderBytes, shape_.window.combine_row_stride, 0,
          reinterpret_cast<float*>(base + traffic.weights_in)};
}

}  // namespace switchyard
