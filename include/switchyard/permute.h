// SPDX-License-Identifier: Apache-2.0
//
// permute.h: groups rows by expert for contiguous grouped GEMMs, and sums the weighted results per
// token. Each expert's rows begin at a multiple of the alignment, so that no GEMM tile mixes two
// experts. Mirrors vLLM's deep_gemm_utils (deepgemm_moe_permute, ep_scatter, ep_gather); see
// docs/permute.md.
//
// Letters used for shapes in this header:
//   T  tokens     K  experts chosen per token     H  elements per row     S  scales per row
//   L  local experts     E  global experts     M  rows of the permuted buffer, padding included
//
// In every function topk_ids are i32 or i64. A negative id means "no expert" and is never an index.
// With an expert_map (i32 [E], global id to local index, or negative) ids are global; without one
// they are local. No function is collective. After kInvalidArgument nothing has been written.
//
// Functions with a Stream (stream.h) give the same rows, order and bits on either device. The host
// cannot see values in GPU memory, so what is refused on the host (an id that no expert has, a
// count that differs from that of the ids, an inv_perm entry outside M) is treated as "no expert"
// there and added to num_errors (i32 [1], or absent), which is never cleared. On a GPU K is at most
// 1024. The other functions work on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/group_shape.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Rows per tile of DeepGEMM's contiguous grouped layout.
inline constexpr std::int64_t kDeepGemmAlignment = 128;

/// The block of elements that shares a scale: [alignment, alignment].
/// Source: vLLM, deep_gemm_block_shape.
SWITCHYARD_API BlockShape deep_gemm_block_shape(std::int32_t alignment = kDeepGemmAlignment);

/// Counts the ids of each local expert; ids of other experts are not counted, even without a map.
///
///   topk_ids           any shape; contiguous unless [T, K]
///   expert_num_tokens  i32 [L], contiguous; written
///
/// Errors: kInvalidArgument (shape, dtype, an id that expert_map has no entry for).
/// Source: vLLM, count_expert_num_tokens.
SWITCHYARD_API void count_expert_num_tokens(const TensorView& topk_ids,
                                            const TensorView& expert_num_tokens,
                                            const TensorView& expert_map = {},
                                            Stream stream = Stream::host(),
                                            const TensorView& num_errors = {});

/// local_ids[i] = expert_map[topk_ids[i]]; negative ids are kept.
///
///   local_ids  shape and dtype of topk_ids; written; may be topk_ids itself
///
/// Errors: kInvalidArgument (shape, dtype, an id that expert_map has no entry for).
SWITCHYARD_API void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                                     const TensorView& local_ids, Stream stream = Stream::host(),
                                     const TensorView& num_errors = {});

/// Sum of the counts, each rounded up to the alignment.
///
///   expert_num_tokens  i32 [L]
///
/// Errors: kInvalidArgument (a negative count, alignment below 1, overflow).
SWITCHYARD_API std::int64_t expert_num_tokens_round_up_and_sum(
    const TensorView& expert_num_tokens, std::int64_t alignment = kDeepGemmAlignment);

/// The same into `sum`, i64 [1], on the stream's device; on a GPU a negative count counts as 0.
SWITCHYARD_API void expert_num_tokens_round_up_and_sum(const TensorView& expert_num_tokens,
                                                       std::int64_t alignment,
                                                       const TensorView& sum, Stream stream,
                                                       const TensorView& num_errors = {});

/// M: the sum above when the counts are given, otherwise the maximum over all routings,
/// up(T K + min(T K, L) (alignment - 1), alignment).
///
/// Errors: kInvalidArgument (negative sizes, alignment below 1, overflow).
/// Source: vLLM, compute_aligned_M.
SWITCHYARD_API std::int64_t compute_aligned_m(std::int64_t num_tokens, std::int64_t num_topk,
                                              std::int64_t num_local_experts,
                                              std::int64_t alignment = kDeepGemmAlignment,
                                              const TensorView& expert_num_tokens = {});

/// What m_indices holds in rows without a token.
enum class CompatPadding : std::uint8_t {
  kNone,   ///< -1
  kOwner,  ///< vLLM until October 2025: the expert whose tile it is; 0 after the last expert
};

