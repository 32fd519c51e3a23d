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

#include "switchyard/exchange_config.h"
#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Ties a combine to its dispatch. It also keeps the routing, so after its combine it can still be
/// given to dispatch_again and reopen. Copies are the same handle.
class DispatchHandle {
 public:
  DispatchHandle() = default;

 private:
  friend class PullExchange;
  std::int32_t slot_ = -1;
  std::uint64_t id_ = 0;
  std::shared_ptr<struct CachedRouting> routing_;
};

/// What dispatch takes besides tokens and routing.
struct DispatchOptions {
  /// [T, S]: tokens are already quantized by the configured scheme, with these scales.
  TensorView scales{};
  /// [1] f32, the same on every rank: the scale of all tokens for schemes with one scale a tensor,
  /// the global scale for nvfp4. Needed by these, ignored by the others.
  TensorView tensor_scale{};
  /// [T, ...] each, rows contiguous, of the configured number of bytes.
  std::vector<TensorView> payloads{};
  /// Upper bound on T over all ranks for this call, the same on every rank: sizes of kByRank and of
  /// worst_case_rows follow it. 0: the configured one.
  std::int64_t max_tokens = 0;
  /// Only routing and weights travel, the same on every rank: of `tokens` only the shape counts, no
  /// payloads are given, and received rows are undefined. For a combine without a dispatch before
  /// it, or a dispatch_again after it.
  bool routing_only = false;
};

/// Where a received row comes from.
struct RowOrigin {
  std::int64_t row = 0;     ///< index in the receive buffer
  std::int32_t expert = 0;  ///< local index; -1 in layouts with a row a token
  std::int32_t rank = 0;    ///< source rank
  std::int32_t token = 0;   ///< token on that rank
  std::int32_t k = 0;       ///< which of its choices; a row a token: the highest here, or -1
  float weight = 1.0f;      ///< of that choice; 1 where weights do not travel, or a row a token
};

/// Received rows. Everything in here is valid until the handle's combine has been received or the
/// handle is released.
struct Dispatched {
  DispatchHandle handle;
  /// Rows and scales. kBatched, kExpanded: where each expert's rows lie. The other layouts: rows by
  /// (source rank, token), first_row empty, num_rows [L] tokens that want each local expert.
  ExpertRows experts;
  std::int64_t num_rows = 0;  ///< valid rows
  /// [N, K] i32, kCompact, kByRank and kAllGather. kCompact: local index, -1 for experts of other
  /// ranks; the others: ids as sent. -1 in rows without a token.
  TensorView topk_ids;
  /// f32 where weights travel: [N, K] as sent; kBatched, kExpanded: [N], that of (token, expert). 0
  /// in rows without a token.
  TensorView topk_weights;
  std::vector<TensorView> payloads;             ///< [N, bytes] u8 each
  std::span<const std::int64_t> rows_per_rank;  ///< [P] tokens placed here of each rank
  std::span<const std::int64_t> expert_load;    ///< [E] rows wanted of each expert by all ranks
  std::span<const std::int64_t> wait_ns;        ///< [P] time spent waiting for each rank's rows
  std::int64_t num_dropped = 0;                 ///< choices of this rank's tokens lost to capacity
};

struct CombineOptions {
  /// [T, K] f32: for kPerExpert, replaces the weights given to dispatch. With kPerRank weights are
  /// applied where the experts are: they must travel with dispatch.
  TensorView topk_weights;
  /// [T, H] bf16 each, added first, in the order given.
  std::vector<TensorView> bias;
  /// [T, K] f32, written: what each choice's rank passed as row_weights to combine_send; 0 where
  /// there is none.
  TensorView returned_weights{};
};

/// Whether the rows given to combine have their topk weights in them already.
enum class RowsAre : std::uint8_t { kUnweighted, kWeighted };

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
  ///   tokens        [T, H]  bf16, f16 or f32, or quantized by the configured scheme (with
  ///                         options.scales); rows contiguous; T from 0 to max_tokens_per_rank, its
  ///                         own on each rank
  ///   topk_ids      [T, K]  i32 or i64, contiguous; from 0 to E - 1, or -1 for "none". A token may
  ///                         name an expert twice, except with kBatched; each counts.
  ///   topk_weights  [T, K]  f32, contiguous; absent: all 1
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights = {},
                               const DispatchOptions& options = {});

  /// The same with the routing of an earlier handle, which every rank has received: rows land where
  /// they landed then, and only a header line travels with them.
  DispatchHandle dispatch_again_send(const DispatchHandle& earlier, const TensorView& tokens,
                                     const TensorView& topk_weights = {},
                                     const DispatchOptions& options = {});

  /// Waits for the peers' rows and places them.
  ///
  /// Errors also, on every rank and with nothing lost: kInvalidArgument when ranks passed other
  /// max_tokens, tensor_scale or routing, kCapacityExceeded.
  Dispatched dispatch_receive(const DispatchHandle& handle);

  Dispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                      const TensorView& topk_weights = {}, const DispatchOptions& options = {});
  Dispatched dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                            const TensorView& topk_weights = {},
                            const DispatchOptions& options = {});

  /// A handle for one more combine with the routing of an earlier one, without a dispatch; weights
  /// are 1. No communication. Combine is the gradient of dispatch, and dispatch_again of combine.
  DispatchHandle reopen(const DispatchHandle& earlier);

  /// Throws what combine_receive would throw for these arguments. Sends nothing, changes nothing.
  void check_output(const DispatchHandle& handle, const TensorView& output,
                    const CombineOptions& options = {}) const;

  /// Sends expert results home.
  ///
  ///   rows         [N, H]  bf16, f16 or f32, contiguous: a row for each row of the receive buffer;
  ///                        layouts with a row a token: already the sum over this rank's experts
  ///   row_weights  [N], or [N, K] in layouts with a row a token, f32: carried home, not applied
  ///   rows_are     kWeighted: per_rank sums the rows as they are. (The sums of per_expert happen
  ///                at the owner, by CombineOptions.)
  void combine_send(const DispatchHandle& handle, const TensorView& rows,
                    const TensorView& row_weights = {}, RowsAre rows_are = RowsAre::kUnweighted);

  /// Waits for the results of this rank's tokens, sums them in fixed order and ends the handle.
  ///
  ///   output  [T, H]  bf16, f16 or f32, rows contiguous; written. A token without experts gives 0
  ///                   plus its bias.
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       const CombineOptions& options = {});

  /// Both phases; what either would refuse of these arguments is refused before anything is sent.
  void combine(const DispatchHandle& handle, const TensorView& rows, const TensorView& output,
               const CombineOptions& options = {}, const TensorView& row_weights = {});

  /// Gives a handle up, at any stage. Not collective in itself, but every rank must do the same.
  void release(const DispatchHandle& handle);

  /// Origin of every valid row, by (expert, rank, token, k) or, with a row a token, (rank, token).
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const;

  /// Of a received handle: what its dispatch sent, and what its combine does send.
  WireBytes wire_bytes(const DispatchHandle& handle) const;

 private:
  std::unique_ptr<class PullExchange> impl_;
};

}  // namespace switchyard
