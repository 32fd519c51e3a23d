// SPDX-License-Identifier: Apache-2.0
//
// expert_shapes.h: sizes that describe experts: the rows of each expert in the layouts of grouped
// GEMMs, the problem size, and the workspaces of the usual kinds of experts. Pure functions, for
// users who bring their own experts.
//
// Letters used for shapes in this header:
//   L  local experts     H  elements per row (hidden)     K  experts chosen per token
//   M  rows              N  outputs of the first matrix: 2 I when it holds gate and up
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Owns the ranges that ExpertRows points to.
struct ExpertRanges {
  std::vector<std::int64_t> first_row;  ///< [L]
  std::vector<std::int32_t> num_rows;   ///< [L]
};

/// Masked layout [L, capacity, H]: expert e owns rows 0 to counts[e] - 1 of its block.
///
/// Errors: kInvalidArgument when a count is outside [0, capacity].
SWITCHYARD_API ExpertRanges expert_ranges_from_counts(std::span<const std::int32_t> counts,
                                                      std::int64_t capacity);

/// DeepGEMM's contiguous layout: m_indices [M] i32 names the expert of each row; negative is
/// padding. All rows of a tile belong to one expert, followed by its padding. The tiles of one
/// expert are adjacent; experts may come in any order. Tiles of nothing but padding are skipped.
///
/// Errors: kInvalidArgument (shape, dtype, an index of `num_experts` or more, two experts in one
/// tile, tiles of an expert that are not adjacent).
SWITCHYARD_API ExpertRanges expert_ranges_from_m_indices(const TensorView& m_indices,
                                                         std::int32_t num_experts,
                                                         std::int64_t tile_rows = 128);

struct MoeProblemSize {
  std::int64_t num_experts = 0;  ///< L
  std::int64_t num_rows = 0;     ///< M: rows of a1, or of each expert's block
  std::int64_t outputs = 0;      ///< N
  std::int64_t hidden = 0;       ///< H
  std::int64_t num_topk = 0;     ///< K

  friend bool operator==(const MoeProblemSize&, const MoeProblemSize&) = default;
};

/// Mirrors vLLM's moe_problem_size.
///
///   a1        [M, H], or [L, M, H] batched
///   w1        [L, N, H]
///   w2        [L, H, N or N / 2]
///   topk_ids  [T, K]; T = M unless a1 is batched
///
/// Errors: kInvalidArgument.
SWITCHYARD_API MoeProblemSize moe_problem_size(const TensorView& a1, const TensorView& w1,
                                               const TensorView& w2, const TensorView& topk_ids);

enum class ExpertWorkspaceKind : std::uint8_t {
  kBatched,       ///< masked grouped GEMM over [L, capacity, H]
  kNaiveBatched,  ///< one expert after another over [L, capacity, H]
  kContiguous,    ///< grouped GEMM over permuted rows
};

struct ExpertWorkspaceSizes {
  std::int64_t num_experts = 0;        ///< L
  std::int64_t hidden = 0;             ///< H
  std::int64_t outputs = 0;            ///< N
  bool is_gated = true;                ///< the activation halves N
  std::int64_t max_tokens = 0;         ///< batched kinds: maximum tokens per rank
  std::int64_t num_dispatchers = 0;    ///< batched kinds: ranks that can send
  std::int64_t num_rows = 0;           ///< kContiguous: M, rows before permutation
  std::int64_t num_permuted_rows = 0;  ///< kContiguous: rows after it, tile padding included
};

/// Shapes in elements. Both GEMM results share a workspace, because they never live at the same
/// time.
struct ExpertWorkspaceShapes {
  std::vector<std::int64_t> workspace13;  ///< GEMM results; kContiguous: the activation
  std::vector<std::int64_t> workspace2;   ///< the activation; kContiguous: GEMM results
  std::vector<std::int64_t> output;

  /// Elements of the single allocation that workspace13 and output share.
  SWITCHYARD_API std::int64_t shared_elements() const;
};

/// Mirrors workspace_shapes of vLLM's batched Triton, naive batched and DeepGEMM experts.
///
/// Errors: kInvalidArgument when a size is negative, a gated N is odd or a shape overflows.
SWITCHYARD_API ExpertWorkspaceShapes expert_workspace_shapes(ExpertWorkspaceKind kind,
                                                             const ExpertWorkspaceSizes& sizes);

}  // namespace switchyard
