// SPDX-License-Identifier: Apache-2.0
//
// pull_exchange.h: the exchange over windows that every rank can address (engines local and shm).
//
// A rank publishes its routing and its rows in its own window; whoever needs a row reads it there,
// so a row is written once however many ranks want it. From the routing of all ranks each receiver
// derives counts and places without a further message. Results are written into the owner's window,
// at a slot that follows from (token, choice) alone. No barrier, no counters, no atomics for slots.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/aligned_buffer.h"
#include "engine/engine.h"
#include "exchange/backend.h"
#include "exchange/exchange_shape.h"
#include "exchange/handle_table.h"
#include "exchange/pull/partial_sum.h"
#include "plan/call_ledger.h"

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

/// What follows from the ids of all ranks. Shared by every handle that uses it.
struct CachedRouting {
  std::uint64_t call = 0;  ///< of the dispatch that brought it
  std::int64_t num_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int64_t num_dropped = 0;
  bool is_received = false;
  std::vector<std::uint16_t> topk_ids;  ///< own tokens, [T, K]
  SendPlan send;
  ReceivePlan receive;
  std::vector<std::int32_t> arrival_ids;    ///< [arrivals, K] with a row a token
  std::vector<std::int64_t> rows_per_rank;  ///< [P] arrivals
};

