// SPDX-License-Identifier: Apache-2.0
//
// compat_rows.h: the small kernels of the calls that other libraries have: counts, ids and rows in
// the form in which those hand them out. Callers have checked shapes.
#pragma once

#include <cstdint>

#include "switchyard/stream.h"

#include "plan/expert_ownership.h"
#include "plan/permute.h"

namespace switchyard::cuda {

/// Elements of the rows from count on become `value`, in each block of rows.
struct FillTailsArgs {
  void* data = nullptr;            ///< [B, R, W], contiguous
  std::int32_t element_bytes = 4;  ///< 4 or 1
  std::int32_t value = 0;
  std::int32_t num_blocks = 0;             ///< B
  std::int64_t rows_per_block = 0;         ///< R
  std::int64_t elements_per_row = 0;       ///< W
  const std::int32_t* num_rows = nullptr;  ///< [B] rows of each block that stay
};
void fill_tails(const FillTailsArgs& args, Stream stream);

/// Rows of an expert are ordered by source rank: where those of each rank lie.
struct RowSegmentsArgs {
  const std::int32_t* source_rank = nullptr;  ///< [L, C]
  const std::int32_t* num_rows = nullptr;     ///< [L]
  std::int32_t num_local = 0;                 ///< L
  std::int64_t capacity = 0;                  ///< C
  std::int32_t num_ranks = 0;                 ///< P
  /// [L, P], written: low 32 bits: rows from the rank; high 32: the first of them; 0 without rows.
  std::int64_t* segments = nullptr;
  std::int32_t* totals = nullptr;  ///< [L] += num_rows; or null
};
void find_row_segments(const RowSegmentsArgs& args, Stream stream);

/// weights[i] = 0 where ids[i] is negative.
struct MaskWeightsArgs {
  const std::int32_t* ids = nullptr;
  float* weights = nullptr;
  std::int64_t num_elements = 0;
};
void mask_weights(const MaskWeightsArgs& args, Stream stream);

/// ends[i] = start of i, plus its count, or with ends_are_aligned its count rounded up; each starts
/// where the rounded-up counts before it end.
struct RunningSumsArgs {
  const std::int32_t* counts = nullptr;  ///< [size]
  std::int32_t* ends = nullptr;          ///< [size], written
  std::int32_t size = 0;
  std::int64_t alignment = 1;
  bool ends_are_aligned = true;
};
void running_sums(const RunningSumsArgs& args, Stream stream);

/// Which ranks a token goes to.
struct SentTokensArgs {
  IdTable ids;  ///< what is not an expert counts as none
  ExpertOwnership ownership;
  std::int32_t* num_tokens_per_rank = nullptr;  ///< [P], written
  std::uint8_t* is_token_in_rank = nullptr;     ///< [T, P], written
};
void count_sent_tokens(const SentTokensArgs& args, Stream stream);

}  // namespace switchyard::cuda