/// How permute and ep_scatter place rows.
struct PermuteOptions {
  TensorView expert_map{};         ///< i32 [E], or absent
  TensorView expert_num_tokens{};  ///< i32 [L], or absent; must equal the counts of the ids
  std::int64_t alignment = kDeepGemmAlignment;          ///< at least 1
  CompatPadding compat_padding = CompatPadding::kNone;  ///< of m_indices
};

/// Destination of every (token, choice). The rows of an expert are ordered by token, then choice.
struct PermutePlan {
  std::vector<std::int32_t> expert_num_tokens;  ///< [L] rows per expert
  std::vector<std::int64_t> first_row;  ///< [L] first row of each expert, a multiple of alignment
  Tensor m_indices;                     ///< i32 [M] local expert of each row
  Tensor inv_perm;                      ///< i32 [T, K] row of each choice, -1 for none

  std::int64_t num_rows() const { return m_indices.shape(0); }  ///< M
};

/// The plan alone, made in two passes over the ids.
///
///   topk_ids   [T, K], any strides
///   max_rows   rows of the buffer, at least as many as needed; -1: exactly as many
///
/// Errors: kInvalidArgument (shape, dtype, an id beyond the last expert, given counts that differ
/// from those of the ids, more than 65535 experts or 2^31 - 1 rows); kWorkspaceTooSmall when
/// max_rows is too small.
SWITCHYARD_API PermutePlan plan_permute(const TensorView& topk_ids, std::int32_t num_local_experts,
                                        const PermuteOptions& options = {},
                                        std::int64_t max_rows = -1);

/// Caller's memory that ep_scatter fills.
struct ScatterOutputs {
  TensorView x;          ///< [M, H] dtype of x, rows contiguous; padding rows are not written
  TensorView scales{};   ///< [M, S], any strides; 0 in rows without a token; absent: no scales
  TensorView m_indices;  ///< i32 [M], contiguous
  TensorView inv_perm;   ///< i32 [T, K], contiguous
  TensorView first_row;  ///< i64 [L], contiguous
  TensorView expert_num_tokens{};  ///< i32 [L], contiguous: rows per expert; or absent
  TensorView num_rows{};           ///< i64 [1]: number of rows that the ids need; or absent
};

/// Copies each row, with its scales, to the experts it is routed to. M may exceed what is needed.
///
///   x         [T, H]  any dtype, rows contiguous and of whole bytes (e2m1: H even), any row stride
///   scales    [T, S]  any dtype and strides, or absent
///   topk_ids  [T, K]  any strides
///
/// Scales keep their dtype or are packed: e8m0 or u8 [T, S] into i32 [M, cdiv(S, 4)], scale 4p + j
/// in byte j of word p. Their output strides select the layout: (S, 1) row-major, (1, M)
/// column-major, (1, up(M, 4)) column-major for TMA. Inputs and outputs must not overlap.
///
/// On a GPU M must be at least compute_aligned_m() of the shapes, which suffices for any routing (0
/// without local experts); outputs.num_rows receives the number of rows in use. `workspace` is
/// device memory aligned to 16 bytes and may be reused once the stream has passed this call; the
/// host needs none.
///
/// Errors: kInvalidArgument (shapes, dtypes, output strides whose elements overlap, an id beyond
/// the last expert, given counts that differ from those of the ids, more than 65535 experts or
/// 2^31 - 1 rows; on a GPU more than 2^31 - 1 choices); kWorkspaceTooSmall (M less than the ids
/// need, workspace).
/// Source: vLLM, ep_scatter, with a fixed order instead of that of its atomics.
SWITCHYARD_API void ep_scatter(const TensorView& x, const TensorView& scales,
                               const TensorView& topk_ids, const PermuteOptions& options,
                               const ScatterOutputs& outputs, Stream stream = Stream::host(),
                               std::span<std::byte> workspace = {},
                               const TensorView& num_errors = {});

/// Bytes of the workspace that ep_scatter and plan_permute need on a GPU, at most
/// 8 T K + 4 L (C + 1) + 64, where C = min(cdiv(T K, 256), 2^18 / L).
///
/// Errors: kInvalidArgument (sizes; more than 2^31 - 1 choices).
SWITCHYARD_API std::size_t ep_scatter_workspace_bytes(std::int64_t num_tokens,
                                                      std::int64_t num_topk,
                                                      std::int64_t num_local_experts);

