// SPDX-License-Identifier: Apache-2.0
//
// one_sided.h: the exchange over windows that every rank can address (engines local and shm).
//
// A rank publishes its routing and its rows in its own window; whoever needs a row reads it there,
// so a row is written once however many ranks want it. From the routing of all ranks each receiver
// derives counts and places without a further message. Results are written into the owner's window,
// at a slot that follows from (token, choice) alone. No barrier, no counters, no atomics for slots.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "switchyard/exchange.h"

#include "core/aligned_buffer.h"
#include "engine/engine.h"
#include "exchange/exchange_shape.h"
#include "plan/epoch_ledger.h"

namespace switchyard {

/// First line of a rank's window: the newest epoch up to which it has read everything it wanted.
struct alignas(kLineBytes) ConsumedLine {
  std::atomic<std::uint64_t> epoch;
};

/// First line of a slot set. `epoch` is stored last; the rest is valid once it matches.
struct alignas(kLineBytes) OperationHeader {
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::int64_t> rows_ready;  ///< rows [0, rows_ready) may be read
  std::int64_t num_tokens;
  std::int32_t has_weights;
};

/// Line of one peer in a slot set of the owner: the peer's results of this epoch are all there.
struct alignas(kLineBytes) ArrivalLine {
  std::atomic<std::uint64_t> epoch;
};

class OneSidedExchange {
 public:
  OneSidedExchange(const Group& group, const ExchangeConfig& config);

  const ExchangeConfig& config() const { return config_; }
  std::int64_t max_buffer_rows() const { return shape_.max_buffer_rows; }
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights);
  Dispatched dispatch_receive(const DispatchHandle& handle);
  void check_output(const DispatchHandle& handle, const TensorView& output,
                    const CombineOptions& options) const;
  void combine_send(const DispatchHandle& handle, const TensorView& rows);
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       const CombineOptions& options);
  void release(const DispatchHandle& handle);
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const;
  WireBytes wire_bytes(const DispatchHandle& handle) const;

 private:
  enum class Stage { kFree, kSent, kReceived, kReturned };

  /// What is behind a handle.
  struct Slot {
    Stage stage = Stage::kFree;
    std::uint64_t id = 0;
    std::uint64_t epoch = 0;              ///< of the operation that was sent last
    TensorView tokens;                    ///< the caller's, until dispatch_receive
    std::vector<std::uint16_t> topk_ids;  ///< own tokens, [T, K]
    std::vector<float> topk_weights;      ///< own tokens, [T, K]; empty when absent
    std::int64_t num_tokens = 0;
    SendPlan send;
    ReceivePlan receive;
    AlignedBuffer rows;
    AlignedBuffer scales;
    TensorView results;  ///< the caller's, until combine_receive
  };

  /// Rows of a token as terms of a sum, in order. Keeps its memory from sum to sum.
  struct Terms {
    std::vector<const void*> rows;
    std::vector<float> weights;

    void clear() {
      rows.clear();
      weights.clear();
    }
    void add(const void* row, float weight) {
      rows.push_back(row);
      weights.push_back(weight);
    }
    void sum(std::int64_t hidden, void* to, DType dtype) const;
  };

  template <typename T>
  T& in_window(int rank, std::size_t offset) const {
    return *reinterpret_cast<T*>(window_->base(rank) + offset);
  }
  Slot& find(const DispatchHandle& handle, Stage wanted, const char* operation);
  std::size_t index_of(const DispatchHandle& handle, const char* operation) const;
  Slot& free_slot();

  void load_routing(Slot& slot, const TensorView& topk_ids, const TensorView& topk_weights) const;
  std::uint64_t begin(const char* operation, Phase phase);
  void finish(std::uint64_t epoch);
  RankRouting own_routing(const Slot& slot) const;
  void publish_routing(const Slot& slot);
  void publish_rows(const Slot& slot);
  bool is_published(const Slot& slot, std::int64_t token) const;
  void receive_routing(const Slot& slot);
  void place_rows_of(Slot& slot, int source, bool streaming);
  std::span<const Arrival> arrivals_of(const Slot& slot, int source) const;
  std::span<const Placement> placements_of(const Slot& slot, const Arrival& arrival) const;
  const void* result_row(const Slot& slot, const Placement& placement) const;
  void reduce_here(const Slot& slot, const Arrival& arrival);
  void return_rows_to(const Slot& slot, int owner);
  void sum_tokens(const Slot& slot, const TensorView& output, const CombineOptions& options);
  void add_partials(const Slot& slot, std::int64_t token, const Arrival* own);
  void add_choices(const Slot& slot, std::int64_t token, const Arrival* own,
                   const TensorView& topk_weights);

  Group group_;
  Engine& engine_;
  ExchangeConfig config_;
  ExchangeShape shape_;
  int rank_;
  int num_ranks_;
  EpochLedger ledger_;
  std::unique_ptr<Window> window_;
  std::vector<Slot> slots_;
  std::uint64_t next_id_ = 1;

  // Scratch of one call, kept so that calls allocate nothing once they have seen their sizes.
  std::vector<RankRouting> table_;
  std::vector<std::byte*> places_;
  Terms terms_;
  Terms own_terms_;
  AlignedBuffer share_;  ///< one row: this rank's share of a token
  AlignedBuffer sum_;    ///< one row of output, up to f32
};

}  // namespace switchyard
