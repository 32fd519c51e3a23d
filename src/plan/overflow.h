// SPDX-License-Identifier: Apache-2.0
//
// overflow.h: which choices are dropped when more rows want an expert than it accepts. A pure
// function of all ids, all weights and the capacity, so every rank finds the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/routing.h"

namespace switchyard {

/// An expert with more rows than `capacity`, the first such; -1 when all fit.
std::int32_t find_overflow(std::span<const std::int64_t> expert_load, std::int64_t capacity);

/// The routing table without what does not fit: an expert keeps the rows of the largest weights,
/// ties to the earlier (rank, token, k); without weights all are 1, NaN counts as the least.
///
///   ids  [P] written: for each rank that loses a choice a copy of its ids, which its entry of
///        `table` then points to; empty for the others
void drop_overflow(int num_topk, std::int64_t capacity, std::span<const std::int64_t> expert_load,
                   std::span<RankRouting> table, std::vector<std::vector<std::uint16_t>>& ids);

}  // namespace switchyard
