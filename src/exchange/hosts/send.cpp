// SPDX-License-Identifier: Apache-2.0
//
// What a rank sends of a dispatch: through its window to the ranks of its host, and by messages to
// the forwarder of each other host.

#include <algorithm>
#include <cstring>

#include "exchange/hosts/hosts_exchange.h"

namespace switchyard {

void HostsExchange::publish(Slot& slot) {
  State& state = state_of(slot);
  publish_routing(slot);
  plan_sends(slot);
  if (slot.is_new_routing()) find_crossing(slot);
  send_routing(slot, state);
  if (slot.input.options.routing_only) return;
  publish_rows(slot);
  send_rows(slot, state);
}

void HostsExchange::find_crossing(Slot& slot) const {
  auto& crossing = slot.routing->hosts.crossing;
  crossing.assign(static_cast<std::size_t>(map_.num_hosts()), {});
  for (std::int64_t t = 0; t < slot.num_tokens(); ++t) {
    const auto token = static_cast<std::int32_t>(t);
    for (int host = 0; takes_all_ && host < map_.num_hosts(); ++host) {
      crossing[static_cast<std::size_t>(host)].push_back(token);
    }
    if (takes_all_) continue;
    for (const TokenRank& r : slot.routing->send.ranks_of(t)) {
      auto& tokens = crossing[static_cast<std::size_t>(map_.host_of(r.rank))];
      if (tokens.empty() || tokens.back() != token) tokens.push_back(token);
    }
  }
}

void HostsExchange::send_routing(Slot& slot, State& state) {
  const CachedRouting& routing = *slot.routing;
  std::byte* const memory = state.memory->data();
  DispatchHeader header{routing.call,
                        routing.num_tokens,
                        routing.max_tokens,
                        0,
                        routing.num_tokens,
                        slot.input.tensor_scale,
                        slot.is_new_routing(),
                        own_routing(slot).topk_weights != nullptr,
                        slot.input.options.routing_only};
  const RoutingMessage message = header.routing(config_, false);
  std::byte* const to = memory + layout_.routing_out;
  // std::copy rather than memcpy: without tokens the source may be null.
  if (message.has_weights) {
    std::copy(slot.topk_weights.begin(), slot.topk_weights.end(),
              reinterpret_cast<float*>(to + message.weights()));
  }
  if (message.has_ids) {
    std::copy(routing.topk_ids.begin(), routing.topk_ids.end(),
              reinterpret_cast<std::uint16_t*>(to + message.ids()));
  }
  for (int i = 1; i < map_.num_hosts(); ++i) {
    const int host = (own_host() + i) % map_.num_hosts();
    const auto h = static_cast<std::size_t>(host);
    const int peer = map_.forwarder(rank_, host);
    if (!header.routing_only) {
      header.num_rows = static_cast<std::int64_t>(routing.hosts.crossing[h].size());
    }
    const std::size_t at = layout_.headers_out + h * kMessageHeaderBytes;
    std::memcpy(memory + at, &header, sizeof(header));
    send(state, peer, message_tag(slot.call, MessageKind::kHeader),
         private_part(state, at, kMessageHeaderBytes));
    send(state, peer, message_tag(slot.call, MessageKind::kRouting),
         private_part(state, layout_.routing_out, message.size_bytes()));
  }
}

// Each token that crosses to a host is packed once for it; one that lies in the window in the form
// in which it travels is copied from there.
void HostsExchange::send_rows(Slot& slot, State& state) {
  const std::size_t stride = shape_.window.row_stride;
  const int tag = message_tag(slot.call, MessageKind::kRows);
  std::byte* next = state.memory->data() + layout_.rows_out;
  for (int i = 1; i < map_.num_hosts(); ++i) {
    const int host = (own_host() + i) % map_.num_hosts();
    const int peer = map_.forwarder(rank_, host);
    const std::vector<std::int32_t>& tokens =
        slot.routing->hosts.crossing[static_cast<std::size_t>(host)];
    RowBlocks blocks({state.memory, next, 0}, 0, stride, static_cast<std::int64_t>(tokens.size()));
    std::vector<MessageId>& sent = state.sent[static_cast<std::size_t>(peer)];
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      std::byte* const to[] = {next};
      if (is_published(slot, tokens[n])) {
        std::memcpy(next, base(rank_) + shape_.window.row(slot.call, tokens[n]), stride);
      } else {
        write_row(slot, tokens[n], to, false);
      }
      next += stride;
      blocks.send(*channel_, peer, tag, static_cast<std::int64_t>(n) + 1, sent);
      if ((n + 1) % static_cast<std::size_t>(blocks.rows_per_block()) == 0) pass_on(slot);
    }
  }
}

ReturnedRows HostsExchange::returns_to(Slot& slot, int owner) {
  if (is_near(owner)) return PullExchange::returns_to(slot, owner);
  std::byte* const part = base(forwarder_of(owner)) + part_of(slot.call, owner);
  ReturnedRows home{part + layout_.rows_in_part, shape_.window.combine_row_stride,
                    shape_.window.num_columns(),
                    reinterpret_cast<float*>(part + layout_.routing_in_part)};
  const auto first = slot.receive().first_arrival[static_cast<std::size_t>(owner)];
  if (!takes_all_) home.positions = slot.routing->hosts.positions.data() + first;
  return home;
}

void HostsExchange::send_returns(Slot& slot, int owner) {
  if (is_near(owner)) return PullExchange::send_returns(slot, owner);
  const int forwarder = forwarder_of(owner);
  auto& line = in_window<ArrivalLine>(
      forwarder, part_of(slot.call, owner) + layout_.arrived_in_part(map_.local_of(rank_)));
  line.has_weights = slot.returns_weights ? 1 : 0;
  // Pairs with the acquire in rank_still_summing().
  line.call.store(slot.call, std::memory_order_release);
  windows_.notify(map_.local_of(forwarder));
}

}  // namespace switchyard
