// SPDX-License-Identifier: Apache-2.0
//
// pull_exchange.h: the exchange over windows that every rank can address (engines local and shm).
//
// A rank publishes its routing and its rows in its own window; whoever needs a row reads it there,
// so a row is written once however many ranks want it. Results are written into the owner's window,
// at a slot that follows from (token, choice) alone. No barrier, no counters, no atomics for slots.
#pragma once

#include <atomic>
#include <memory>

#include "exchange/cpu/cpu_exchange.h"

namespace switchyard {

/// First line of a rank's window: the newest call up to which it has read everything it wanted.
struct alignas(kLineBytes) ConsumedLine {
  std::atomic<std::uint64_t> call;
};

/// First line of a slot set. `call` is stored last; the rest is valid once it matches.
struct alignas(kLineBytes) OperationHeader {
  std::atomic<std::uint64_t> call;
  std::atomic<std::int64_t> rows_ready;  ///< rows [0, rows_ready) may be read
  std::uint64_t routing_call;            ///< the dispatch whose routing holds; its own call if new
  std::int64_t num_tokens;
  std::int64_t max_tokens;
  float tensor_scale;
  std::int32_t has_weights;
  std::int32_t routing_only;
};

/// Line of one peer in a slot set of the owner: the peer's results of this call are all there.
struct alignas(kLineBytes) ArrivalLine {
  std::atomic<std::uint64_t> call;
  std::int32_t has_weights;
};

/// Between all ranks of a group, or, as a base, between those of one host.
class PullExchange : public CpuExchange {
 public:
  PullExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options);

 protected:
  /// `host`: the ranks of this rank's host, with windows. make_window() comes next.
  PullExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options,
               std::shared_ptr<Engine> host);
  /// Collective, after allocate_buffers(). `ranks`: those of the window, by their number in it.
  void make_window(std::size_t bytes, std::vector<int> ranks);

  /// Peers read the window through mappings of their own.
  void end(bool /*waits_for_peers*/) override {
    window_.reset();
    host_.reset();
    leave_group();
  }

  void await_room(const Slot& slot, Phase phase, std::uint64_t call) override;
  void publish(Slot& slot) override;
  SourceRouting await_routing(Slot& slot, int source) override;
  SourceRows rows_of(Slot& slot, int source) override;
  std::int64_t await_rows(Slot& slot, int source, std::int64_t position) override;
  ReturnedRows returns_to(Slot& slot, int owner) override { return returns_in(slot, owner); }
  void send_returns(Slot& slot, int owner) override;
  bool await_returns(Slot& slot, int peer) override;
  ReturnedRows returns_of(Slot& slot, int /*peer*/) override { return returns_in(slot, rank_); }
  void announce_consumed(std::uint64_t consumed) override;

  /// What this rank does for others while it waits for routing or rows.
  virtual void progress(Slot& /*slot*/) {}

  template <typename T>
  T& in_window(int rank, std::size_t offset) const {
    return *reinterpret_cast<T*>(base(rank) + offset);
  }
  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  bool shares_window(int rank) const { return base(rank) != nullptr; }
  OperationHeader& header_of(const Slot& slot, int rank) const {
    return in_window<OperationHeader>(rank, shape_.window.header(slot.call));
  }
  void publish_routing(const Slot& slot);
  void publish_rows(const Slot& slot);
  bool is_published(const Slot& slot, std::int64_t token) const;
  ReturnedRows returns_in(const Slot& slot, int owner) const;

  WindowSource& windows_;
  std::shared_ptr<Window> window_;

 private:
  std::shared_ptr<Engine> host_;   ///< keeps windows_
  std::vector<int> ranks_;         ///< that share the window
  std::vector<std::byte*> bases_;  ///< by rank; null: on another host
};

}  // namespace switchyard
