// SPDX-License-Identifier: Apache-2.0
//
// permute.h: counts -> starts -> destinations of the aligned permute. Pure integer functions;
// callers have checked the shapes.
//
// Letters: T tokens, K choices per token, L local experts, E global experts, M rows of the buffer.
#pragma once

#include <cstdint>
#include <span>

#include "switchyard/permute.h"

#include "core/host_device.h"

namespace switchyard {

/// topk ids [T, K] in the caller's memory; strides are in elements.
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

/// Maps global expert ids to local indices. Without a map, ids are already local. A negative id
/// means "no expert" and maps to itself.
struct ExpertLookup {
  const std::int32_t* map = nullptr;
  std::int64_t num_experts = 0;  ///< E; ids must be below it, see check_ids
  std::int64_t stride = 1;

  /// Whether `local(id)` may be called: the map has an entry for `id`, or none is needed.
  SWITCHYARD_HOST_DEVICE bool knows(std::int64_t id) const {
    return map == nullptr || id < num_experts;
  }
  SWITCHYARD_HOST_DEVICE std::int64_t local(std::int64_t id) const {
    return map == nullptr || id < 0 ? id : map[id * stride];
  }
};

/// Rejects ids that have no entry in the map. Errors: kInvalidArgument; the message begins with
/// `function`.
void check_ids(const char* function, const IdTable& ids, const ExpertLookup& lookup);

/// counts[e] = number of choices that name local expert e; other choices are skipped. Errors:
/// kInvalidArgument when the map has no entry for an id, when a choice names a local expert of L or
/// above and `is_strict` is set, or when a count exceeds 2^31 - 1.
void count_experts(const char* function, const IdTable& ids, const ExpertLookup& lookup,
                   bool is_strict, std::span<std::int32_t> counts);

/// `value` rounded up to a multiple of `alignment`. Errors: kInvalidArgument (alignment below 1,
/// negative value, overflow).
std::int64_t checked_align_up(const char* function, std::int64_t value, std::int64_t alignment);

/// first_row[e] = sum of the counts before e, each rounded up to `alignment`. Returns the sum over
/// all experts. `first_row` may be empty. Errors: those of checked_align_up.
std::int64_t start_experts(const char* function, std::span<const std::int32_t> counts,
                           std::int64_t alignment, std::span<std::int64_t> first_row);

/// inv_perm[t, k] (contiguous) = the next row of its expert, in (token, k) order; -1 for no expert.
/// `next_row` holds first_row on entry and first_row + counts on return.
void assign_rows(const IdTable& ids, const ExpertLookup& lookup, std::span<std::int64_t> next_row,
                 std::int32_t* inv_perm);

/// Fills m_indices [M], for rows that hold a token and for padding rows.
void mark_rows(std::span<const std::int32_t> counts, std::span<const std::int64_t> first_row,
               std::int64_t alignment, CompatPadding padding, std::span<std::int32_t> m_indices);

}  // namespace switchyard