/// ep_scatter on the GPU without x and scales; M is the length of outputs.m_indices.
SWITCHYARD_API void plan_permute(const TensorView& topk_ids, const PermuteOptions& options,
                                 const ScatterOutputs& outputs, Stream stream,
                                 std::span<std::byte> workspace = {},
                                 const TensorView& num_errors = {});

/// A permuted batch. The views are valid for its lifetime, and stay so when it is moved.
struct Permuted {
  TensorView x;          ///< [M, H]
  TensorView scales;     ///< [M, S]; a single scale for the tensor as given; or absent
  PermutePlan plan;      ///< where each row went
  Tensor x_memory;       ///< owns x, unless the caller gave the memory
  Tensor scales_memory;  ///< owns scales

  /// Input for Experts::apply, as views of this object: turns token-major layouts (compact,
  /// by_rank, all_gather) into the expert-major rows that experts expect.
  ///
  ///   tensor_scale  [1] f32: the global scale of nvfp4; else absent
  SWITCHYARD_API ExpertRows expert_rows(const QuantScheme& scheme = schemes::kNone,
                                        const TensorView& tensor_scale = {}) const;
};

/// How `permute` stores scales, and optional memory of the caller for rows.
struct PermuteMemory {
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< any but kSwizzled
  bool packs_scales = false;                          ///< e8m0 or u8 scales, four to an i32
  TensorView x{};  ///< [M, H] memory for the rows; absent: allocated
};

/// ep_scatter into newly allocated memory: M (H + S) elements for rows and scales, and
/// 4 (M + T K) + 12 L bytes for the plan. M is exactly what is needed, unless `memory.x` has more.
///
///   scales  as for ep_scatter, or [1]: one scale for the tensor, passed through unchanged
///
/// Errors: kInvalidArgument (shapes, dtypes, a scale layout that cannot be made, an id beyond the
/// last expert, given counts that differ from those of the ids), kWorkspaceTooSmall (memory.x),
/// kOutOfMemory.
/// Source: vLLM, deepgemm_moe_permute.
SWITCHYARD_API Permuted permute(const TensorView& x, const TensorView& scales,
                                const TensorView& topk_ids, std::int32_t num_local_experts,
                                const PermuteOptions& options = {},
                                const PermuteMemory& memory = {});

/// output[t] = round(sum over k ascending of fma(topk_weights[t, k], expert_output[inv_perm[t, k]],
/// sum)), skipping choices whose mapped id is negative; accumulated in f32 from +0, rounded once. A
/// token without experts gives +0. The bits are the same on every machine.
///
///   expert_output  [M, H]  bf16, f16 or f32; rows contiguous, any row stride
///   topk_ids       [T, K]  only the sign of the mapped id matters; any strides
///   topk_weights   [T, K]  f32, any strides; absent: 1 (the weights were applied to the input)
///   inv_perm       [T, K]  i32, any strides; entries of dropped choices are never read
///   output         [T, H]  bf16, f16 or f32; rows contiguous; must not overlap expert_output
///
/// Errors: kInvalidArgument (shapes, dtypes, an entry of inv_perm outside 0 to M - 1).
/// Source: vLLM, ep_gather.
SWITCHYARD_API void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
                              const TensorView& topk_weights, const TensorView& inv_perm,
                              const TensorView& expert_map, const TensorView& output,
                              Stream stream = Stream::host(), const TensorView& num_errors = {});

/// @{ ep_gather with a plan, which already excludes the dropped choices: by -1; on CPUs what is
/// below is kInvalidArgument. Source: vLLM, deepgemm_unpermute_and_reduce.
SWITCHYARD_API void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                                         const TensorView& topk_weights, const TensorView& output);
SWITCHYARD_API void unpermute_and_reduce(const TensorView& expert_output,
                                         const TensorView& inv_perm, const TensorView& topk_weights,
                                         const TensorView& output, Stream stream = Stream::host(),
                                         const TensorView& num_errors = {});
/// @}

}  // namespace switchyard
