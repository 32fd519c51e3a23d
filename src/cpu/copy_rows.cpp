// SPDX-License-Identifier: Apache-2.0
//
// Streaming stores need a destination aligned to the vector. Rows are aligned to 16 bytes only, so
// 16-byte stores lead up to a vector boundary, whole vectors follow, and 16-byte stores and plain
// bytes complete the row.
#include "cpu/copy_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/copy_rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes16 = hn::CappedTag<std::uint8_t, 16>;
using Bytes = hn::ScalableTag<std::uint8_t>;

// Copies [begin, end), a multiple of the vector. Every destination is vector-aligned at `begin`.
template <typename D>
HWY_ATTR void stream_range(D d, const std::uint8_t* from, std::byte* const* to, int num_to,
                           std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, from + i);
    for (int j = 0; j < num_to; ++j) {
      hn::Stream(v, d, reinterpret_cast<std::uint8_t*>(to[j]) + i);
    }
  }
}

// Bytes up to the next vector boundary, or all of them if the destinations are aligned differently.
std::size_t head_bytes(std::byte* const* to, int num_to, std::size_t vector, std::size_t bytes) {
  const std::size_t first = reinterpret_cast<std::uintptr_t>(to[0]) % vector;
  for (int j = 1; j < num_to; ++j) {
    if (reinterpret_cast<std::uintptr_t>(to[j]) % vector != first) return bytes;
  }
  return std::min(first == 0 ? 0 : vector - first, bytes);
}

HWY_ATTR void copy_to_some(const std::byte* from, std::byte* const* to, int num_to,
                           std::size_t bytes) {
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  const std::size_t vector = hn::Lanes(Bytes());
  const std::size_t streamed = bytes / 16 * 16;
  const std::size_t head = head_bytes(to, num_to, vector, streamed);
  const std::size_t body = head + (streamed - head) / vector * vector;
  stream_range(Bytes16(), source, to, num_to, 0, head);
  stream_range(Bytes(), source, to, num_to, head, body);
  stream_range(Bytes16(), source, to, num_to, body, streamed);
  for (int j = 0; j < num_to && streamed < bytes; ++j) {
    std::memcpy(to[j] + streamed, from + streamed, bytes - streamed);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {

HWY_EXPORT(copy_to_some);

void copy_row_streaming(const std::byte* from, std::byte* to, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_to_some)(from, &to, 1, bytes);
}

void copy_row_to_many(const std::byte* from, std::byte* const* to, int num_to, std::size_t bytes) {
  // A core sustains only a handful of write-combining streams; more would evict half-full lines.
  constexpr int kStreams = 8;
  for (int first = 0; first < num_to; first += kStreams) {
    HWY_DYNAMIC_DISPATCH(copy_to_some)(from, to + first, std::min(kStreams, num_to - first), bytes);
  }
}

}  // namespace switchyard
#endif  // HWY_ONCE
