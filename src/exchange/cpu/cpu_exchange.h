// SPDX-License-Identifier: Apache-2.0
//
// cpu_exchange.h: the exchange between CPU ranks: all of it but the way that rows travel.
//
// From the routing of all ranks each rank derives counts, places and the way back. Rows that have
// come are placed; results are summed per rank where the contract says so, and the owner of a
// token sums what returns, in a fixed order. How routing and rows get from rank to rank is what a
// transport supplies, a class derived from this one: by windows in pull/, by messages in messages/.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/aligned_buffer.h"
#include "engine/engine.h"
#include "exchange/backend.h"
#include "exchange/cpu/partial_sum.h"
#include "exchange/cpu/slot.h"
#include "exchange/cpu/transit.h"
#include "exchange/exchange_shape.h"
#include "exchange/handle_table.h"
#include "plan/call_ledger.h"

namespace switchyard {

class CpuExchange : public ExchangeBackend {
 public:
  const ExchangeConfig& config() const override { return config_; }
  Device device() const override { return Device::cpu(); }
  std::int64_t max_buffer_rows() const override { return shape_.max_buffer_rows; }
  ExchangeMemory memory() const override { return memory_of(rank_); }
  const char* heap() const override { return "host"; }
  bool is_shared_gpu() const override { return false; }
  DispatchHandle dispatch_send(const DispatchCall& call) override;
  Dispatched dispatch_receive(const DispatchHandle& handle, Stream stream) override;
  Dispatched places(const DispatchHandle& handle) const override;
  Dispatched dispatch(const DispatchCall& call) override;
  DispatchHandle reopen(const DispatchHandle& earlier, Stream stream) override;
  void check_output(const CombineCall& call) const override;
  TensorView combine_input(const DispatchHandle& handle) override;
  void combine_send(const CombineCall& call) override;
  void combine_receive(const CombineCall& call) override;
  void combine(const CombineCall& call) override;
  void release(const DispatchHandle& handle) override;
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const override;
  void write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                         Stream stream) const override;
  WireBytes wire_bytes(const DispatchHandle& handle) const override;
  void check() const override;

 protected:
  using Slot = CpuSlot;

