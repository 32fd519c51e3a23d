// SPDX-License-Identifier: Apache-2.0
//
// carver.h: carves a block of memory into aligned parts, or only counts the bytes they need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bytes.h"

namespace switchyard {

class Carver {
 public:
  /// `base` is a multiple of `alignment`, or null to only count bytes.
  Carver(std::byte* base, std::size_t alignment) : base_(base), alignment_(alignment) {}

  /// Errors: kInvalidArgument when the sum overflows.
  std::byte* carve(std::size_t bytes) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ = checked_add(used_, align_up(bytes, alignment_));
    return part;
  }
  float* carve_floats(std::int64_t rows, std::int64_t columns) {
    const auto count = static_cast<std::size_t>(checked_mul(rows, columns));
    return reinterpret_cast<float*>(carve(checked_mul(count, sizeof(float))));
  }
  std::size_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::size_t alignment_;
  std::size_t used_ = 0;
};

/// The first multiple of `alignment` at or after `memory`.
inline std::byte* aligned(std::byte* memory, std::size_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return memory + (align_up(address, static_cast<std::uintptr_t>(alignment)) - address);
}

}  // namespace switchyard
