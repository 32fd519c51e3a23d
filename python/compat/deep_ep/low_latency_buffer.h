// SPDX-License-Identifier: Apache-2.0
//
// low_latency_buffer.h: the low-latency calls of DeepEP's Buffer, as a thin view over Exchange.
//
// Letters used for shapes in this header:
//   T  tokens on this rank       K  experts chosen per token     H  elements per token
//   P  ranks                     E  experts of all ranks         L  experts of this rank
//   C  rows per expert, P * num_max_dispatch_tokens_per_rank
//
// Differences, and why:
//   - any H, K, E and C, because no kernel is compiled for particular sizes; E need not be a
//     multiple of P
//   - rows of an expert are ordered by (source rank, token), not by arrival
//   - a token that names an expert twice is an error; the original loses one of the two rows
//   - received rows are memory of the view: valid until the combine of their handle has been
//     received, or until the last copy of the handle is destroyed
//   - no masks of failed ranks, no use_logfmt
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "compat/deep_ep/event.h"

namespace switchyard::deep_ep {

/// Keywords of low_latency_dispatch.
struct LowLatencyDispatchOptions {
  bool use_fp8 = true;          ///< quantize to e4m3, one scale per 128 columns (kFp8BlockDeepEp)
  bool round_scale = false;     ///< scales become powers of two
  bool use_ue8m0 = false;       ///< scales travel as packed exponent bytes; requires round_scale
  bool use_nvfp4 = false;       ///< quantize to e2m1; excludes use_fp8
  TensorView x_global_scale{};  ///< [1] f32, the same on every rank; for use_nvfp4
  TensorView topk_weights{};    ///< [T, K] f32: sets recv_topk_weights and recv_src_rank
  bool async_finish = false;    ///< no effect: every call returns an event
  /// Send only; hook() receives, in the stream of this call; if that is the default stream of the
  /// thread, on the same thread. Excludes async_finish.
  bool return_recv_hook = false;
  TensorView cumulative_local_expert_recv_stats{};  ///< [L] i32; += recv_count
  TensorView dispatch_wait_recv_cost_stats{};  ///< [P] i64; += ns waited for each rank; on CPUs
  /// Sets src_info and layout_range of the handle: on GPUs two small kernels behind each receive.
  /// Without it LowLatencyBuffer::set_source_info sets them where they are wanted.
  bool sets_source_info = true;
};

/// Rows that a dispatch received: L blocks of C rows, of which [0, recv_count[e]) are valid.
struct LowLatencyRows {
  TensorView recv_x;  ///< [L, C, H] bf16 or e4m3; nvfp4: [L, C, H / 2] u8; contiguous
  /// fp8: f32 [L, C, cdiv(H, 128)]; use_ue8m0: i32 [L, C, cdiv(H, 512)], where byte j of word p is
  /// the exponent of group 4p + j. Both have strides (S * C, 1, C) for S columns. nvfp4:
  /// e4m3 [L, cdiv(C, 128), cdiv(H, 64), 32, 4, 4], contiguous. The original permutes the
  /// dimensions of nvfp4 rows and scales; these are the tensors before that.
  TensorView scales;
  TensorView recv_count;         ///< [L] i32
  TensorView recv_topk_weights;  ///< [L, C] f32, if topk_weights were given
  TensorView recv_src_rank;      ///< [L, C] i32, if topk_weights were given
};

/// What combine needs from its dispatch. The tensors are filled when rows are received; combine
/// itself does not read them.
struct LowLatencyHandle {
  Tensor src_info;      ///< [L, C] i32: token of each row on its source rank; -1 in unused rows
  Tensor layout_range;  ///< [L, P] i64: low 32 bits: rows from rank j; high 32: the first of them
  std::int64_t num_max_dispatch_tokens_per_rank = 0;  ///< as given
  std::int64_t hidden = 0;                            ///< H
  std::int32_t num_experts = 0;                       ///< E
  std::shared_ptr<struct LowLatencyState> state;      ///< internal to the library
};

/// What low_latency_dispatch returns.
struct LowLatencyDispatched {
  std::shared_ptr<LowLatencyHandle> handle;  ///< for combine
  EventOverlap event;                        ///< the end of the call
  std::function<void()> hook;                ///< with return_recv_hook: every rank calls it once

