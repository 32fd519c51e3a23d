// SPDX-License-Identifier: Apache-2.0
//
// push_hosts.h: the exchange between GPUs of several hosts. Inside a host rows are pushed as ever.
// To each other host a rank sends its tokens once, to its forwarder there (plan/host_map.h), which
// pushes them on in the name of that rank: so slots, places and routes are those of one host, and
// who receives them cannot tell. Rows that return go to a part of the forwarder's window, from
// there back to the rank, and into its window as if they had been stored there.
//
// Messages have a stream of their own beside that of the call, so that rows of this host, and
// blocks that have come, move while others cross. Events between the two keep the order, in graphs
// too.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/group.h"

#include "core/clock.h"
#include "cuda/base/memory.h"
#include "cuda/exchange/host_rows.h"
#include "exchange/push/crossing.h"
#include "exchange/push/kernel_arguments.h"
#include "exchange/push/watcher.h"
#include "heap/device_window.h"
#include "heap/rank_links.h"
#include "plan/host_map.h"

namespace switchyard {

inline constexpr std::int64_t kNsPerMs = 1'000'000;

class PushHosts final : public LinkWatch {
 public:
  /// Collective, with this rank's GPU current; null where all ranks share a host. References must
  /// outlive it. Errors: as make_rank_links and Engine::make_host_group.
  static std::unique_ptr<PushHosts> make(const Group& group, const PushExchangeShape& shape,
                                         const ExchangeOptions& options);
  PushHosts(const Group& group, const PushExchangeShape& shape, const HostMap& map,
            const ExchangeOptions& options);

  Engine& host() const { return *host_; }
  /// Of all hosts: they may be processes of one machine.
  int ranks_on_gpu() const { return ranks_on_gpu_; }
  bool has_shared_gpus() const { return has_shared_gpus_; }
  /// In the group, of a rank of this host's group; -1 of -1.
  int rank_of_local(int local) const {
    return local < 0 ? -1 : map_.ranks_of(own_host())[static_cast<std::size_t>(local)];
  }

  /// Parts for returned rows included; equal on all ranks.
  std::size_t window_bytes() const { return hosts_window_bytes(shape_, map_); }
  /// What kernels are given besides the windows of this host.
  void describe(const DeviceWindow& window, SlotKernels& to) const;
  /// The windows of this host by rank of the group; null: of another host.
  cuda::PeerTable windows(const DeviceWindow& window) const;

  /// Takes the memory of a slot.
  void allocate(std::size_t slot, cudaStream_t stream);
  std::size_t memory_bytes(std::size_t slot) const { return slots_[slot].memory.size_bytes(); }
  /// Every kernel once, without doing anything: see launch_dispatch.
  void run_kernels(const SlotKernels& kernels) const;
  /// How long kernels wait for ranks of this host; before the first call.
  void set_timeout(std::int64_t timeout_ms) { timeout_ms_ = timeout_ms; }
  /// How long they wait for ranks of other hosts, too: see watch_hosts.cpp.
  std::uint64_t dispatch_timeout_ns() const;

