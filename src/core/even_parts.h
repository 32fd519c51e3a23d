// SPDX-License-Identifier: Apache-2.0
//
// even_parts.h: n things in parts that differ by one at most: the tokens of micro-batches, of
// ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard {

/// Where part `part` of `num_parts` begins, from 0 to num_parts: there it is n. The first n mod
/// num_parts parts have one more than the others; parts may be empty.
constexpr std::int64_t part_begin(std::int64_t n, std::int64_t num_parts, std::int64_t part) {
  return n / num_parts * part + std::min(part, n % num_parts);
}

}  // namespace switchyard
