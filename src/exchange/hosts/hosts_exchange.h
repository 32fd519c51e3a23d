// SPDX-License-Identifier: Apache-2.0
//
// hosts_exchange.h: the exchange between CPU ranks of several hosts.
//
// Inside a host rows are pulled from windows. To another host a rank sends each token once that any
// expert there needs, to the rank of the same local index (plan/host_map.h): the forwarder, into
// whose window the message is received, where all ranks of that host read it as they read tokens of
// their own host. Places do not change: they are those of (expert, source rank, token, k). Results
// go back through the forwarder: each rank's rows, or under per_host their sum.
#pragma once

#include <memory>
#include <vector>

#include "engine/messages.h"
#include "exchange/backend_layouts.h"
#include "exchange/messages/dispatch_header.h"
#include "exchange/messages/row_blocks.h"
#include "exchange/pull/pull_exchange.h"

namespace switchyard {

class HostsExchange final : public PullExchange {
 public:
  /// `host`: the ranks of this rank's host, with windows.
  HostsExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options,
                std::shared_ptr<Engine> host);

 private:
  /// A source of another host whose tokens this rank passes on: its messages of one operation.
  struct Forward {
    bool has_header = false;
    bool is_announced = false;  ///< the ranks of this host have been told
    bool has_returned = false;  ///< of combine: rows are on their way to the source
    DispatchHeader header;
    MessageId header_in = 0;
    MessageId routing_in = 0;
    RowBlocks in;
    std::int64_t num_announced = 0;  ///< rows

    bool is_passed_on() const { return is_announced && num_announced == in.num_rows(); }
  };
  /// What a rank of another host, or per_host a host, returns to this rank.
  struct Returning {
    RowBlocks in;
    std::size_t rows_in = 0;  ///< offsets in the slot's memory
    std::size_t weights_in = 0;
    std::int64_t num_weights = 0;
  };
  struct State {
    std::shared_ptr<AlignedBuffer> memory;
    std::vector<Forward> forwards;
    std::vector<Returning> returning;          ///< [P]
    std::vector<MessageId> host_weights;       ///< by host: once started
    std::vector<bool> has_asked_weights;       ///< by host
    std::vector<std::vector<MessageId>> sent;  ///< [P]
  };

  // Of CpuExchange and PullExchange.
  void end(bool waits_for_peers) override;
  void allocate_slot(std::size_t index) override;
  ExchangeMemory memory_of(int rank) const override;
  void await_room(const Slot& slot, Phase phase, std::uint64_t call) override;
  void publish(Slot& slot) override;
  SourceRouting await_routing(Slot& slot, int source) override;
  void keep_plan(Slot& slot) override;
  SourceRows rows_of(Slot& slot, int source) override;
  std::int64_t await_rows(Slot& slot, int source, std::int64_t position) override;
  ReturnedRows returns_to(Slot& slot, int owner) override;
  void send_returns(Slot& slot, int owner) override;
  bool await_returns(Slot& slot, int peer) override;
  ReturnedRows returns_of(Slot& slot, int peer) override;
  int summed_by(int host) const override;
  void conclude(Slot& slot, Phase phase) override;
  void drain(Slot& slot, Stage stage) override;
  void progress(Slot& slot) override { pass_on(slot); }
  std::int64_t routing_bytes_to(const Slot& slot, int peer) const override;
  std::int64_t rows_sent_to(const Slot& slot, int peer) const override;
  std::int64_t num_rows_returned(const Slot& slot) const override;

  State& state_of(const Slot& slot) { return states_[index_of(slot)]; }
  int own_host() const { return map_.host_of(rank_); }
  bool is_near(int rank) const { return map_.host_of(rank) == own_host(); }
  int forwarder_of(int source) const { return map_.forwarder(source, own_host()); }
  MessageBuffer private_part(const State& state, std::size_t offset, std::size_t bytes) const {
    return {state.memory, state.memory->data() + offset, bytes};
  }
  /// Offset of a source's part in the window of its forwarder.
  std::size_t part_of(std::uint64_t call, int source) const {
    return layout_.part(call, part_numbers_[static_cast<std::size_t>(source)]);
  }
  OperationHeader& far_header(const Slot& slot, int source) const {
    return in_window<OperationHeader>(forwarder_of(source), part_of(slot.call, source));
  }
  void send(State& state, int peer, int tag, const MessageBuffer& buffer);

  // send.cpp
  void find_crossing(Slot& slot) const;
  void send_routing(Slot& slot, State& state);
  void send_rows(Slot& slot, State& state);

  // pass_on.cpp: what a forwarder does
  void pass_on(Slot& slot);
  void start_receiving(const Slot& slot, State& state, std::size_t number);
  void announce(const Slot& slot, Forward& forward, int source);
  void find_positions(Slot& slot, int source) const;
  void pass_back(Slot& slot);
  int rank_still_summing(const Slot& slot, std::size_t number) const;
  void return_to_source(Slot& slot, State& state, std::size_t number);
  std::int64_t copy_rows_of(const Slot& slot, std::size_t number, int rank, std::byte* to) const;
  std::int64_t sum_rows(const Slot& slot, std::size_t number, std::byte* to);
  std::int64_t copy_weights_of(const Slot& slot, std::size_t number, int rank, float* to) const;

  // receive.cpp
  void place_returns(const Slot& slot, std::uint64_t call, State& state);
  bool comes_here(const RankRouting& routing, std::int64_t token) const;
  std::int64_t num_served_by(const Slot& slot, int host) const;

  // wire_bytes.cpp
  bool is_sent_to(int peer) const {
    return is_near(peer) || map_.forwarder(rank_, map_.host_of(peer)) == peer;
  }
  std::int64_t rows_passed_back(const Slot& slot, std::size_t number) const;

  HostMap map_;
  HostsLayout layout_;
  std::vector<int> forwarded_;             ///< sources whose tokens this rank passes on
  std::vector<std::size_t> part_numbers_;  ///< by source of another host
  bool takes_all_;
  std::unique_ptr<MessageChannel> channel_;
  std::vector<State> states_;  ///< by slot
};

}  // namespace switchyard
