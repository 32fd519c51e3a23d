// SPDX-License-Identifier: Apache-2.0
//
// even_parts.h: splits n items into parts whose sizes differ by at most one, such as tokens over
// micro-batches or ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard {

/// The first item of part `part`, which runs from 0 to num_parts; at num_parts the result is n. The
/// first n mod num_parts parts have one item more than the others; parts may be empty.
constexpr std::int64_t part_begin(std::int64_t n, std::int64_t num_parts, std::int64_t part) {
  return n / num_parts * part + std::min(part, n % num_parts);
}

}  // namespace switchyard
