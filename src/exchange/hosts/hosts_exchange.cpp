// SPDX-License-Identifier: Apache-2.0

#include "exchange/hosts/hosts_exchange.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard {

HostsExchange::HostsExchange(const Group& group, const ExchangeConfig& config,
                             const ExchangeOptions& options, std::shared_ptr<Engine> host)
    : PullExchange(group, config, options, std::move(host)),
      map_(control_.hosts()),
      forwarded_(map_.forwarded_by(rank_)),
      takes_all_(config.layout == Layout::kAllGather) {
  layout_ = hosts_layout_of(config, shape_.window, map_);
  part_numbers_.assign(static_cast<std::size_t>(num_ranks_), 0);
  for (const int rank : map_.ranks_of(own_host())) {
    const std::vector<int> sources = map_.forwarded_by(rank);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      part_numbers_[static_cast<std::size_t>(sources[i])] = i;
    }
  }
  states_.resize(slots_.size());
  allocate_buffers();
  make_window(layout_.window_bytes, map_.ranks_of(own_host()));
  channel_ = group.engine().messages("exchange").make_channel();
}

void HostsExchange::allocate_slot(std::size_t index) {
  states_[index].memory = std::make_shared<AlignedBuffer>(layout_.private_bytes);
  states_[index].sent.resize(static_cast<std::size_t>(num_ranks_));
}

ExchangeMemory HostsExchange::memory_of(int rank) const {
  return exchange_memory(config_, control_.hosts(), rank);
}

// What calls that have ended sent has been taken; the channel gives up the rest, and keeps the
// window that it may still write to.
void HostsExchange::end(bool waits_for_peers) {
  channel_.reset();
  PullExchange::end(waits_for_peers);
}

void HostsExchange::send(State& state, int peer, int tag, const MessageBuffer& buffer) {
  state.sent[static_cast<std::size_t>(peer)].push_back(channel_->send(peer, tag, buffer));
}

void HostsExchange::await_room(const Slot& slot, Phase phase, std::uint64_t call) {
  PullExchange::await_room(slot, phase, call);
  State& state = state_of(slot);
  state.forwards.assign(forwarded_.size(), {});
  if (phase == Phase::kCombineSend) return place_returns(slot, call, state);
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    const std::size_t at = layout_.headers_in + i * kMessageHeaderBytes;
    state.forwards[i].header_in =
        channel_->receive(forwarded_[i], message_tag(call, MessageKind::kHeader),
                          private_part(state, at, kMessageHeaderBytes));
  }
}

// A forwarder's work for an operation, and what it sent itself, must not wait for its next call.
void HostsExchange::conclude(Slot& slot, Phase phase) {
  State& state = state_of(slot);
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    Forward& forward = state.forwards[i];
    if (phase == Phase::kDispatchReceive) {
      control_.wait({phase, slot.call, forwarded_[i]}, [&] {
        pass_on(slot);
        return forward.is_passed_on();
      });
      continue;
    }
    while (!forward.has_returned) {
      const int late = rank_still_summing(slot, i);
      control_.wait({phase, slot.call, late}, [&] {
        pass_back(slot);
        return forward.has_returned || rank_still_summing(slot, i) != late;
      });
    }
  }
  for (int peer = 0; peer < num_ranks_; ++peer) {
    std::vector<MessageId>& messages = state.sent[static_cast<std::size_t>(peer)];
    for (const MessageId message : messages) {
      control_.wait({phase, slot.call, peer}, [&] { return channel_->is_done(message); });
    }
    messages.clear();
  }
}

void HostsExchange::drain(Slot& slot, Stage stage) {
  if (stage == Stage::kSent) return conclude(slot, Phase::kDispatchReceive);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const bool is_concerned = slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)] > 0;
    if (!is_near(peer) && is_concerned) (void)await_returns(slot, peer);
  }
  conclude(slot, Phase::kCombineReceive);
}

int HostsExchange::summed_by(int host) const {
  // Control's numbers of hosts need not be those of the map.
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (control_.host_of(rank) != host) continue;
    return is_near(rank) ? -1 : map_.forwarder(rank_, map_.host_of(rank));
  }
  return -1;
}

}  // namespace switchyard