  /// With return_recv_hook, what lies there is undefined until the hook has run.
  const LowLatencyRows& rows() const;
};

/// Keywords of low_latency_combine.
struct LowLatencyCombineOptions {
  bool zero_copy = false;   ///< x is the buffer of get_next_low_latency_combine_buffer
  bool use_logfmt = false;  ///< true throws kNotSupported
  TensorView out{};         ///< [T, H] bf16; written. Absent: combined_x is `memory` of the result
  bool async_finish = false;      ///< no effect
  bool return_recv_hook = false;  ///< only sends; the hook receives
};

/// What low_latency_combine returns.
struct LowLatencyCombined {
  TensorView combined_x;       ///< [T, H] bf16
  Tensor memory;               ///< owns combined_x, unless `out` was given
  EventOverlap event;          ///< the end of the call
  std::function<void()> hook;  ///< with return_recv_hook: completes combined_x
};

/// Mirrors the low-latency half of deep_ep.Buffer. Every distinct set of (maximum T, H, K, E,
/// quantization) has its own Exchange, created at first use and kept.
///
/// Tensors and streams are of the device in the ExchangeOptions. On a GPU calls and hooks are
/// ordered in the stream and wait for nothing once a call of these sizes has run; then they may be
/// captured in a CUDA graph. `memory` of a result and tensors of a handle may be reused by a later
/// call when the last Tensor that holds them is gone. A second combine of one handle sends the
/// routing once more, x_global_scale included.
///
/// Construction and all calls are collective, except the static functions and
/// get_next_low_latency_combine_buffer.
/// Errors of calls: kInvalidArgument at once; kNotSupported (use_logfmt, rank masks; on a GPU
/// dispatch_wait_recv_cost_stats, because only the host measures waits); kTimeout, kPeerLost and
/// kAborted, after which the group can only be destroyed. Hooks are receive phases: every rank
/// calls them, in the same order.
class LowLatencyBuffer {
 public:
  /// Over the ranks of the group. Collective.
  explicit LowLatencyBuffer(const Group& group, const ExchangeOptions& exchange_options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  LowLatencyBuffer(LowLatencyBuffer&&) noexcept;
  LowLatencyBuffer& operator=(LowLatencyBuffer&&) noexcept;
  /// @}
  ~LowLatencyBuffer();

  /// See Exchange::close. Tensors that calls have returned stay valid; later calls are
  /// kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// Bytes that the original registers, by its own formula. This library allocates what memory()
  /// states and needs no size from the caller. Pure.
  static std::size_t get_low_latency_rdma_size_hint(std::int64_t num_max_dispatch_tokens_per_rank,
                                                    std::int64_t hidden, std::int64_t num_ranks,
                                                    std::int64_t num_experts);

  /// Memory of one rank on CPUs for one set of options. Pure.
  static ExchangeMemory memory(std::int64_t num_max_dispatch_tokens_per_rank, std::int64_t hidden,
                               std::int32_t num_experts, std::int32_t num_topk,
                               const LowLatencyDispatchOptions& options, int num_ranks, int rank);

  /// Sends each token to its experts.
  ///
  ///   x         [T, H]  bf16, with use_fp8 or use_nvfp4 also f16 or f32; rows contiguous; T from 0
  ///                     to the maximum
  ///   topk_idx  [T, K]  i64 or i32; -1: none
  ///
  /// With return_recv_hook x and topk_idx may be overwritten once the call has returned (on a GPU:
  /// by work behind it in the stream), as with DeepEP: on CPUs the call copies the rows of this
  /// rank's own experts.
  ///
  /// At most two handles may await their combine; a third dispatch is an error. Destroying every
  /// copy of a handle releases it.
  LowLatencyDispatched low_latency_dispatch(const TensorView& x, const TensorView& topk_idx,
                                            std::int64_t num_max_dispatch_tokens_per_rank,
                                            std::int32_t num_experts,
                                            Stream stream = Stream::host(),
                                            const LowLatencyDispatchOptions& options = {});

  /// combined_x[t] = sum of topk_weights[t, k] * row of (t, k): one f32 fma chain, k ascending,
  /// rounded once; 0 for a token without experts. May be repeated with one handle.
  ///
  ///   x             [L, C, H]  bf16: one row per received row; with return_recv_hook it may be
  ///                            overwritten like x of dispatch
  ///   topk_idx      [T, K]     the ids given to dispatch; other ids are an error on CPUs, and
  ///                            undefined on a GPU
  ///   topk_weights  [T, K]     f32; unchanged until the hook has run
  LowLatencyCombined low_latency_combine(const TensorView& x, const TensorView& topk_idx,
                                         const TensorView& topk_weights,
                                         const std::shared_ptr<LowLatencyHandle>& handle,
                                         Stream stream = Stream::host(),
                                         const LowLatencyCombineOptions& options = {});

  /// [L, C, H] bf16, uninitialized: memory of the handle for results. Any other memory works as
  /// well, because combine takes rows straight from x to their owners.
  TensorView get_next_low_latency_combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle);

  /// Sets src_info and layout_range of a handle whose dispatch had no sets_source_info: at once, in
  /// `stream`, or, where its hook has not run, by the hook. Has no effect where they are set. Not
  /// collective. Errors: kInvalidArgument once the handle was combined.
  void set_source_info(const std::shared_ptr<LowLatencyHandle>& handle,
                       Stream stream = Stream::host());

  /// A barrier of the hosts, because windows here never need cleaning. Collective.
  void clean_low_latency_buffer(std::int64_t num_max_dispatch_tokens_per_rank, std::int64_t hidden,
                                std::int32_t num_experts);

  /// @{ Masks of failed ranks (enable_shrink): all three throw kNotSupported, because without the
  /// rows of a masked rank a result would look complete. A rank that does not come ends the group.
  [[noreturn]] void low_latency_update_mask_buffer(int rank, bool is_masked);
  [[noreturn]] void low_latency_query_mask_buffer(const TensorView& mask_status);
  [[noreturn]] void low_latency_clean_mask_buffer();
  /// @}

 private:
  std::unique_ptr<class LowLatencyBufferImpl> impl_;
};

}  // namespace switchyard::deep_ep
