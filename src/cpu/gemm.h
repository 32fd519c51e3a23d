// SPDX-License-Identifier: Apache-2.0
//
// gemm.h: y = x * w^T in a fixed order: each output is one f32 chain acc = fma(x[k], w[n][k], acc),
// k ascending, from +0. A row of y depends only on its row of x, with the same bits everywhere.
//
// Weights are stored in panels of kPanel outputs, [cdiv(n, kPanel)][k][kPanel], so that one vector
// load covers adjacent outputs of one k. Unused outputs of the last panel are zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "switchyard/dtype.h"

namespace switchyard {

inline constexpr std::int64_t kPanel = 32;

/// The depth is split into blocks, so that a panel and a block of rows stay in the L1 cache. Sums
/// are kept in y between blocks, which does not change their bits. With few rows the whole depth is
/// processed at once, so that weights come from memory as one stream.
inline constexpr std::int64_t kDepthBlock = 256;
inline constexpr std::int64_t kFewRows = 24;

/// A view of one matrix's packed weights.
struct PackedMatrix {
  const std::byte* panels = nullptr;  ///< 64-byte aligned
  DType dtype = DType::kBF16;         ///< bf16 or f32
  std::int64_t num_panels = 0;
  std::int64_t depth = 0;  ///< k
};

/// Floats of scratch that gemm needs for up to `num_rows` rows: the rows' elements of one block of
/// the depth.
constexpr std::int64_t gemm_scratch_floats(std::int64_t num_rows, std::int64_t depth) {
  return std::max(std::min(num_rows, kFewRows) * depth, num_rows * std::min(depth, kDepthBlock));
}

/// Writes y[r][0 ... num_panels * kPanel - 1] for `num_rows` rows r.
///
///   x  rows of w.depth elements, `x_stride` floats apart
///   y  rows `y_stride` floats apart; holds intermediate sums meanwhile, so it must not overlap x
void gemm(const float* x, std::int64_t x_stride, std::int64_t num_rows, const PackedMatrix& w,
          float* y, std::int64_t y_stride, float* scratch);

}  // namespace switchyard
