// SPDX-License-Identifier: Apache-2.0
//
// buffer.h: the high-throughput calls of DeepEP's Buffer (V1), as a thin view over Exchange in the
// compact layout: a token travels once to each rank that holds one of its experts.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token     H  elements per token
//   P  ranks                   E  experts of all ranks         L  experts of this rank
//   R  rows received           S  scales per token
//
// Differences, and why:
//   - the constructor needs an upper bound on T, because windows are sized once; in return there is
//     no channel or chunk configuration, and dispatch needs no layout tensors
//   - combine adds rows by the highest k that each rank holds, as all per-rank sums do, not by rank
//   - of the topk_weights given to combine, only those of a rank's own experts return to the source
//   - recv_x is memory of the view: valid until the next call with its handle, or until the last
//     copy of the handle is destroyed
//   - any number of ranks, any H
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "compat/deep_ep/event.h"

namespace switchyard::deep_ep {

/// Options of the constructor.
struct BufferOptions {
  std::int64_t max_tokens_per_rank = 0;  ///< upper bound on T, the same on every rank
  std::int32_t max_in_flight = 2;        ///< handles that may await their combine
};

/// How many of this rank's tokens go where.
struct DispatchLayout {
  Tensor num_tokens_per_rank;    ///< [P] i32; a token counts once per rank
  Tensor num_tokens_per_expert;  ///< [E] i32
  Tensor is_token_in_rank;       ///< [T, P] u8, 0 or 1
  EventOverlap event;            ///< the end of the call
};

/// Ties combine, and later dispatches with the same routing, to a dispatch.
struct BufferHandle {
  std::shared_ptr<struct BufferState> state;  ///< internal to the library
};

/// Keywords of dispatch.
struct BufferDispatchOptions {
  /// [T, S] f32 or i32 (packed UE8M0), for e4m3 x: a scale per token or per cdiv(H, S) elements.
  TensorView x_scales{};
  TensorView topk_weights{};          ///< [T, K] f32
  std::int64_t expert_alignment = 1;  ///< rounds up the counts in the list
  /// 0: recv_x has as many rows as arrive; on a GPU the host waits for their number, which cannot
  /// be captured in a CUDA graph. Otherwise P times an upper bound on T, the same on every rank:
  /// recv_x has that many rows, the list is empty, and ids of unused rows are -1.
  std::int64_t num_worst_tokens = 0;
};

/// What dispatch returns.
struct BufferDispatched {
  TensorView recv_x;         ///< [R, H] dtype of x, by (source rank, token)
  TensorView recv_x_scales;  ///< [R, S], contiguous; absent without x_scales
  Tensor recv_topk_idx;      ///< [R, K] i64: local ids, -1 for experts of other ranks
  Tensor recv_topk_weights;  ///< [R, K] f32: 0 where the id is -1; absent if none were given
  std::vector<std::int64_t> num_recv_tokens_per_expert_list;  ///< [L], rounded up
  BufferHandle handle;  ///< for combine, or this routing again
  EventOverlap event;   ///< the end of the call
};

/// What the handle of the original says of a dispatch.
struct HandleTensors {
  Tensor recv_src_idx;              ///< [R] i32: the token on its source rank; -1 in unused rows
  Tensor num_recv_tokens_per_rank;  ///< [P] i32
  Tensor is_token_in_rank;          ///< [T, P] u8, 0 or 1
};

/// What combine returns.
struct BufferCombined {
  Tensor combined_x;             ///< [T, H] bf16
  Tensor combined_topk_weights;  ///< [T, K] f32; absent if none were given
  EventOverlap event;            ///< the end of the call
};

/// Mirrors deep_ep.Buffer without its low-latency calls. Every distinct set of (H, K, E, format of
/// x, with or without num_worst_tokens) has its own Exchange, created at first use and kept; each
/// adds the memory that exchange_memory() states.
///
/// Tensors and streams are of the device in the ExchangeOptions. On a GPU calls are ordered in the
/// stream and wait for nothing once a call of these sizes has run; then they may be captured in a
/// CUDA graph. Results are memory of the object, which a later call may reuse when the last Tensor
/// that holds it is gone.
///
/// Construction, dispatch and combine are collective: sizes other than T, options, and which
/// tensors are given must be the same on every rank.
/// Errors: kInvalidArgument at once; kTimeout, kPeerLost, kAborted. When ranks pass different sizes
/// or options, they get kInvalidArgument if an Exchange is created for the call, otherwise
/// kTimeout.
class Buffer {
 public:
  /// Over the ranks of the group. Collective.
  Buffer(const Group& group, const BufferOptions& options,
         const ExchangeOptions& exchange_options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  /// @}
  ~Buffer();

  /// See Exchange::close. Tensors that calls have returned stay valid; later calls are
  /// kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// Not collective. topk_idx [T, K] i64 or i32; -1: none; on a GPU also what is no expert.
  DispatchLayout get_dispatch_layout(const TensorView& topk_idx, std::int32_t num_experts,
                                     Stream stream = Stream::host()) const;

  /// x [T, H] bf16, or e4m3 with x_scales.
  BufferDispatched dispatch(const TensorView& x, const TensorView& topk_idx,
                            std::int32_t num_experts, Stream stream = Stream::host(),
                            const BufferDispatchOptions& options = {});

  /// The same routing again: rows arrive in the same places. Ids, weights and the list of the
  /// result are absent. When the format of x or x_scales differs from before, the routing travels
  /// once more.
  BufferDispatched dispatch(const TensorView& x, const BufferHandle& handle,
                            Stream stream = Stream::host(), const TensorView& x_scales = {});

  /// Not collective; for a handle that was not combined since its dispatch, otherwise
  /// kInvalidArgument.
  HandleTensors handle_tensors(const BufferHandle& handle, Stream stream = Stream::host()) const;

  /// combined_x[t] = bias_0[t] + bias_1[t] + one row from each rank that received the token: in
  /// f32, rounded once. Not weighted. May be repeated with one handle.
  ///
  ///   x             [R, H]  bf16
  ///   topk_weights  [R, K]  f32: returned to the source ranks
  ///   bias          up to two [T, H] bf16
  BufferCombined combine(const TensorView& x, const BufferHandle& handle,
                         Stream stream = Stream::host(), const TensorView& topk_weights = {},
                         const std::vector<TensorView>& bias = {});

 private:
  std::unique_ptr<class BufferImpl> impl_;
};

}  // namespace switchyard::deep_ep
