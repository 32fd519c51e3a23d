// SPDX-License-Identifier: Apache-2.0
//
// permute.h: counts -> starts -> destinations of the aligned permute. Pure integers; callers have
// checked shapes.
//
// Letters: T tokens, K choices a token, L local experts, E global experts, M rows of the buffer.
#pragma once

#include <cstdint>
#include <span>

#include "switchyard/permute.h"

#include "core/host_device.h"

namespace switchyard {

/// topk ids [T, K] as they lie in the caller's memory; strides count elements.
struct IdTable {
  const void* data = nullptr;
  bool is_64_bit = false;
  std::int64_t num_tokens = 0;
  std::int64_t num_topk = 0;
  std::int64_t token_stride = 0;
  std::int64_t choice_stride = 1;

  SWITCHYARD_HOST_DEVICE std::int64_t at(std::int64_t t, std::int64_t k) const {
    const std::int64_t i = t * token_stride + k * choice_stride;
    if (is_64_bit) return static_cast<const std::int64_t*>(data)[i];
    return static_cast<const std::int32_t*>(data)[i];
  }
};

/// Global id to local index. Without a map an id is local already. Negative ids are never an index.
struct ExpertLookup {
  const std::int32_t* map = nullptr;
  std::int64_t num_experts = 0;  ///< E; ids must be below, see check_ids
  std::int64_t stride = 1;

  /// Whether `local` may be asked: the map has an entry, or the id needs none.
  SWITCHYARD_HOST_DEVICE bool knows(std::int64_t id) const {
    return map == nullptr || id < num_experts;
  }
  SWITCHYARD_HOST_DEVICE std::int64_t local(std::int64_t id) const {
    return map == nullptr || id < 0 ? id : map[id * stride];
  }
};

/// Refuses ids that the map has no entry for. Errors: kInvalidArgument, starting with `function`.
void check_ids(const char* function, const IdTable& ids, const ExpertLookup& lookup);

/// counts[e] = choices that name local expert e; others are skipped. Errors: kInvalidArgument when
/// a choice names an expert from L on and `is_strict`, or a count is beyond 2^31 - 1.
void count_experts(const char* function, const IdTable& ids, const ExpertLookup& lookup,
                   bool is_strict, std::span<std::int32_t> counts);

/// value rounded up. Errors: kInvalidArgument (alignment below 1, value negative, overflow).
std::int64_t checked_align_up(const char* function, std::int64_t value, std::int64_t alignment);

/// first_row[e] = sum of earlier counts, each rounded up; returns the sum over all. `first_row` may
/// be empty.
std::int64_t start_experts(const char* function, std::span<const std::int32_t> counts,
                           std::int64_t alignment, std::span<std::int64_t> first_row);

/// inv_perm[t, k] (contiguous) = the next row of its expert, by (token, k); -1 for no expert.
/// `next_row` is first_row on entry and first_row + counts afterwards.
void assign_rows(const IdTable& ids, const ExpertLookup& lookup, std::span<std::int64_t> next_row,
                 std::int32_t* inv_perm);

/// m_indices [M] of rows with a token and of padding.
void mark_rows(std::span<const std::int32_t> counts, std::span<const std::int64_t> first_row,
               std::int64_t alignment, CompatPadding padding, std::span<std::int32_t> m_indices);

}  // namespace switchyard