  /// The form of a call's messages.
  DispatchMessage message_of(const PushDispatch& call) const {
    return dispatch_message(shape_, call.max_tokens, call.routing_only, room_);
  }
  /// A dispatch of `regions` to other hosts, in a message of this form.
  struct Crossing {
    std::size_t slot;
    const std::vector<cuda::DispatchArgs>& regions;
    const DispatchMessage& message;
    const PushDispatch& call;
    const WaitSite& site;
    int max_ctas;  ///< of kernels that pack rows
    cudaStream_t stream;
  };
  /// Packs the message; one that is exact also sends its count. Returns the word that the GPU sets
  /// once the counts of all messages are in pinned memory: to be waited for before cross(); null
  /// where no counts are needed. Errors of this and of cross(): kSystem, kTimeout, kPeerLost,
  /// kAborted.
  std::uint64_t* begin_crossing(const Crossing& of);
  /// Sends what was packed and receives what this rank forwards, in the stream of messages.
  void cross(const Crossing& of);
  using Launch = std::function<void(const cuda::DispatchArgs&)>;
  /// Launches the send phase for what has crossed, by block, source and region. Without
  /// announcements and routes where DispatchArgs::tokens.sent begins after row 0.
  void pass_on(const Crossing& of, const Launch& launch) const;
  /// After the routing of all ranks is known, where every rank gets every token: which ranks of
  /// this host return rows of forwarded tokens.
  void list_returns(std::size_t slot, const cuda::RoutingArgs& routing, cudaStream_t stream) const;
  /// Passes back what this host's ranks have returned for forwarded tokens, and receives what other
  /// hosts return for own ones.
  /// `grid` is for sums, `max_ctas` for kernels that run beside messages.
  void pass_back(std::size_t slot, const SlotKernels& kernels, const PushDispatch& call,
                 const GridRequest& grid, int max_ctas, const WaitSite& site, cudaStream_t stream);
  /// Refuses to capture a combine whose dispatch with exact messages was not captured. Errors:
  /// kInvalidArgument.
  void require_capture(std::size_t slot, cudaStream_t stream) const;
  /// How many blocks pass_back() has, at most.
  std::size_t num_return_blocks(const PushDispatch& call) const;
  /// Whose partial sums are summed, after pass_back(): those of ranks, or of hosts.
  cuda::CallState summed_lists(std::size_t slot, const cuda::CallState& own) const;

  /// What a dispatch, with the routing of all ranks where it is gathered, and its combine send to
  /// other hosts.
  WireBytes wire_bytes(std::size_t slot, const PushDispatch& call, bool gathers) const;

  /// Frees what is on the GPU, once nothing runs.
  void free_memory() noexcept { slots_.clear(); }
  /// After free_memory(), when nobody looks any more. `have_all_ended`: on every rank; then the
  /// next exchange of the group takes the links.
  void leave(Control& control, bool have_all_ended) noexcept;

  void look(Control& control) noexcept override;
  void abort() noexcept override;
  int passed_on_by(int source) const noexcept override;

 private:
  struct Forward {
    std::byte* message = nullptr;  ///< of dispatch, then of combine
    cuda::CallState state;         ///< lists of partial sums
    std::int32_t* numbers = nullptr;
  };
  /// Of the messages of a dispatch and of its combine.
  struct Packing {
    bool is_packed = false;
    bool is_exact = false;

    /// Of a message, where this many were counted.
    ExactRows rows(std::uint32_t counted) const {
      return is_exact ? ExactRows(counted) : ExactRows();
    }
  };
  /// In host memory that the GPU writes: rows that cross.
  struct CountWords {
    std::uint32_t sent[kMaxPushRanks];      ///< by place in others_
    std::uint32_t received[kMaxPushRanks];  ///< by place in forwarded_
    std::uint64_t have_arrived;
  };
  using BlockEvents = std::array<cuda::OwnedEvent, kMaxRowBlocks>;
  struct Slot {
    cuda::DeviceBuffer memory;
    cuda::OwnedStream message_stream{cuda::OwnedStream::Priority::kHigh};
    BlockEvents packed;   ///< by block; of combine: collected
    BlockEvents crossed;  ///< by block
    Packing packing;      ///< of the last dispatch
    std::byte* sent = nullptr;
    std::size_t message_stride = 0;
    std::int32_t* numbers = nullptr;
    std::vector<Forward> forwards;     ///< by number in forwarded_
    std::vector<std::byte*> returned;  ///< by host; null: own
    // per_host only.
    cuda::CallState of_ranks;   ///< lists of the ranks of one host, ascending
    cuda::CallState of_hosts;   ///< lists of hosts, for own tokens
    std::byte* sums = nullptr;  ///< [T, H] f32
  };
  /// What pass_back() works on.
  struct Returns {
    const Slot& slot;
    const SlotKernels& kernels;
    const PushDispatch& call;
    int max_ctas;
    cudaStream_t stream;
    ReturnMessage out;              ///< to sources
    std::vector<ReturnMessage> in;  ///< by place in others_
  };
  enum Operation : std::size_t { kDispatch, kCombine, kNumOperations };
  struct Stay {
    std::uint32_t number = 0;
    Deadline deadline = Deadline::after_ms(0);
  };

