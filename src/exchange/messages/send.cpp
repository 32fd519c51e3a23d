// SPDX-License-Identifier: Apache-2.0
//
// What a rank sends: headers and routing first, so that peers plan while rows are packed; then rows
// by destination, block by block as they fill.

#include <algorithm>
#include <cstring>

#include "exchange/messages/messages_exchange.h"

namespace switchyard {

void MessagesExchange::publish(Slot& slot) {
  Staging& staging = staging_of(slot);
  plan_sends(slot);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const bool is_taken = peer != rank_ || !is_in_place(slot);
    const std::int64_t rows = takes_all_ ? slot.num_tokens() : slot.routing->send.num_tokens_to[p];
    staging.num_rows_sent[p] = is_taken && !slot.input.options.routing_only ? rows : 0;
  }
  publish_routing(slot, staging);
  if (slot.input.options.routing_only) return;
  place_outgoing(staging);
  if (takes_all_) {
    publish_rows_to_all(slot, staging);
  } else {
    publish_rows(slot, staging);
  }
}

RoutingMessage MessagesExchange::routing_message(const Slot& slot, int peer) const {
  const bool is_new = slot.routing->call == slot.dispatch_call;
  const std::int64_t entries =
      lists_tokens_ ? slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)]
                    : slot.num_tokens();
  return {config_.num_experts, config_.num_topk, entries,
          lists_tokens_,       is_new,           own_routing(slot).topk_weights != nullptr};
}

std::int64_t MessagesExchange::routing_bytes_to(const Slot& slot, int peer) const {
  return static_cast<std::int64_t>(routing_message(slot, peer).size_bytes());
}

DispatchHeader MessagesExchange::header_for(const Slot& slot, int peer) const {
  const RoutingMessage message = routing_message(slot, peer);
  const CachedRouting& routing = *slot.routing;
  return {routing.call,
          routing.num_tokens,
          routing.max_tokens,
          rows_sent_to(slot, peer),
          message.num_entries,
          slot.input.tensor_scale,
          message.has_ids,
          message.has_weights,
          slot.input.options.routing_only};
}

void MessagesExchange::publish_routing(Slot& slot, Staging& staging) {
  std::byte* const base = staging.memory->data();
  if (!lists_tokens_) {
    const RoutingMessage message = routing_message(slot, rank_);
    std::byte* const to = base + layout_.routing_out;
    // std::copy rather than memcpy: without tokens the source may be null.
    if (message.has_weights) {
      std::copy(slot.topk_weights.begin(), slot.topk_weights.end(),
                reinterpret_cast<float*>(to + message.weights()));
    }
    if (message.has_ids) {
      std::copy(slot.routing->topk_ids.begin(), slot.routing->topk_ids.end(),
                reinterpret_cast<std::uint16_t*>(to + message.ids()));
    }
  }
  for (int i = 1; i < num_ranks_; ++i) {
    const int peer = (rank_ + i) % num_ranks_;
    const auto p = static_cast<std::size_t>(peer);
    const DispatchHeader header = header_for(slot, peer);
    const std::size_t header_at = layout_.headers_out + p * kMessageHeaderBytes;
    std::memcpy(base + header_at, &header, sizeof(header));
    send(staging, peer, message_tag(slot.call, MessageKind::kHeader), header_at,
         kMessageHeaderBytes);
    const RoutingMessage message = routing_message(slot, peer);
    const std::size_t at = layout_.routing_out + (lists_tokens_ ? p * layout_.routing_bytes : 0);
    if (lists_tokens_) write_list(slot, peer, message, base + at);
    send(staging, peer, message_tag(slot.call, MessageKind::kRouting), at, message.size_bytes());
  }
}

// The routing of the tokens that go to `peer`, and how many choices of all tokens name each expert.
void MessagesExchange::write_list(const Slot& slot, int peer, const RoutingMessage& message,
                                  std::byte* to) const {
  const CachedRouting& routing = *slot.routing;
  const auto num_topk = static_cast<std::size_t>(config_.num_topk);
  if (message.has_ids) {
    auto* counts = reinterpret_cast<std::uint32_t*>(to + message.counts());
    std::fill_n(counts, config_.num_experts, 0);
    for (const std::uint16_t id : routing.topk_ids) {
      if (id != kNoExpert) ++counts[id];
    }
  }
  auto* tokens = reinterpret_cast<std::int32_t*>(to + message.tokens());
  auto* weights = reinterpret_cast<float*>(to + message.weights());
  auto* ids = reinterpret_cast<std::uint16_t*>(to + message.ids());
  for (std::int64_t t = 0; t < slot.num_tokens(); ++t) {
    const auto ranks = routing.send.ranks_of(t);
    if (std::none_of(ranks.begin(), ranks.end(),
                     [&](const TokenRank& r) { return r.rank == peer; })) {
      continue;
    }
    const std::size_t first = static_cast<std::size_t>(t) * num_topk;
    if (message.has_weights) {
      weights = std::copy_n(slot.topk_weights.data() + first, num_topk, weights);
    }
    if (!message.has_ids) continue;
    *tokens++ = static_cast<std::int32_t>(t);
    ids = std::copy_n(routing.topk_ids.data() + first, num_topk, ids);
  }
}

