// SPDX-License-Identifier: Apache-2.0
//
// copy_rows.h: copies rows that another core will read, bypassing this core's caches. The writer
// never reads such a row again, so non-temporal stores avoid the line fill and preserve its cache.
#pragma once

#include <cstddef>

namespace switchyard {

/// `to` is 16-byte aligned; `from` needs no alignment. Exactly `bytes` bytes are written, any
/// number. The stores are weakly ordered: call streaming_store_fence() (core/fence.h) before the
/// store that publishes them.
void copy_row_streaming(const std::byte* from, std::byte* to, std::size_t bytes);

/// Copies one row to `num_to` places; the source is read once per 8 of them.
void copy_row_to_many(const std::byte* from, std::byte* const* to, int num_to, std::size_t bytes);

}  // namespace switchyard
