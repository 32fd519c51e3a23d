// SPDX-License-Identifier: Apache-2.0
//
// row_ranges.h: where the rows of each expert lie in one buffer, resolved inside kernels: counts
// are in GPU memory, which the host never reads, and are clamped to the size of the buffer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"
#include "core/round_up.h"

namespace switchyard::cuda {

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

struct RowRanges {
  const std::int64_t* first_row = nullptr;  ///< null: expert e begins at row e * capacity
  const std::int32_t* num_rows = nullptr;   ///< null: `capacity` rows each
  std::int64_t num_experts = 1;
  std::int64_t capacity = 0;    ///< max rows per expert
  std::int64_t total_rows = 0;  ///< in the buffer

  SWITCHYARD_HOST_DEVICE constexpr RowRange of(std::int64_t e) const {
    const std::int64_t first = first_row == nullptr ? e * capacity : first_row[e];
    const std::int64_t count = num_rows == nullptr ? capacity : num_rows[e];
    if (count <= 0 || first < 0 || first >= total_rows) return {};
    const std::int64_t room = total_rows - first < capacity ? total_rows - first : capacity;
    return {first, count < room ? count : room};
  }

  /// Upper bound on the number of tiles, each up to `tile_rows` rows of one expert; sizes a grid.
  std::int64_t max_tiles(std::int64_t tile_rows) const {
    if (capacity == 0) return 0;
    const std::int64_t of_each = cdiv(capacity, tile_rows);
    const std::int64_t of_all = total_rows / tile_rows + num_experts;
    return num_experts > of_all / of_each ? of_all : num_experts * of_each;
  }
};

/// Grid for kernels whose blocks stride over the rows of an expert; most experts have far fewer
/// rows than `capacity`.
struct RowBlocks {
  unsigned rows = 0;
  unsigned experts = 0;
};

inline RowBlocks blocks_of(const RowRanges& ranges) {
  constexpr std::int64_t kBlocksInFlight = 4096;
  const std::int64_t most =
      ranges.num_rows == nullptr
          ? std::int64_t{0x7FFFFFFF}
          : cdiv(kBlocksInFlight, std::max<std::int64_t>(1, ranges.num_experts));
  return {static_cast<unsigned>(std::min(most, ranges.capacity)),
          static_cast<unsigned>(std::min<std::int64_t>(ranges.num_experts, 65535))};
}

}  // namespace switchyard::cuda