// Where the rows for each rank begin. Rows that go to every rank are packed once.
void MessagesExchange::place_outgoing(Staging& staging) const {
  std::size_t next = layout_.rows_out;
  staging.own_tokens.clear();
  for (std::size_t p = 0; p < staging.with.size(); ++p) {
    staging.with[p].rows_out = next;
    if (takes_all_) continue;
    next += static_cast<std::size_t>(staging.num_rows_sent[p]) * shape_.window.row_stride;
  }
}

void MessagesExchange::publish_rows(Slot& slot, Staging& staging) {
  const std::size_t stride = shape_.window.row_stride;
  const int tag = message_tag(slot.call, MessageKind::kRows);
  std::vector<RowBlocks>& blocks = outgoing_;
  blocks.clear();
  num_packed_.assign(staging.with.size(), 0);
  for (std::size_t p = 0; p < staging.with.size(); ++p) {
    blocks.emplace_back(part(staging, staging.with[p].rows_out, 0), 0, stride,
                        staging.num_rows_sent[p]);
  }
  for (std::int64_t t = 0; t < slot.num_tokens(); ++t) {
    destinations_.clear();
    for (const TokenRank& r : slot.routing->send.ranks_of(t)) {
      const auto p = static_cast<std::size_t>(r.rank);
      if (staging.num_rows_sent[p] == 0) continue;
      const auto number = static_cast<std::size_t>(num_packed_[p]);
      destinations_.push_back(staging.memory->data() + staging.with[p].rows_out + number * stride);
    }
    write_row(slot, t, destinations_, false);
    for (const TokenRank& r : slot.routing->send.ranks_of(t)) {
      const auto p = static_cast<std::size_t>(r.rank);
      if (staging.num_rows_sent[p] == 0) continue;
      ++num_packed_[p];
      if (r.rank != rank_) {
        blocks[p].send(*channel_, r.rank, tag, num_packed_[p], staging.sent[p].messages);
      } else if (drops_) {
        staging.own_tokens.push_back(static_cast<std::int32_t>(t));
      }
    }
  }
}

void MessagesExchange::publish_rows_to_all(Slot& slot, Staging& staging) {
  const std::size_t stride = shape_.window.row_stride;
  const int tag = message_tag(slot.call, MessageKind::kRows);
  outgoing_.assign(staging.with.size(),
                   RowBlocks(part(staging, layout_.rows_out, 0), 0, stride, slot.num_tokens()));
  for (std::int64_t t = 0; t < slot.num_tokens(); ++t) {
    std::byte* const to[] = {staging.memory->data() + layout_.rows_out +
                             static_cast<std::size_t>(t) * stride};
    write_row(slot, t, to, false);
    const std::int64_t rows_per_block = outgoing_.front().rows_per_block();
    if ((t + 1) % rows_per_block != 0 && t + 1 != slot.num_tokens()) continue;
    for (int i = 1; i < num_ranks_; ++i) {
      const int peer = (rank_ + i) % num_ranks_;
      const auto p = static_cast<std::size_t>(peer);
      outgoing_[p].send(*channel_, peer, tag, t + 1, staging.sent[p].messages);
    }
  }
}

ReturnedRows MessagesExchange::returns_to(Slot& slot, int owner) {
  const Staging& staging = staging_of(slot);
  const Traffic& traffic = staging.with[static_cast<std::size_t>(owner)];
  std::byte* const base = staging.memory->data();
  return {base + traffic.rows_out + kReturnHeaderBytes, shape_.window.combine_row_stride, 0,
          reinterpret_cast<float*>(base + traffic.weights_out)};
}

void MessagesExchange::send_returns(Slot& slot, int owner) {
  Staging& staging = staging_of(slot);
  const Traffic& traffic = with(staging, owner);
  if (owner == rank_ || traffic.num_rows_out == 0) return;
  const std::uint64_t has_weights = slot.returns_weights ? 1 : 0;
  std::memcpy(staging.memory->data() + traffic.rows_out, &has_weights, sizeof(has_weights));
  const auto p = static_cast<std::size_t>(owner);
  RowBlocks(part(staging, traffic.rows_out, 0), kReturnHeaderBytes,
            shape_.window.combine_row_stride, traffic.num_rows_out)
      .send(*channel_, owner, message_tag(slot.call, MessageKind::kRows), traffic.num_rows_out,
            staging.sent[p].messages);
  if (!slot.returns_weights) return;
  send(staging, owner, message_tag(slot.call, MessageKind::kWeights), traffic.weights_out,
       static_cast<std::size_t>(traffic.num_weights_out) * sizeof(float));
}

}  // namespace switchyard
