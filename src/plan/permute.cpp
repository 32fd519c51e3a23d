// SPDX-License-Identifier: Apache-2.0
//
// A counting sort of (token, choice) by expert: two passes over the ids with a prefix sum in
// between. Walking the ids in order makes the sort stable, which gives the promised row order.

#include "plan/permute.h"

#include <algorithm>
#include <limits>

#include "core/bytes.h"

namespace switchyard {
namespace {

// Calls visit(t, k, id) for every choice, in order.
template <typename Visit>
void for_each_id(const IdTable& ids, const Visit& visit) {
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    for (std::int64_t k = 0; k < ids.num_topk; ++k) visit(t, k, ids.at(t, k));
  }
}

}  // namespace

void check_ids(const char* function, const IdTable& ids, const ExpertLookup& lookup) {
  if (lookup.map == nullptr) return;
  for_each_id(ids, [&](std::int64_t t, std::int64_t k, std::int64_t id) {
    require(lookup.knows(id), Errc::kInvalidArgument,
            "{}: topk_ids[{}, {}] is {}, but expert_map has {} entries", function, t, k, id,
            lookup.num_experts);
  });
}

void count_experts(const char* function, const IdTable& ids, const ExpertLookup& lookup,
                   bool is_strict, std::span<std::int32_t> counts) {
  check_ids(function, ids, lookup);
  std::fill(counts.begin(), counts.end(), 0);
  const auto num_local = static_cast<std::int64_t>(counts.size());
  for_each_id(ids, [&](std::int64_t t, std::int64_t k, std::int64_t id) {
    const std::int64_t expert = lookup.local(id);
    if (expert < 0) return;
    if (expert >= num_local) {
      require(!is_strict, Errc::kInvalidArgument,
              "{}: topk_ids[{}, {}] is {}, which is local expert {}, but there are {}", function, t,
              k, id, expert, num_local);
      return;
    }
    std::int32_t& count = counts[static_cast<std::size_t>(expert)];
    require(count < std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
            "{}: expert {} has more than 2^31 - 1 tokens", function, expert);
    ++count;
  });
}

std::int64_t checked_align_up(const char* function, std::int64_t value, std::int64_t alignment) {
  require(alignment >= 1, Errc::kInvalidArgument, "{}: alignment is {}, must be at least 1",
          function, alignment);
  require(value >= 0, Errc::kInvalidArgument, "{}: a count is {}, must not be negative", function,
          value);
  return checked_mul(value / alignment + (value % alignment == 0 ? 0 : 1), alignment);
}

std::int64_t start_experts(const char* function, std::span<const std::int32_t> counts,
                           std::int64_t alignment, std::span<std::int64_t> first_row) {
  std::int64_t next = checked_align_up(function, 0, alignment);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (!first_row.empty()) first_row[e] = next;
    next = checked_add(next, checked_align_up(function, counts[e], alignment));
  }
  return next;
}

void assign_rows(const IdTable& ids, const ExpertLookup& lookup, std::span<std::int64_t> next_row,
                 std::int32_t* inv_perm) {
  for_each_id(ids, [&](std::int64_t, std::int64_t, std::int64_t id) {
    const std::int64_t expert = lookup.local(id);
    *inv_perm++ =
        expert < 0 ? -1 : static_cast<std::int32_t>(next_row[static_cast<std::size_t>(expert)]++);
  });
}

void mark_rows(std::span<const std::int32_t> counts, std::span<const std::int64_t> first_row,
               std::int64_t alignment, CompatPadding padding, std::span<std::int32_t> m_indices) {
  const bool is_owned = padding == CompatPadding::kOwner;
  std::fill(m_indices.begin(), m_indices.end(), is_owned ? 0 : -1);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const std::int64_t count = counts[e];
    std::fill_n(m_indices.begin() + first_row[e], is_owned ? align_up(count, alignment) : count,
                static_cast<std::int32_t>(e));
  }
}

}  // namespace switchyard
