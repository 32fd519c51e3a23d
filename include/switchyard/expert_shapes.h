// SPDX-License-Identifier: Apache-2.0
//
// expert_shapes.h: sizes that experts are described by: where each expert's rows lie in the layouts
// of grouped GEMMs, the problem size, and the workspaces that the usual kinds of experts want. Pure
// functions, for users who bring their own experts.
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

/// Contiguous layout of DeepGEMM: m_indices [M] i32 names the expert of each row, negative for
/// padding. All rows of a tile belong to one expert and its padding follows them; the tiles of an
/// expert follow each other, in any order of experts. A tile of padding is skipped.
///
/// Errors: kInvalidArgument (shape, dtype, an index that is not below `num_experts`, two experts in
/// a tile, an expert's rows in pieces).
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
  kNaiveBatched,  ///< expert after expert over [L, capacity, H]
  kContiguous,    ///< grouped GEMM over permuted rows
};

struct ExpertWorkspaceSizes {
  std::int64_t num_experts = 0;        ///< L
  std::int64_t hidden = 0;             ///< H
  std::int64_t outputs = 0;            ///< N
  bool is_gated = true;                ///< the activation halves N
  std::int64_t max_tokens = 0;         ///< batched kinds: tokens of a rank, at most
  std::int64_t num_dispatchers = 0;    ///< batched kinds: ranks that can send
  std::int64_t num_rows = 0;           ///< kContiguous: M, rows before they are permuted
  std::int64_t num_permuted_rows = 0;  ///< kContiguous: with the padding of tiles
};

/// Shapes in elements.
struct ExpertWorkspaceShapes {
  std::vector<std::int64_t> workspace13;  ///< results of both GEMMs, which never live together
  std::vector<std::int64_t> workspace2;   ///< the activation
  std::vector<std::int64_t> output;

  /// Elements of the one allocation that workspace13 and output share.
  SWITCHYARD_API std::int64_t shared_elements() const;
};

/// Mirrors workspace_shapes of vLLM's batched Triton, naive batched and DeepGEMM experts.
///
/// Errors: kInvalidArgument when a size is negative, a gated N is odd or a shape overflows.
SWITCHYARD_API ExpertWorkspaceShapes expert_workspace_shapes(ExpertWorkspaceKind kind,
                                                             const ExpertWorkspaceSizes& sizes);

}  // namespace switchyard
