// SPDX-License-Identifier: Apache-2.0
//
// exchange.h: move each token to the ranks that hold its experts, and bring the results back.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                   L  experts this rank holds               N  rows of a receive buffer
//   S  scales per row
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Fixed for the life of an Exchange. Every rank passes equal values; the constructor checks this
/// and names the first rank and field that differ.
struct ExchangeConfig {
  std::int32_t num_experts = 0;          ///< E, from 1 to 65535; need not be a multiple of P
  std::int32_t num_topk = 0;             ///< K, from 1 to 64
  std::int64_t hidden = 0;               ///< H, at least 1
  std::int64_t max_tokens_per_rank = 0;  ///< upper bound on T, over all ranks
  Layout layout = Layout::kExpanded;     ///< kBatched or kExpanded
  QuantScheme scheme = schemes::kNone;   ///< of rows on the wire; quantized once, while sending
  Reduce reduce = Reduce::kPerRank;
  bool sends_weights = true;          ///< topk_weights travel with dispatch (f32)
  std::int64_t expert_alignment = 1;  ///< kExpanded: experts start at multiples of it
  std::int32_t max_in_flight = 1;     ///< handles that may be alive at once, from 1 to 64
};

/// Memory that one rank takes, in bytes. Windows are shared with the peers; receive buffers are
/// private. Both are reserved whole and become real page by page, as rows really arrive.
struct ExchangeMemory {
  /// 128 + n * up(128 * (1 + P) + up(2 T K, 128) + up(4 T K, 128)
  ///              + max(T * row, T * columns * 2 up(H, 8)), 128)
  /// with 4 T K only where weights travel, T the declared maximum, n = max(2, max_in_flight + 1),
  /// row = a row with its scales rounded up to 16 bytes, columns = K, or min(P, K) for per_rank.
  std::size_t window_bytes = 0;
  /// max_in_flight * N * (row + scales), N the most rows that can arrive.
  std::size_t receive_bytes = 0;
};

/// Pure: no communication, no allocation. Errors: kInvalidArgument, kNotSupported.
SWITCHYARD_API ExchangeMemory exchange_memory(const ExchangeConfig& config, int num_ranks,
                                              int rank);

/// Ties a combine to its dispatch. A small value; the exchange owns what is behind it.
class DispatchHandle {
 public:
  DispatchHandle() = default;

 private:
  friend class OneSidedExchange;
  std::int32_t slot_ = -1;
  std::uint64_t id_ = 0;
};

/// Where a received row comes from.
struct RowOrigin {
  std::int64_t row = 0;     ///< index in the receive buffer
  std::int32_t expert = 0;  ///< local index
  std::int32_t rank = 0;    ///< source rank
  std::int32_t token = 0;   ///< token on that rank
  std::int32_t k = 0;       ///< which of the token's choices
  float weight = 1.0f;      ///< its topk weight; 1 when weights do not travel
};

/// Received rows. Everything in here is valid until the handle's combine has been received or the
/// handle is released.
struct Dispatched {
  DispatchHandle handle;
  ExpertRows experts;                         ///< rows, scales, and where each expert's rows lie
  std::int64_t num_rows = 0;                  ///< valid rows
  std::span<const std::int64_t> expert_load;  ///< [E] rows of each expert over the whole group
};

struct CombineOptions {
  /// [T, K] f32: for kPerExpert, replaces the weights given to dispatch. With kPerRank weights are
  /// applied where the experts are: they must travel with dispatch.
  TensorView topk_weights;
  /// [T, H] bf16 each, added first, in the order given.
  std::vector<TensorView> bias;
};

/// Bytes that left this rank for other ranks, its own share excluded.
struct WireBytes {
  std::int64_t dispatch = 0;  ///< rows with scales, ids and weights
  std::int64_t combine = 0;   ///< returned rows
};

/// Dispatch and combine over a group whose ranks can address each other's memory.
///
/// All members are collective: every rank calls them in the same order, from one thread at a time.
/// The blocking calls are the two phases in a row. Between them the caller may compute; the inputs
/// of a send phase must stay unchanged until the matching receive phase has returned (as with
/// non-blocking MPI calls).
///
/// Errors of every member: kInvalidArgument at once, with nothing sent; kTimeout, kPeerLost and
/// kAborted, after which the group can only be destroyed.
/// Source: two-phase low-latency calls of DeepEP; expanded layout of its ElasticBuffer.
class SWITCHYARD_API Exchange {
 public:
  /// Collective: agrees on the configuration and maps the windows. Errors also: kOutOfMemory.
  Exchange(const Group& group, const ExchangeConfig& config);
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;
  ~Exchange();

  const ExchangeConfig& config() const;

  /// N at most: rows that a receive buffer of this rank can have.
  std::int64_t max_buffer_rows() const;

  /// Quantizes and publishes this rank's tokens.
  ///
  ///   tokens        [T, H]  bf16, rows contiguous; T from 0 to max_tokens_per_rank, its own on
  ///   each
  ///                         rank
  ///   topk_ids      [T, K]  i32 or i64, contiguous; from 0 to E - 1, or -1 for "none". With
  ///                         kExpanded a token may name an expert twice; each counts.
  ///   topk_weights  [T, K]  f32, contiguous; absent: all 1
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights = {});

  /// Waits for the peers' rows and places them.
  Dispatched dispatch_receive(const DispatchHandle& handle);

  Dispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                      const TensorView& topk_weights = {});

  /// Throws what combine_receive would throw for these arguments. Sends nothing, changes nothing.
  void check_output(const DispatchHandle& handle, const TensorView& output,
                    const CombineOptions& options = {}) const;

  /// Sends expert results home.
  ///
  ///   rows  [N, H]  bf16, contiguous: a row for each row of the receive buffer
  void combine_send(const DispatchHandle& handle, const TensorView& rows);

  /// Waits for the results of this rank's tokens, sums them in fixed order and ends the handle.
  ///
  ///   output  [T, H]  bf16, f16 or f32, rows contiguous; written. A token without experts gives 0
  ///                   plus its bias.
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       const CombineOptions& options = {});

  void combine(const DispatchHandle& handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options = {});

  /// Gives a received handle up without a combine. Not collective in itself, but every rank must do
  /// the same.
  void release(const DispatchHandle& handle);

  /// Origin of every valid row, by (expert, rank, token, k).
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const;

  /// Of a received handle: what its dispatch sent, and what its combine does send.
  WireBytes wire_bytes(const DispatchHandle& handle) const;

 private:
  std::unique_ptr<class OneSidedExchange> impl_;
};

}  // namespace switchyard
