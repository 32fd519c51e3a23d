// SPDX-License-Identifier: Apache-2.0
//
// overflow.h: which choices are dropped when an expert is sent more rows than its capacity. A pure
// function of all ids, all weights and the capacity, so every rank computes the same result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/routing.h"

namespace switchyard {

/// The first expert with more rows than `capacity`; -1 when all fit.
std::int32_t find_overflow(std::span<const std::int64_t> expert_load, std::int64_t capacity);

/// Removes the choices beyond `capacity` from the routing table. An expert keeps the rows with the
/// largest weights; ties go to the earlier (rank, token, k). Absent weights count as 1, NaN as less
/// than any other weight.
///
///   ids  [P] output: for each rank that loses a choice, a copy of its ids without that choice, to
///        which its entry of `table` then points; empty for the other ranks
void drop_overflow(int num_topk, std::int64_t capacity, std::span<const std::int64_t> expert_load,
                   std::span<RankRouting> table, std::vector<std::vector<std::uint16_t>>& ids);

}  // namespace switchyard
