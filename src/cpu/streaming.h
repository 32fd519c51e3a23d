// SPDX-License-Identifier: Apache-2.0
//
// streaming.h: copies rows, bypassing the caches where that pays off.
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

/// Whether rows should bypass the last-level cache, because it cannot keep them until they are
/// read: then no line is fetched only to be overwritten. `bytes` is what each of `num_ranks` ranks
/// of this host writes in one operation. A cache that is larger than kMost serves a whole socket
/// and is slow: on an Intel Xeon with 480 MiB, streaming 118 MB saves 5 % of a dispatch and 10 % of
/// a combine.
inline bool wants_streaming(std::size_t bytes, int num_ranks) {
  static const long cache_bytes = [] {
    constexpr long kMost = 32L << 20;
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return found > 0 ? std::min(found, kMost) : kMost;
  }();
  return bytes * static_cast<std::size_t>(num_ranks) > static_cast<std::size_t>(cache_bytes);
}

/// Copies one row to several places. Streaming stores need aligned rows; others are copied by
/// memcpy. The caller must fence before it announces the rows.
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
