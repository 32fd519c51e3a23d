// SPDX-License-Identifier: Apache-2.0
//
// row_block.h: some rows of a message between hosts.
#pragma once

#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace switchyard {

/// Rows by their numbers, from `first` to before `end`.
struct RowBlock {
  std::int32_t first = 0;
  std::int32_t end = std::numeric_limits<std::int32_t>::max();

  SWITCHYARD_HOST_DEVICE bool has(std::int32_t number) const {
    return number >= first && number < end;
  }
  /// How many of `num_rows` there are.
  SWITCHYARD_HOST_DEVICE std::int64_t count(std::int64_t num_rows) const {
    const std::int64_t last = end < num_rows ? end : num_rows;
    return last > first ? last - first : 0;
  }
};

}  // namespace switchyard
