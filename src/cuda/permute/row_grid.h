// SPDX-License-Identifier: Apache-2.0
//
// row_grid.h: grids for kernels that copy or sum rows of words. Each row has its own block or, if
// there are few rows, is split over several blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/round_up.h"

namespace switchyard::cuda {

struct RowGrid {
  unsigned num_threads = 0;
  unsigned num_parts = 0;
  std::int64_t part_words = 0;  ///< words per part, except the last
};

/// Uses the fewest threads that need no more steps than 256 would, so that the last step is full.
inline RowGrid row_grid(std::int64_t num_rows, std::int64_t num_words) {
  constexpr std::int64_t kWantedBlocks = 1024;
  constexpr std::int64_t kMaxThreads = 256;
  constexpr std::int64_t kMinThreads = 64;
  const std::int64_t words = std::max<std::int64_t>(1, num_words);
  const std::int64_t wanted = kWantedBlocks / std::max<std::int64_t>(1, num_rows);
  const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, cdiv<std::int64_t>(words, 128));
  RowGrid grid;
  grid.part_words = cdiv(words, parts);
  grid.num_parts = static_cast<unsigned>(cdiv(words, grid.part_words));
  const std::int64_t num_steps = cdiv(grid.part_words, kMaxThreads);
  const std::int64_t threads = align_up<std::int64_t>(cdiv(grid.part_words, num_steps), 32);
  grid.num_threads = static_cast<unsigned>(std::clamp(threads, kMinThreads, kMaxThreads));
  return grid;
}

/// Whether rows begin at multiples of `bytes`.
inline bool has_aligned_rows(const void* data, std::int64_t stride_bytes, std::int64_t num_rows,
                             std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         (num_rows <= 1 || stride_bytes % bytes == 0);
}

}  // namespace switchyard::cuda
