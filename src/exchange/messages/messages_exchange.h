// SPDX-License-Identifier: Apache-2.0
//
// messages_exchange.h: the exchange between ranks that do not address each other's memory.
//
// Of a dispatch each rank sends every peer a header, then routing, then rows: each token once to
// each rank that needs it, packed by destination. Of a combine it sends each owner its rows, in the
// order in which it has the owner's tokens. Sizes follow from headers or from the plan. Nothing is
// overwritten that a peer may still need: messages meet their receives, and an operation waits
// until the messages of the one before it in its slot have been taken.
//
// Among up to kRanksWithAllIds ranks everybody gets all ids, beyond that only those of the tokens
// that come to it, with counts of the others.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "engine/messages.h"
#include "exchange/cpu/cpu_exchange.h"
#include "exchange/messages/row_blocks.h"
#include "plan/message_layout.h"

namespace switchyard {

class MessagesExchange final : public CpuExchange {
 public:
  static constexpr int kRanksWithAllIds = 16;

  MessagesExchange(const Group& group, const ExchangeConfig& config,
                   const ExchangeOptions& options);
  ~MessagesExchange() override { close(std::uncaught_exceptions() <= num_uncaught_); }

 private:
  enum class Kind { kHeader, kRouting, kRows, kReturn };

  /// What a rank says to another with each dispatch.
  struct Header {
    std::uint64_t routing_call = 0;
    std::int64_t num_tokens = 0;
    std::int64_t max_tokens = 0;
    std::int64_t num_rows = 0;     ///< that follow
    std::int64_t num_entries = 0;  ///< of the routing that follows
    float tensor_scale = 1.0f;
    bool has_ids = false;
    bool has_weights = false;
    bool routing_only = false;
  };
  static_assert(sizeof(Header) <= kMessageHeaderBytes);

  /// Messages of one slot's last operation with one peer.
  struct Traffic {
    bool has_header = false;
    Header header;
    MessageId header_in = 0;
    MessageId routing_in = 0;
    RowBlocks in;
    std::int64_t num_sent_rows = 0;  ///< of dispatch; to this rank itself: packed for it
    std::size_t rows_out = 0;        ///< offsets in the slot's memory
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
    std::vector<Sent> sent;     ///< [P] by the last operation
    std::vector<std::int32_t>
        own_tokens;  ///< packed for this rank itself, where rows may be dropped
    std::vector<std::int32_t> positions;
  };

  // Of CpuExchange.
  void end(bool waits_for_peers) override;
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
  void drain(Slot& slot, Stage stage) override;
  std::int64_t routing_bytes_to(const Slot& slot, int peer) const override;

  Staging& staging_of(const Slot& slot) { return staging_[index_of(slot)]; }
  static Traffic& with(Staging& staging, int peer) {
    return staging.with[static_cast<std::size_t>(peer)];
  }
  static int tag_of(std::uint64_t call, Kind kind);
  static MessageBuffer part(const Staging& staging, std::size_t offset, std::size_t bytes) {
    return {staging.memory, staging.memory->data() + offset, bytes};
  }
  void send(Staging& staging, int peer, int tag, std::size_t offset, std::size_t bytes);
  void await_sent(Staging& staging, Phase phase, std::uint64_t call);

  // send.cpp
  RoutingMessage routing_message(const Slot& slot, int peer) const;
  Header header_for(const Slot& slot, int peer) const;
  void publish_routing(Slot& slot, Staging& staging);
  void write_list(const Slot& slot, int peer, const RoutingMessage& message, std::byte* to) const;
  void place_outgoing(Staging& staging) const;
  void publish_rows(Slot& slot, Staging& staging);
  void publish_rows_to_all(Slot& slot, Staging& staging);

  // receive.cpp
  void look_for_headers(const Slot& slot, Staging& staging);
  void check_header(int source, const Header& header) const;
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

  int num_uncaught_ = std::uncaught_exceptions();
};

}  // namespace switchyard
