// SPDX-License-Identifier: Apache-2.0
//
// streaming.h: copies of rows, past the caches where that pays.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "cpu/copy_rows.h"
#include "plan/window_layout.h"

namespace switchyard {

/// Rows that the last-level cache cannot keep until they are read are better written past it: no
/// line is fetched only to be overwritten. `bytes` is what one of `num_ranks` ranks of this host
/// writes in an operation.
inline bool wants_streaming(std::size_t bytes, int num_ranks) {
  static const std::size_t cache_bytes = [] {
    constexpr long kUnknown = 32L << 20;
    const long bytes_of_cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return static_cast<std::size_t>(bytes_of_cache > 0 ? bytes_of_cache : kUnknown);
  }();
  return bytes * static_cast<std::size_t>(num_ranks) > cache_bytes;
}

/// One row to several places. Streaming stores want aligned rows; others are copied as usual. The
/// caller fences before it announces the rows.
inline void copy_row(const std::byte* from, std::span<std::byte* const> to, std::size_t bytes,
                     bool streaming) {
  const bool aligned = std::all_of(to.begin(), to.end(), [](const std::byte* row) {
    return reinterpret_cast<std::uintptr_t>(row) % kRowAlignment == 0;
  });
  if (streaming && aligned) {
    copy_row_to_many(from, to.data(), static_cast<int>(to.size()), bytes);
    return;
  }
  for (std::byte* row : to) std::memcpy(row, from, bytes);
}

}  // namespace switchyard