class PullExchange final : public ExchangeBackend {
 public:
  PullExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options);

  const ExchangeConfig& config() const override { return config_; }
  Device device() const override { return Device::cpu(); }
  std::int64_t max_buffer_rows() const override { return shape_.max_buffer_rows; }
  ExchangeMemory memory() const override;
  const char* heap() const override { return "host"; }
  bool is_shared_gpu() const override { return false; }
  DispatchHandle dispatch_send(const DispatchCall& call) override;
  Dispatched dispatch_receive(const DispatchHandle& handle, Stream stream) override;
  Dispatched places(const DispatchHandle& handle) const override;
  Dispatched dispatch(const DispatchCall& call) override;
  DispatchHandle reopen(const DispatchHandle& earlier, Stream stream) override;
  void check_output(const CombineCall& call) const override;
  void combine_send(const CombineCall& call) override;
  void combine_receive(const CombineCall& call) override;
  void combine(const CombineCall& call) override;
  void release(const DispatchHandle& handle) override;
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const override;
  void write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                         Stream stream) const override;
  WireBytes wire_bytes(const DispatchHandle& handle) const override;
  void check() const override;

 private:
  /// Peers read the window through mappings of their own.
  void end(bool /*waits_for_peers*/) override { window_.reset(); }

  /// The caller's tokens, until dispatch_receive.
  struct Input {
    TensorView tokens;
    DispatchOptions options;
    float tensor_scale = 1.0f;
    bool is_stored = false;  ///< tokens have the form in which they travel

    /// Rows are whole bytes apart: make_input() made sure.
    const std::byte* row(std::int64_t token) const {
      return tokens.as<std::byte>() + token * (tokens.stride(0) * bits_of(tokens.dtype()) / 8);
    }
  };

  /// What is behind a handle.
  struct Slot {
    std::uint64_t call = 0;           ///< of the operation that was sent last
    std::uint64_t dispatch_call = 0;  ///< of its dispatch; 0 when it was reopened
    std::shared_ptr<CachedRouting> routing;
    Input input;
    std::vector<float> topk_weights;       ///< own tokens, [T, K]; empty when absent
    std::vector<float> placement_weights;  ///< of routing->receive.placements; empty: all 1
    std::vector<std::int64_t> wait_ns;     ///< [P]
    AlignedBuffer rows;
    AlignedBuffer scales;
    AlignedBuffer topk_ids;  ///< of received rows, as the next
    AlignedBuffer weights;
    std::vector<AlignedBuffer> payloads;
    TensorView results;            ///< the caller's, until combine_receive
    std::int32_t total_rows = 0;   ///< as the caller reads it
    std::int32_t num_dropped = 0;  ///< likewise

    std::int64_t num_tokens() const { return routing->num_tokens; }
    const ReceivePlan& receive() const { return routing->receive; }
    float weight(std::int32_t placement) const {
      return placement_weights.empty() ? 1.0f
                                       : placement_weights[static_cast<std::size_t>(placement)];
    }
  };

  /// How the rows of one dispatch_receive are placed.
  struct Placing {
    ScaleBlocks scales;
    bool streaming = false;
  };

  template <typename T>
  T& in_window(int rank, std::size_t offset) const {
    return *reinterpret_cast<T*>(window_->base(rank) + offset);
  }
  template <typename Ready>
  void wait_for(Slot& slot, int peer, Ready&& ready);

  // one_sided.cpp: handles and calls
  Slot& find(const DispatchHandle& handle, Stage wanted, const char* operation);
  const Slot& slot_of(const DispatchHandle& handle, const char* operation) const;
  void require_host_memory() const;
  void allocate_buffers();
  void allocate(Slot& slot) const;
  Slot& open_slot(const char* operation, std::int32_t wanted = -1);
  std::size_t index_of(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  DispatchHandle handle_of(const Slot& slot) const;
  std::shared_ptr<CachedRouting> new_routing();
  const std::shared_ptr<CachedRouting>& received_routing(const DispatchHandle& earlier,
                                                         const char* operation) const;
  std::uint64_t begin(const char* operation, Phase phase);
  void finish(std::uint64_t call);
  bool is_in_place() const;

  // publish.cpp: the send part of dispatch
  Input make_input(const DispatchCall& call) const;
  void use_new_routing(Slot& slot, const DispatchCall& call);
  void use_earlier_routing(Slot& slot, const DispatchCall& call) const;
  void load_ids(CachedRouting& routing, const TensorView& topk_ids) const;
  void load_weights(Slot& slot, std::int64_t num_tokens, const TensorView& topk_weights) const;
  RankRouting own_routing(const Slot& slot) const;
  void publish_header(const Slot& slot);
  void publish_rows(const Slot& slot);
  bool is_published(const Slot& slot, std::int64_t token) const;
  void write_row(const Slot& slot, std::int64_t token, bool streaming);

  // place.cpp: the receive part of dispatch
  void receive_headers(Slot& slot);
  void require_alike(const Slot& slot, int source, const OperationHeader& header) const;
  void plan(Slot& slot);
  void keep_received(CachedRouting& routing) const;
  void gather_weights(Slot& slot) const;
  void place_rows_of(Slot& slot, int source, const Placing& placing);
  void place_extras(Slot& slot, const std::byte* from, std::int64_t row, const Placing& placing);
  void place_routing(Slot& slot) const;
  void clear_padding(Slot& slot, const Placing& placing) const;
  Dispatched describe(Slot& slot, const Placing& placing) const;
  HostCounts host_counts(const Slot& slot) const;

  // combine.cpp
  std::span<const Arrival> arrivals_of(const Slot& slot, int source) const;
  std::span<const Placement> placements_of(const Slot& slot, const Arrival& arrival) const;
  bool returns_row(const Arrival& arrival) const {
    return arrival.count > 0 || shape_.window.shape.returns_everywhere;
  }
  const std::byte* result_row(const Slot& slot, std::int64_t row) const;
  bool is_in_wire_form(const Slot& slot) const;
  const std::byte* to_wire(const Slot& slot, std::int64_t row);
  const std::byte* reduce_here(const Slot& slot, const Arrival& arrival);
  const std::byte* share_of(const Slot& slot, const Arrival& arrival);
  std::int32_t column_of(const Slot& slot, const Arrival& arrival) const;
  void return_rows_to(const Slot& slot, int owner);
  void return_weights_to(const Slot& slot, int owner, const TensorView& row_weights) const;
  int rank_without_weights(const Slot& slot) const;
  void receive_weights(const Slot& slot, const TensorView& returned) const;
  void sum_tokens(const Slot& slot, const TensorView& output, const CombineOptions& options);
  void add_shared(const TensorView& shared, std::int64_t token, std::byte* row, DType dtype);
  void add_partials(const Slot& slot, std::int64_t token, const Arrival* own);
  void add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
                   const TensorView& topk_weights);
  void add_wire(const std::byte* row, float weight) {
    partial_sum_.add_stored(config_.combine_scheme, row, row + shape_.combine_scales_in_row,
                            weight);
  }

  Group group_;
  Control& control_;
  WindowSource& windows_;
  ExchangeConfig config_;
  ExchangeShape shape_;
  int rank_;
  int num_ranks_;
  CallLedger ledger_;
  std::unique_ptr<Window> window_;
  HandleTable handles_;
  std::vector<Slot> slots_;                               ///< by slot of handles_
  std::vector<std::shared_ptr<CachedRouting>> routings_;  ///< reused once no handle needs them

  // Scratch of one call, kept so that calls allocate nothing once they have seen their sizes.
  std::vector<RankRouting> table_;
  std::vector<std::vector<std::uint16_t>> kept_ids_;
  std::vector<std::byte*> places_;
  PartialSum partial_sum_;
  PartialSum own_sum_;
  AlignedBuffer share_;  ///< one returned row: this rank's share of a token
  AlignedBuffer sum_;    ///< one row of output, up to f32
};

template <typename Ready>
void PullExchange::wait_for(Slot& slot, int peer, Ready&& ready) {
  if (ready()) return;
  const std::int64_t start = now_ns();
  control_.wait({Phase::kDispatchReceive, slot.call, peer}, ready);
  slot.wait_ns[static_cast<std::size_t>(peer)] += now_ns() - start;
}

}  // namespace switchyard
