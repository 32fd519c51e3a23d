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
//   - rows always have the order of deterministic=true, and ids of unused rows are -1
//   - without do_cpu_sync expanded buffers have up to P * Tm * K + (A - 1) * L rows, because a
//     token may name an expert twice
//   - one level of ranks: no hybrid mode and therefore not its two handle fields
//   - recv_x is memory of the view: valid until the next call with its handle, or until the last
//     copy of the handle is destroyed
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "compat/deep_ep/buffer.h"
#include "compat/deep_ep/event.h"

namespace switchyard::deep_ep {

/// The same on every rank.
struct ElasticBufferOptions {
  std::int64_t num_max_tokens_per_rank = 0;  ///< upper bound on T
  /// Expanded: each rank sums the rows of a token and rounds to bf16, and the owner adds one row
  /// per rank. False: every row travels, and the owner adds them all in f32.
  bool allow_multiple_reduction = true;
  std::int32_t max_in_flight = 2;  ///< handles that may await their combine
};

/// Mirrors EPHandle. Destroying the last copy releases it.
struct EPHandle {
  bool do_expand = false;                    ///< as in the options
  std::int32_t num_experts = 0;              ///< E
  std::int64_t expert_alignment = 1;         ///< A
  std::int64_t num_max_tokens_per_rank = 0;  ///< Tm of this call
  std::int32_t num_sms = 0;                  ///< always 0: the exchange chooses its grids
  /// [T, K]: a copy (i64), or, with do_handle_copy false, the caller's tensor, which must then
  /// outlive the handle.
  TensorView topk_idx;
  Tensor psum_num_recv_tokens_per_scaleup_rank;  ///< [P] i32, inclusive
  /// [L] i32. Expanded: the end of each expert's valid rows. Otherwise the inclusive prefix sum of
  /// the aligned counts.
  Tensor psum_num_recv_tokens_per_expert;
  std::vector<std::int64_t> num_recv_tokens_per_expert_list;  ///< [L] aligned; empty without sync
  Tensor num_unaligned_recv_tokens_per_expert;                ///< [L] i32
  /// [R, K + 2] i32, by (rank, token): rank * Tm + token; rank * K + the highest k served here;
  /// and, if expanded, the row of each k or -1. Without sync [P * Tm, K + 2], -1 in unused rows.
  /// On GPUs this and the next are absent: see row_sources().
  Tensor recv_src_metadata;
  /// [T, K] i32, set at the highest k of each rank, -1 elsewhere: own rank * Tm + the token's index
  /// among those that go to the rank of k.
  Tensor dst_buffer_slot_idx;
  std::int64_t num_recv_tokens = 0;            ///< R; without sync P * Tm
  std::int64_t num_expanded_tokens = 0;        ///< N if expanded, else 0
  std::shared_ptr<struct ElasticState> state;  ///< internal to the library
};

/// Every rank passes equal values and gives the same tensors.
struct ElasticDispatchOptions {
  TensorView sf{};                           ///< [T, S] f32 or i32, any strides, for e4m3 x
  TensorView topk_weights{};                 ///< [T, K] f32; with a handle only if it is expanded
  std::int64_t num_max_tokens_per_rank = 0;  ///< Tm, at least T; 0: the buffer's
  std::int64_t expert_alignment = 1;         ///< A
  bool do_expand = false;  ///< one row per (token, local expert) instead of one per token
  /// N is the number of rows that arrive; on a GPU the host waits for it, which cannot be captured
  /// in a CUDA graph. false: the maximum.
  bool do_cpu_sync = true;
  bool do_handle_copy = true;                 ///< the handle keeps a copy of topk_idx
  bool do_zero_padding = false;               ///< expanded: unused rows are 0
  bool use_tma_aligned_col_major_sf = false;  ///< recv_sf has strides (1, up(N, 4))
};

/// What dispatch returns.
struct ElasticDispatched {
  TensorView recv_x;     ///< [N, H] dtype of x
  TensorView recv_sf;    ///< [N, S], strides (S, 1) or as requested; absent without sf
  Tensor recv_topk_idx;  ///< [N, K] i64: local ids, -1 for experts of other ranks; not if expanded
  /// f32 [N, K] as sent, [N] if expanded; absent if none were given. Unused rows: 0; on GPUs only
  /// with do_zero_padding. A copy, which later calls with the handle leave alone.
  Tensor recv_topk_weights;
  std::shared_ptr<EPHandle> handle;  ///< for combine, or this routing again
  EventOverlap event;                ///< the end of the call
};

/// Returned weights are 0 where the id is -1.
using ElasticCombined = BufferCombined;

/// Where the rows of recv_x come from, each [N] i32 and -1 in rows without a token.
struct ElasticRowSources {
  Tensor rank;   ///< source rank
  Tensor token;  ///< token on that rank
  Tensor k;      ///< which choice of the token; not expanded: the highest that is served here
};

/// Mirrors deep_ep.ElasticBuffer. Every distinct set of (H, K, E, format of x, do_expand,
/// do_cpu_sync, do_zero_padding, layout of sf; if expanded also expert_alignment) has its own
/// Exchange, created at first use and kept; each adds the memory that exchange_memory() states.
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
class ElasticBuffer {
 public:
  /// Over the ranks of the group. Collective.
  ElasticBuffer(const Group& group, const ElasticBufferOptions& options,
                const ExchangeOptions& exchange_options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  ElasticBuffer(ElasticBuffer&&) noexcept;
  ElasticBuffer& operator=(ElasticBuffer&&) noexcept;
  /// @}
  ~ElasticBuffer();

  /// See Exchange::close. Tensors that calls have returned stay valid; later calls are
  /// kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// Bytes of windows that one rank shares for bf16 rows, rounded up to a multiple of 2 MiB. Pure.
  static std::size_t get_buffer_size_hint(int num_ranks, std::int32_t num_experts,
                                          const ElasticBufferOptions& options, std::int64_t hidden,
                                          std::int32_t num_topk);

  /// x [T, H] bf16, or e4m3 with sf. topk_idx [T, K] i64 or i32; -1: none.
  ElasticDispatched dispatch(const TensorView& x, const TensorView& topk_idx,
                             std::int32_t num_experts, Stream stream = Stream::host(),
                             const ElasticDispatchOptions& options = {});

  /// The routing and options of `handle` again: rows arrive in the same places, and the same handle
  /// is returned. `sf` and topk_weights have the shapes of the options. With do_zero_padding this
  /// and later dispatches of the handle write 0 into unused rows, whatever its own options were.
  ElasticDispatched dispatch(const TensorView& x, const std::shared_ptr<EPHandle>& handle,
                             Stream stream = Stream::host(), const TensorView& sf = {},
                             const TensorView& topk_weights = {}, bool do_zero_padding = false);

  /// What the original's recv_src_metadata is made from, on either device. Not collective.
  /// Errors: kInvalidArgument unless called between dispatch and combine.
  ElasticRowSources row_sources(const std::shared_ptr<EPHandle>& handle,
                                Stream stream = Stream::host()) const;

  /// combined_x[t] = the bias terms in the order given, then the rows by ascending (highest) k: in
  /// f32, rounded once at each level. Not weighted. May be repeated with one handle.
  ///
  ///   x             [N, H]  bf16
  ///   topk_weights  f32 [N, K], [N] if expanded: returned to the source ranks. Must be absent if
  ///                 expanded with allow_multiple_reduction = false
  ///   bias          up to two [T, H] bf16
  ElasticCombined combine(const TensorView& x, const std::shared_ptr<EPHandle>& handle,
                          Stream stream = Stream::host(), const TensorView& topk_weights = {},
                          const std::vector<TensorView>& bias = {});

 private:
  std::unique_ptr<class ElasticBufferImpl> impl_;
};

}  // namespace switchyard::deep_ep