  cuda::DispatchArgs forwarded_args(const Forward& forward, int source,
                                    const cuda::DispatchArgs& own, const DispatchMessage& message,
                                    std::size_t region, std::int64_t max_tokens) const;
  Packing packing_of(const DispatchMessage& message, std::int64_t max_tokens,
                     cudaStream_t stream) const;
  void number_own(const Slot& slot, CountWords& counts, const cuda::DispatchArgs& args,
                  const DispatchMessage& message, cudaStream_t stream) const;
  void pack_block(const Crossing& of, const Packing& packing, const RowBlock& block) const;
  void exchange_heads(const Crossing& of);
  void number_forwarded(const Slot& slot, const cuda::DispatchArgs& own,
                        const DispatchMessage& message, std::int64_t max_tokens,
                        cudaStream_t stream) const;
  cuda::EndStayArgs end_of_dispatch(const Slot& slot, const cuda::DispatchArgs& own,
                                    const DispatchMessage& message) const;
  /// Adds pieces of a message that begins at `message.data`.
  static void add(std::vector<LinkMessage>& to, const LinkMessage& message,
                  const std::vector<MessagePiece>& pieces);
  std::size_t tokens_per_rank() const {
    return static_cast<std::size_t>(shape_.config.max_tokens_per_rank);
  }
  cuda::Messages messages_of(const Slot& slot, const Packing& packing) const;
  CountWords& counts_of(std::size_t slot) const { return counts_.as<CountWords>()[slot]; }
  cuda::StayWords& stay_of(std::size_t slot, Operation operation) const {
    return words_.as<cuda::StayWords>()[slot * kNumOperations + operation];
  }
  void add_up(const Slot& slot, const SlotKernels& kernels, const cuda::CallState& lists,
              std::int64_t num_tokens, std::byte* window, const GridRequest& grid,
              cudaStream_t stream) const;
  void exchange(std::size_t slot, Operation operation, cuda::EndStayArgs end,
                const std::vector<LinkMessage>& sent, const std::vector<LinkMessage>& received,
                const WaitSite& site);
  ReturnMessage returned_by(int host, const PushDispatch& call) const;
  cuda::ReturnedRowsArgs rows_args(const Returns& of, const cuda::CallState& lists,
                                   const ReturnMessage& message, const std::int32_t* numbers,
                                   const RowBlock& block) const;
  cuda::CrossingWeightsArgs weights_args(const Returns& of, const ReturnMessage& message,
                                         std::byte* window, std::byte* at) const;
  void add_up_for_hosts(const Returns& of, const GridRequest& grid) const;
  void collect(const Returns& of, const RowBlock& block, const CountWords& counts,
               std::vector<LinkMessage>& sent) const;
  void place(const Returns& of, std::size_t other, const RowBlock& block) const;
  void place_block(const Returns& of, std::size_t nth) const;
  std::int64_t stay_timeout_ms() const;
  void warn_of_padding() const;
  int own_host() const { return map_.host_of(rank_); }
  std::uint64_t ranks_of(int host) const;

  const PushExchangeShape& shape_;
  HostMap map_;
  int rank_;
  CrossingRoom room_;
  std::vector<int> others_;          ///< hosts
  std::vector<int> forwarded_;       ///< sources whose tokens this rank passes on
  std::vector<std::int32_t> peers_;  ///< of messages
  std::shared_ptr<Engine> host_;
  int ranks_on_gpu_ = 1;
  bool has_shared_gpus_ = false;
  std::int64_t timeout_ms_ = 0;
  cuda::PinnedBuffer words_;   ///< StayWords of each slot and operation
  cuda::PinnedBuffer counts_;  ///< CountWords of each slot
  std::vector<Slot> slots_;
  std::mutex mutex_;  // guards the three below
  std::vector<Stay> stays_;
  std::int64_t failed_since_ns_ = 0;
  std::uint32_t last_mode_ = 0;  ///< of the dispatches that were issued or captured
  std::shared_ptr<RankLinks> links_;
};

}  // namespace switchyard
