// SPDX-License-Identifier: Apache-2.0
//
// messages_exchange.h: the exchange between ranks that do not address each other's memory.
//
// Of a dispatch each rank sends every peer a header, then routing, then rows: each token once to
// each rank that needs it, packed by destination. Of a combine it sends each owner its rows, in the
// order in which it has the owner's tokens. Sizes follow from headers or from the plan. An
// operation ends when what this rank sent for it has been taken, because messages may need their
// sender to make progress, and a caller may wait for a peer elsewhere.
//
// Among up to kRanksWithAllIds ranks everybody gets all ids, beyond that only those of the tokens
// that come to it, with counts of the others.
#pragma once

#include <memory>
#include <vector>

#include "engine/messages.h"
#include "exchange/backend_layouts.h"
#include "exchange/cpu/cpu_exchange.h"
#include "exchange/messages/dispatch_header.h"
#include "exchange/messages/row_blocks.h"

namespace switchyard {

class MessagesExchange final : public CpuExchange {
 public:
  MessagesExchange(const Group& group, const ExchangeConfig& config,
                   const ExchangeOptions& options);

 private:
  /// Messages of one slot's last operation with one peer.
  struct Traffic {
    bool has_header = false;
    DispatchHeader header;
    MessageId header_in = 0;
    MessageId routing_in = 0;
    RowBlocks in;
    std::size_t rows_out = 0;  ///< offsets in the slot's memory
    std::size_t rows_in = 0;
    std::size_t weights_out = 0;
    std::size_t weights_in = 0;
    std::int64_t num_rows_out = 0;  ///< of combine
    std::int64_t num_rows_in = 0;
    std::int64_t num_weights_out = 0;
    std::int64_t num_weights_in = 0;
  };
  struct Sent {
    int peer = -1;
    std::vector<MessageId> messages;
  };
  struct Staging {
    std::shared_ptr<AlignedBuffer> memory;
    std::vector<Traffic> with;  ///< [P]
    /// [P] of the last dispatch, also those that had no place there; to this rank itself: packed
    std::vector<std::int64_t> num_rows_sent;
    std::vector<Sent> sent;  ///< [P] by the last operation
    std::vector<std::int32_t>
        own_tokens;  ///< packed for this rank itself, where rows may be dropped
    std::vector<std::int32_t> positions;
  };

  // Of CpuExchange.
  /// What calls that have ended sent has been taken; the channel gives up the rest.
  void end(bool /*waits_for_peers*/) override {
    channel_.reset();
    leave_group();
  }
  void allocate_slot(std::size_t index) override;
  ExchangeMemory memory_of(int rank) const override;
  void await_room(const Slot& slot, Phase phase, std::uint64_t call) override;
  void publish(Slot& slot) override;
  SourceRouting await_routing(Slot& slot, int source) override;
  std::size_t next_source(Slot& slot, std::span<const int> remaining) override;
  SourceRows rows_of(Slot& slot, int source) override;
  std::int64_t await_rows(Slot& slot, int source, std::int64_t position) override;
  ReturnedRows returns_to(Slot& slot, int owner) override;
  void send_returns(Slot& slot, int owner) override;
  bool await_returns(Slot& slot, int peer) override;
  ReturnedRows returns_of(Slot& slot, int peer) override;
  void conclude(Slot& slot, Phase phase) override;
  void drain(Slot& slot, Stage stage) override;
  std::int64_t routing_bytes_to(const Slot& slot, int peer) const override;
  std::int64_t rows_sent_to(const Slot& slot, int peer) const override {
    return staging_[index_of(slot)].num_rows_sent[static_cast<std::size_t>(peer)];
  }

  Staging& staging_of(const Slot& slot) { return staging_[index_of(slot)]; }
  static Traffic& with(Staging& staging, int peer) {
    return staging.with[static_cast<std::size_t>(peer)];
  }
  static MessageBuffer part(const Staging& staging, std::size_t offset, std::size_t bytes) {
    return {staging.memory, staging.memory->data() + offset, bytes};
  }
  void send(Staging& staging, int peer, int tag, std::size_t offset, std::size_t bytes);

  // send.cpp
  RoutingMessage routing_message(const Slot& slot, int peer) const;
  DispatchHeader header_for(const Slot& slot, int peer) const;
  void publish_routing(Slot& slot, Staging& staging);
  void write_list(const Slot& slot, int peer, const RoutingMessage& message, std::byte* to) const;
  void place_outgoing(Staging& staging) const;
  void publish_rows(Slot& slot, Staging& staging);
  void publish_rows_to_all(Slot& slot, Staging& staging);

  // receive.cpp
  void look_for_headers(const Slot& slot, Staging& staging);
  void find_positions(const Slot& slot, int source, Staging& staging) const;
  void place_returns(const Slot& slot, std::uint64_t call, Staging& staging);

  std::unique_ptr<MessageChannel> channel_;
  MessageLayout layout_;
  bool takes_all_;                ///< every rank gets every token
  bool lists_tokens_;             ///< routing goes to the ranks concerned
  bool drops_;                    ///< rows that have been sent may have no place
  std::vector<Staging> staging_;  ///< by slot

  // Scratch of one call.
  std::vector<RowBlocks> outgoing_;
  std::vector<std::int64_t> num_packed_;
  std::vector<std::byte*> destinations_;
};

}  // namespace switchyard
