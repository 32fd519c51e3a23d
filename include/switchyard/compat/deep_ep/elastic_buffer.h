// SPDX-License-Identifier: Apache-2.0
//
// elastic_buffer.h: DeepEP's ElasticBuffer (V2), as a thin view over Exchange in the compact and
// expanded layouts.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token     H  elements per token
//   P  ranks                   E  experts of all ranks         L  experts of this rank
//   N  rows of recv_x          S  scales per token             A  expert_alignment
//   R  tokens received         Tm num_max_tokens_per_rank
//
// Differences, and why:
//   - rows are always in the order of deterministic=true, and ids of unused rows are -1
//   - without do_cpu_sync expanded buffers have P * Tm * K + (A - 1) * L rows at most, because a
//     token may name an expert twice
//   - one level of ranks: no hybrid mode, whose two handle fields are absent; no streams
//   - recv_x stays in the view's memory: valid until the next call with its handle, or until the
//     last copy of the handle is gone
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "switchyard/compat/deep_ep/event.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/tensor.h"

namespace switchyard::deep_ep {

/// The same on every rank.
struct ElasticBufferOptions {
  std::int64_t num_max_tokens_per_rank = 0;  ///< upper bound on T
  /// Expanded: rows of a token are summed where its experts are, rounded to bf16, and the owner
  /// adds one row a rank. False: every row travels and the owner adds them all in f32.
  bool allow_multiple_reduction = true;
  std::int32_t max_in_flight = 2;  ///< handles that may wait for their combine
};

/// Mirrors EPHandle. The last copy gives the handle up.
struct EPHandle {
  bool do_expand = false;
  std::int32_t num_experts = 0;
  std::int64_t expert_alignment = 1;
  std::int64_t num_max_tokens_per_rank = 0;  ///< Tm of this call
  std::int32_t num_sms = 0;                  ///< always 0: there are none
  /// [T, K]: a copy (i64), or with do_handle_copy false the caller's tensor, which must then stay.
  TensorView topk_idx;
  Tensor psum_num_recv_tokens_per_scaleup_rank;  ///< [P] i32, inclusive
  /// [L] i32. Expanded: the end of each expert's valid rows; else the inclusive prefix sum of
  /// aligned counts.
  Tensor psum_num_recv_tokens_per_expert;
  std::vector<std::int64_t> num_recv_tokens_per_expert_list;  ///< [L] aligned; empty without sync
  Tensor num_unaligned_recv_tokens_per_expert;                ///< [L] i32
  /// [R, K + 2] i32, by (rank, token): rank * Tm + token; rank * K + highest k served here; and,
  /// expanded, the row of each k or -1. Without sync [P * Tm, K + 2], unused rows -1.
  Tensor recv_src_metadata;
  /// [T, K] i32: own rank * Tm + the token's place among those that go to the rank of k, at the
  /// highest k of each rank; else -1.
  Tensor dst_buffer_slot_idx;
  std::int64_t num_recv_tokens = 0;            ///< R; without sync P * Tm
  std::int64_t num_expanded_tokens = 0;        ///< N when expanded, else 0
  std::shared_ptr<struct ElasticState> state;  ///< for code of the library
};

/// Every rank passes equal values, and the same tensors are given.
struct ElasticDispatchOptions {
  TensorView sf{};                           ///< [T, S] f32 or i32, any strides, for x e4m3
  TensorView topk_weights{};                 ///< [T, K] f32; also with a handle that is expanded
  std::int64_t num_max_tokens_per_rank = 0;  ///< Tm, at least T; 0: the buffer's
  std::int64_t expert_alignment = 1;
  bool do_expand = false;        ///< a row for each (token, local expert), not for each token
  bool do_cpu_sync = true;       ///< recv_x has N = as many rows as arrive; false: the most
  bool do_handle_copy = true;    ///< the handle keeps a copy of topk_idx
  bool do_zero_padding = false;  ///< expanded: unused rows are 0
  bool use_tma_aligned_col_major_sf = false;  ///< recv_sf has strides (1, up(N, 4))
};

struct ElasticDispatched {
  TensorView recv_x;     ///< [N, H] dtype of x
  TensorView recv_sf;    ///< [N, S], strides (S, 1) or as asked for; absent without sf
  Tensor recv_topk_idx;  ///< [N, K] i64: local ids, -1 for experts of other ranks; absent expanded
  TensorView recv_topk_weights;  ///< f32 [N, K] as sent, expanded [N]; absent if none were given
  std::shared_ptr<EPHandle> handle;
  EventOverlap event;
};

struct ElasticCombined {
  Tensor combined_x;             ///< [T, H] bf16
  Tensor combined_topk_weights;  ///< [T, K] f32, 0 for -1; absent if none were given
  EventOverlap event;
};

/// Mirrors deep_ep.ElasticBuffer. Every distinct set of (H, K, E, format of x, do_expand,
/// do_cpu_sync, do_zero_padding, layout of sf; expanded also expert_alignment) has an Exchange of
/// its own, made at first use and kept: memory grows with the number of sets, each by what
/// exchange_memory() says.
///
/// Collective, as dispatch and combine are: sizes but T, options, and which tensors are given must
/// be the same on every rank.
/// Errors: kInvalidArgument at once; kTimeout, kPeerLost, kAborted. Ranks that pass other sizes or
/// options get kInvalidArgument where an Exchange is made for them, else kTimeout.
class SWITCHYARD_API ElasticBuffer {
 public:
  ElasticBuffer(const Group& group, const ElasticBufferOptions& options);
  ElasticBuffer(ElasticBuffer&&) noexcept;
  ElasticBuffer& operator=(ElasticBuffer&&) noexcept;
  ~ElasticBuffer();

  /// Bytes of windows that one rank shares for bf16 rows, up to the next 2 MiB. Pure.
  static std::size_t get_buffer_size_hint(int num_ranks, std::int32_t num_experts,
                                          const ElasticBufferOptions& options, std::int64_t hidden,
                                          std::int32_t num_topk);

  /// x [T, H] bf16, or e4m3 with sf. topk_idx [T, K] i64 or i32, -1: none.
  ElasticDispatched dispatch(const TensorView& x, const TensorView& topk_idx,
                             std::int32_t num_experts, const ElasticDispatchOptions& options = {});

  /// The routing of `handle` again, with its options: rows land where they landed, and the same
  /// handle is returned. `sf` and topk_weights as in the options.
  ElasticDispatched dispatch(const TensorView& x, const std::shared_ptr<EPHandle>& handle,
                             const TensorView& sf = {}, const TensorView& topk_weights = {});

  /// combined_x[t] = bias terms in the order given, then rows by ascending (highest) k: f32, one
  /// rounding at each level. Not weighted. May be repeated with one handle.
  ///
  ///   x             [N, H]  bf16
  ///   topk_weights  f32 [N, K], expanded [N]: carried home. Not with
  ///                 allow_multiple_reduction = false and an expanded handle
  ///   bias          up to two [T, H] bf16
  ElasticCombined combine(const TensorView& x, const std::shared_ptr<EPHandle>& handle,
                          const TensorView& topk_weights = {},
                          const std::vector<TensorView>& bias = {});

 private:
  std::unique_ptr<class ElasticBufferImpl> impl_;
};

}  // namespace switchyard::deep_ep
