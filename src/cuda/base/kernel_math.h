// SPDX-License-Identifier: Apache-2.0
//
// kernel_math.h: integer division by numbers known on the host, without a divide in the kernel. A
// kernel of a few microseconds spends most of its time waiting for its own instructions to arrive
// from memory, so fewer instructions make it faster.
#pragma once

#include <cstdint>
#include <vector>

#include "core/host_device.h"
#include "plan/expert_ownership.h"

namespace switchyard::cuda {

/// Computes n / divisor for 0 <= n < 2^31 with a multiplication and a shift (Granlund and
/// Montgomery, Division by invariant integers using multiplication, 1994).
struct FastDivisor {
  std::uint32_t divisor = 1;
  std::uint32_t factor = 0;
  std::uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(std::int64_t by) : divisor(static_cast<std::uint32_t>(by)) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    const std::uint64_t power = std::uint64_t{1} << (32 + shift);
    // For numerators below 2^31, ceil(2^(31 + shift) / divisor), which fits in 32 bits, gives exact
    // quotients.
    factor = divisor == 1 ? 0 : static_cast<std::uint32_t>((power / 2 + divisor - 1) / divisor);
  }

  SWITCHYARD_HOST_DEVICE std::int32_t quotient(std::int32_t n) const {
    if (divisor == 1) return n;
    const std::uint64_t product = std::uint64_t{static_cast<std::uint32_t>(n)} * factor;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(product >> 32) >> (shift - 1));
  }
};

/// ExpertOwnership for kernels: its divisors are prepared, or its table is in device memory.
struct KernelOwnership {
  std::int32_t num_experts = 0;
  std::int32_t num_ranks = 1;
  std::int32_t base = 0;       ///< experts per rank, rounded down
  std::int32_t extra = 0;      ///< the first ranks, which hold one more
  std::int32_t in_larger = 0;  ///< experts on those ranks together
  bool is_sliced = false;      ///< every rank holds every expert
  FastDivisor by_base;
  FastDivisor by_larger;
  /// [P + 1] the first expert of each rank, then E, and [E] the rank of each expert; null: equal
  /// numbers.
  const std::int32_t* table = nullptr;

  KernelOwnership() = default;
  /// `in_device`: where make_table() has gone, if ranks hold numbers of their own.
  explicit KernelOwnership(const ExpertOwnership& of, const std::int32_t* in_device = nullptr)
      : num_experts(of.num_experts),
        num_ranks(of.num_ranks),
        base(of.base()),
        extra(of.extra()),
        in_larger(of.extra() * (of.base() + 1)),
        is_sliced(of.is_sliced),
        by_base(of.base() > 0 ? of.base() : 1),
        by_larger(of.base() + 1),
        table(in_device) {}

  static std::vector<std::int32_t> make_table(const ExpertOwnership& of) {
    std::vector<std::int32_t> words;
    for (int rank = 0; rank <= of.num_ranks; ++rank) words.push_back(of.table[rank]);
    for (int expert = 0; expert < of.num_experts; ++expert) words.push_back(of.owner(expert));
    return words;
  }

  SWITCHYARD_HOST_DEVICE std::int32_t count(std::int32_t rank) const {
    if (table != nullptr) return table[rank + 1] - table[rank];
    return is_sliced ? num_experts : base + (rank < extra ? 1 : 0);
  }
  SWITCHYARD_HOST_DEVICE std::int32_t first(std::int32_t rank) const {
    if (table != nullptr) return table[rank];
    return is_sliced ? 0 : rank * base + (rank < extra ? rank : extra);
  }
  SWITCHYARD_HOST_DEVICE std::int32_t owner(std::int32_t expert) const {
    if (table != nullptr) return table[num_ranks + 1 + expert];
    if (expert < in_larger) return by_larger.quotient(expert);
    return extra + by_base.quotient(expert - in_larger);
  }
};

}  // namespace switchyard::cuda
