// SPDX-License-Identifier: Apache-2.0
//
// mnnvl_moe.h: FlashInfer's two-sided all-to-all (MnnvlMoe), as a thin view over Exchange in the
// compact layout with fixed shapes: prepare, one alltoallv per payload, combine.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (top_k)     P  ranks
//   Tm max_token_count_per_rank of the call
//
// Differences, and why:
//   - rows of a source rank are in token order, not in the order of an atomic counter
//   - negative ids are dropped; the original sends them to rank 0
//   - slots are distributed like experts everywhere in this library: the first slot_count % P ranks
//     hold one more
//   - no workspace tensors, because windows belong to the object; rows that no rank sent are 0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard::flashinfer {

/// Mirrors MoEAlltoallInfo; all tensors are i32. Unused entries are -1. The three lists of indices
/// are for the original's own kernels: on GPUs they are absent.
struct MoEAlltoallInfo {
  Tensor send_rank_count_cumsum;   ///< [P] inclusive prefix sum of tokens sent to each rank
  Tensor send_rank_local_indices;  ///< [Tm * max(P, K)] token of each sent row, packed by rank
  Tensor recv_rank_count_cumsum;   ///< [P] inclusive prefix sum of tokens received
  Tensor recv_rank_local_indices;  ///< [Tm * P] index of each received row: 0, 1, 2, ...
  /// [Tm * max(P, K)] for each sent row: token * K + the lowest k that the rank serves.
  Tensor backward_recv_rank_local_indices;
  std::int64_t local_token_allocation_count = 0;          ///< Tm * P
  std::shared_ptr<const struct TwoSidedRouting> routing;  ///< internal to the library
};

/// What prepare_without_allgather returns.
struct MoEAlltoallPrepared {
  MoEAlltoallInfo info;  ///< for alltoallv and combine
  Tensor expert_ids;  ///< [P * Tm, K] i32; slot_count for slots of other ranks and in unused rows
  Tensor scales;      ///< [P * Tm, K] f32 router weights, 0 in unused rows; absent if not given
  Tensor gathered_expert_statics;  ///< [P, expert_count] i32; absent if not given
};

/// The same on every rank.
struct MnnvlMoeOptions {
  std::int64_t max_token_count_per_rank = 0;  ///< upper bound on every Tm
};

/// Construction and all calls are collective. Memory for each row size is allocated at first use
/// and kept.
///
/// Tensors and streams are of the device in the ExchangeOptions. On a GPU calls are ordered in the
/// stream and wait for nothing once a call of these sizes has run; then they may be captured in a
/// CUDA graph. Results are memory of the object, which a later call may reuse when the last Tensor
/// that holds it is gone.
///
/// Errors: kInvalidArgument at once; kTimeout, kPeerLost, kAborted.
class MnnvlMoe {
 public:
  /// Over the ranks of the group. Collective.
  MnnvlMoe(const Group& group, const MnnvlMoeOptions& options,
           const ExchangeOptions& exchange_options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  MnnvlMoe(MnnvlMoe&&) noexcept;
  MnnvlMoe& operator=(MnnvlMoe&&) noexcept;
  /// @}
  ~MnnvlMoe();

  /// See Exchange::close. Tensors that calls have returned stay valid; later calls are
  /// kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// Memory of one rank for a payload of `row_bytes` bytes per row. Pure.
  static ExchangeMemory workspace_size_per_rank(std::int64_t max_token_count_per_rank,
                                                std::int32_t slot_count, std::int32_t top_k,
                                                std::int64_t row_bytes, int ep_size, int ep_rank);

  /// mnnvl_moe_alltoallv_prepare_without_allgather.
  ///
  ///   expert_ids      [T, K]  i32 or i64; negative or slot_count: none; on GPUs also above
  ///   scales          [T, K]  f32 router weights, or absent on every rank
  ///   expert_statics  [expert_count] i32, or absent on every rank
  MoEAlltoallPrepared prepare_without_allgather(const TensorView& expert_ids,
                                                const TensorView& scales,
                                                const TensorView& expert_statics,
                                                std::int64_t max_token_count_per_rank,
                                                std::int32_t expert_count, std::int32_t slot_count,
                                                Stream stream = Stream::host());

  /// mnnvl_moe_alltoallv: [P * Tm, ...] rows by (source rank, token).
  ///
  ///   x  [T, ...]  any dtype, contiguous
  Tensor alltoallv(const TensorView& x, const MoEAlltoallInfo& info,
                   Stream stream = Stream::host());

  /// Several payloads in one exchange; results are in the same order.
  std::vector<Tensor> alltoallv(const std::vector<TensorView>& payloads,
                                const MoEAlltoallInfo& info, Stream stream = Stream::host());

  /// mnnvl_moe_alltoallv_combine: [T, H], one row from each rank that received the token, summed in
  /// f32 in the order of the highest k of each rank, rounded once. Not weighted.
  ///
  ///   x  [P * Tm, H]  bf16, f16 or f32: already weighted and summed over this rank's experts
  Tensor alltoallv_combine(const TensorView& x, const MoEAlltoallInfo& info,
                           Stream stream = Stream::host());

 private:
  std::unique_ptr<class MnnvlMoeImpl> impl_;
};

}  // namespace switchyard::flashinfer
