// SPDX-License-Identifier: Apache-2.0

#include "exchange/messages/messages_exchange.h"

#include "core/bytes.h"

namespace switchyard {

MessagesExchange::MessagesExchange(const Group& group, const ExchangeConfig& config,
                                   const ExchangeOptions& options)
    : CpuExchange(group, config, options),
      takes_all_(config.layout == Layout::kAllGather),
      lists_tokens_(lists_tokens(config, group.size())),
      drops_(drops_rows(config)) {
  layout_ = message_layout_of(config, shape_.window, group.size());
  staging_.resize(slots_.size());
  allocate_buffers();
  channel_ = group.engine().messages("exchange").make_channel();
}

void MessagesExchange::allocate_slot(std::size_t index) {
  const auto num_ranks = static_cast<std::size_t>(num_ranks_);
  staging_[index].memory = std::make_shared<AlignedBuffer>(layout_.total_bytes);
  staging_[index].with.resize(num_ranks);
  staging_[index].num_rows_sent.resize(num_ranks);
  staging_[index].sent.resize(num_ranks);
}

ExchangeMemory MessagesExchange::memory_of(int rank) const {
  const std::size_t receive_bytes = exchange_memory(config_, num_ranks_, rank).receive_bytes;
  return {0, checked_add(receive_bytes, checked_mul(layout_.total_bytes, slots_.size()))};
}

void MessagesExchange::send(Staging& staging, int peer, int tag, std::size_t offset,
                            std::size_t bytes) {
  Sent& sent = staging.sent[static_cast<std::size_t>(peer)];
  sent.messages.push_back(channel_->send(peer, tag, part(staging, offset, bytes)));
}

void MessagesExchange::conclude(Slot& slot, Phase phase) {
  Staging& staging = staging_of(slot);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    std::vector<MessageId>& messages = staging.sent[static_cast<std::size_t>(peer)].messages;
    for (const MessageId message : messages) {
      control_.wait({phase, slot.call, peer}, [&] { return channel_->is_done(message); });
    }
    messages.clear();
  }
}

// The operation before it in this slot has ended, so its memory is free. Starts to receive what can
// be received without knowing more.
void MessagesExchange::await_room(const Slot& slot, Phase phase, std::uint64_t call) {
  Staging& staging = staging_of(slot);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    Traffic& traffic = with(staging, peer);
    traffic = {};
    if (phase != Phase::kDispatchSend || peer == rank_) continue;
    const std::size_t at =
        layout_.headers_in + static_cast<std::size_t>(peer) * kMessageHeaderBytes;
    traffic.header_in = channel_->receive(peer, message_tag(call, MessageKind::kHeader),
                                          part(staging, at, kMessageHeaderBytes));
  }
  if (phase == Phase::kCombineSend) place_returns(slot, call, staging);
}

// What was sent to a handle must be received, or its senders would wait for ever.
void MessagesExchange::drain(Slot& slot, Stage stage) {
  Staging& staging = staging_of(slot);
  const bool is_dispatch = stage == Stage::kSent;
  const Phase phase = is_dispatch ? Phase::kDispatchReceive : Phase::kCombineReceive;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    Traffic& traffic = with(staging, peer);
    control_.wait({phase, slot.call, peer}, [&] {
      if (is_dispatch) look_for_headers(slot, staging);
      return (traffic.has_header || !is_dispatch) && channel_->is_done(traffic.routing_in) &&
             traffic.in.num_received(*channel_) == traffic.in.num_rows();
    });
    if (!is_dispatch && traffic.in.num_rows() > 0) (void)await_returns(slot, peer);
  }
  conclude(slot, phase);
}

}  // namespace switchyard