  /// Collective: ranks agree on the configuration.
  CpuExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options);

  /// Collective, in the constructor of a transport: allocates the receive buffers, and what the
  /// transport needs for each slot. An error of one rank is an error of all.
  void allocate_buffers();

  // ---- What a transport supplies. `slot.call` is the operation's number. -----------------------

  /// Private memory of this rank for one slot.
  virtual void allocate_slot(std::size_t /*index*/) {}
  /// What memory() of that rank is.
  virtual ExchangeMemory memory_of(int rank) const {
    return exchange_memory(config_, num_ranks_, rank);
  }
  /// Waits until whatever operation `call` of this slot writes may be written.
  virtual void await_room(const Slot& slot, Phase phase, std::uint64_t call) = 0;
  /// Sends this rank's routing and, unless routing_only, its rows. Calls plan_sends() in between,
  /// or before.
  virtual void publish(Slot& slot) = 0;
  /// Waits for the routing of a peer. Its pointers stay valid until the call has been received.
  virtual SourceRouting await_routing(Slot& slot, int source) = 0;
  /// A new routing has been planned; `sources_` and `table_` have it.
  virtual void keep_plan(Slot& /*slot*/) {}
  /// The peer of `remaining` whose rows should be placed next.
  virtual std::size_t next_source(Slot& /*slot*/, std::span<const int> /*remaining*/) { return 0; }
  /// Rows of a source, of this rank too unless is_in_place.
  virtual SourceRows rows_of(Slot& slot, int source) = 0;
  /// Waits until the row at `position` has come; returns how many positions have.
  virtual std::int64_t await_rows(Slot& slot, int source, std::int64_t position) = 0;
  /// Where this rank's rows for an owner go. For this rank itself weights, and rows that are
  /// copied.
  virtual ReturnedRows returns_to(Slot& slot, int owner) = 0;
  /// They are all there. Called once for every owner, this rank too.
  virtual void send_returns(Slot& slot, int owner) = 0;
  /// Waits for the rows of a rank that has some of this rank's tokens; true when its weights came
  /// with them.
  virtual bool await_returns(Slot& slot, int peer) = 0;
  /// Where they are; of this rank itself the weights, and rows that are copied.
  virtual ReturnedRows returns_of(Slot& slot, int peer) = 0;
  /// kPerHost: the rank whose returned rows are the sums of a host; -1: each rank's rows return.
  virtual int summed_by(int /*host*/) const { return -1; }
  /// Before a receive phase ends: peers must be able to finish the phase without this rank making
  /// another call.
  virtual void conclude(Slot& /*slot*/, Phase /*phase*/) {}
  /// Receives and forgets what peers have sent to a handle in this stage that is given up.
  virtual void drain(Slot& /*slot*/, Stage /*stage*/) {}
  /// Tells peers that this rank has read all calls up to `consumed`.
  virtual void announce_consumed(std::uint64_t /*consumed*/) {}
  /// Bytes of ids and weights that a dispatch sends to one peer.
  virtual std::int64_t routing_bytes_to(const Slot& slot, int peer) const;
  /// Rows that a dispatch sends to one peer, and that a combine sends to all.
  virtual std::int64_t rows_sent_to(const Slot& slot, int peer) const;
  virtual std::int64_t num_rows_returned(const Slot& slot) const;

  // ---- For transports ---------------------------------------------------------------------------

  template <typename Ready>
  void wait_for(Slot& slot, int peer, Ready&& ready);
  std::size_t index_of(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  /// Finds the ranks of each token, unless the routing is an earlier one.
  void plan_sends(Slot& slot) const;
  /// This rank's routing as peers see it: without weights where they do not travel.
  RankRouting own_routing(const Slot& slot) const;
  /// A rank reads its own rows in the caller's memory unless they change on the way, or the caller
  /// wants that memory back.
  bool is_in_place(const Slot& slot) const {
    return !config_.scheme.is_quantized() && config_.payload_bytes.empty() &&
           slot.input.is_stored && !slot.input.options.copies_inputs;
  }
  /// Writes a token to each place in the form in which it travels.
  void write_row(const Slot& slot, std::int64_t token, std::span<std::byte* const> to,
                 bool streaming) const;
  std::span<const Arrival> arrivals_of(const Slot& slot, int source) const;
  /// Rounds a sum of partial sums to a row in the form in which it returns.
  void round_to_wire(PartialSum& sum, std::byte* row);
  bool returns_row(const Arrival& arrival) const {
    return arrival.count > 0 || shape_.window.shape.returns_everywhere;
  }
  /// At its end: results that are still held keep this object, but not the rank in the group.
  void leave_group() { group_ = Group(); }

  Group group_;
  Control& control_;  ///< until leave_group()
  ExchangeConfig config_;
  ExchangeShape shape_;
  int rank_;
  int num_ranks_;
  CallLedger ledger_;
  HandleTable handles_;
  std::vector<Slot> slots_;  ///< by slot of handles_

  // Of the dispatch that is being received, by rank. The table lacks choices that were dropped.
  std::vector<SourceRouting> sources_;
  std::vector<RankRouting> table_;

  PartialSum host_sum_;  ///< scratch: what the ranks of one host have for a token

 private:
  /// How the rows of one dispatch_receive are placed.
  struct Placing {
    ScaleBlocks scales;
    bool streaming = false;
  };

  // cpu_exchange.cpp: handles and calls
  Slot& find(const DispatchHandle& handle, Stage wanted, const char* operation);
  const Slot& slot_of(const DispatchHandle& handle, const char* operation) const;
  void require_host_memory() const;
  void allocate(Slot& slot) const;
  Slot& open_slot(const char* operation, std::int32_t wanted = -1);
  DispatchHandle handle_of(const Slot& slot) const;
  std::shared_ptr<CachedRouting> new_routing();
  const std::shared_ptr<CachedRouting>& received_routing(const DispatchHandle& earlier,
                                                         const char* operation) const;
  std::uint64_t begin(const Slot& slot, const char* operation, Phase phase);
  void finish(std::uint64_t call);

  // input.cpp: the send part of dispatch
  DispatchInput make_input(const DispatchCall& call) const;
  void use_new_routing(Slot& slot, const DispatchCall& call);
  void use_earlier_routing(Slot& slot, const DispatchCall& call) const;
  void load_ids(CachedRouting& routing, const TensorView& topk_ids) const;
  void load_weights(Slot& slot, std::int64_t num_tokens, const TensorView& topk_weights) const;

  // receive.cpp: the receive part of dispatch
  void receive_routing(Slot& slot);
  void require_alike(const Slot& slot, int source, const SourceRouting& other) const;
  void plan(Slot& slot);
  void keep_received(CachedRouting& routing) const;
  void gather_weights(Slot& slot) const;
  const RankRouting& routing_of(const Arrival& arrival) const {
    return table_[static_cast<std::size_t>(arrival.source)];
  }
  std::int64_t first_choice(const ReceivePlan& receive, std::size_t arrival) const;

  // place.cpp
  void place_rows(Slot& slot, const Placing& placing);
  void place_rows_of(Slot& slot, int source, const Placing& placing);
  void place_extras(Slot& slot, const std::byte* from, std::int64_t row, const Placing& placing);
  void place_routing(Slot& slot) const;
  void clear_padding(Slot& slot, const Placing& placing) const;

  // describe.cpp
  Dispatched describe(Slot& slot, const Placing& placing) const;
  HostCounts host_counts(const Slot& slot) const;

  // return.cpp: the send part of combine
  std::span<const Placement> placements_of(const Slot& slot, const Arrival& arrival) const;
  const std::byte* result_row(const Slot& slot, std::int64_t row) const;
  bool is_in_wire_form(const Slot& slot) const;
  const std::byte* to_wire(const Slot& slot, std::int64_t row);
  void collect_own(const Slot& slot, const Arrival& arrival);
  const std::byte* share_of(const Slot& slot, const Arrival& arrival);
  std::int32_t column_of(const Slot& slot, const Arrival& arrival) const;
  void return_rows_to(Slot& slot, int owner);
  void return_weights_to(Slot& slot, int owner, const TensorView& row_weights);

  // sum.cpp: the receive part of combine
  void await_all_returns(Slot& slot);
  int rank_without_weights(const Slot& slot) const;
  void receive_weights(const Slot& slot, const TensorView& returned);
  void sum_tokens(const Slot& slot, const TensorView& output, const CombineOptions& options);
  void add_shared(const TensorView& shared, std::int64_t token, std::byte* row, DType dtype);
  void add_partials(const Slot& slot, std::int64_t token, const Arrival* own);
  void add_own_share(const Slot& slot, const Arrival& own);
  void add_hosts(const Slot& slot, std::int64_t token, const Arrival* own);
  void add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
                   const TensorView& topk_weights);
  /// A rank reads its own results where the caller has them, unless combine_send copied them.
  bool is_summed_in_place(const Slot& slot, int peer) const {
    return peer == rank_ && !slot.copies_results;
  }
  const std::byte* next_returned(int peer, std::int64_t token, std::int32_t column) {
    const auto p = static_cast<std::size_t>(peer);
    return returned_[p].row(num_summed_[p]++, token, column);
  }
  void add_wire(const std::byte* row, float weight) {
    partial_sum_.add_stored(config_.combine_scheme, row, row + shape_.combine_scales_in_row,
                            weight);
  }

  std::vector<std::shared_ptr<CachedRouting>> routings_;  ///< reused once no handle needs them

  // Scratch of one call, kept so that calls allocate nothing once they have seen their sizes.
  std::vector<std::vector<std::uint16_t>> kept_ids_;
  std::vector<int> remaining_;
  std::vector<std::byte*> places_;
  std::vector<ReturnedRows> returned_;    ///< [P]
  std::vector<std::int64_t> num_summed_;  ///< [P] rows of each that have been added
  std::vector<bool> has_weights_;         ///< [P] that returned weights
  PartialSum partial_sum_;
  PartialSum own_sum_;
  std::vector<TokenRank> by_host_;  ///< ranks of a token, by host and rank
  AlignedBuffer host_row_;          ///< one returned row: what the ranks of a host have for a token
  AlignedBuffer share_;             ///< one returned row: this rank's share of a token
  AlignedBuffer sum_;               ///< one row of output, up to f32
};

template <typename Ready>
void CpuExchange::wait_for(Slot& slot, int peer, Ready&& ready) {
  if (ready()) return;
  const std::int64_t start = now_ns();
  control_.wait({Phase::kDispatchReceive, slot.call, peer}, ready);
  slot.wait_ns[static_cast<std::size_t>(peer)] += now_ns() - start;
}

}  // namespace switchyard
