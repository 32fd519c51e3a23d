// SPDX-License-Identifier: Apache-2.0
//
// overflow_key.h: choices as numbers in the order of plan/overflow.h: by expert, then the largest
// weight first. Ties are left to a stable sort.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "quant/bits.h"

namespace switchyard::cuda {

inline constexpr int kWeightKeyBits = 32;

/// Smaller for a larger weight. Both zeros are equal; NaN equals minus infinity.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t weight_key(float weight) {
  constexpr std::uint32_t kSign = 0x80000000u;
  std::uint32_t bits = bits_from_f32(weight);
  if ((bits & ~kSign) > kF32Infinity) bits = kSign | kF32Infinity;
  if (bits == kSign) bits = 0;
  const std::uint32_t ascending = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return ~ascending;
}

SWITCHYARD_HOST_DEVICE constexpr std::uint64_t overflow_key(std::int32_t expert, float weight) {
  return std::uint64_t{static_cast<std::uint32_t>(expert)} << kWeightKeyBits | weight_key(weight);
}
SWITCHYARD_HOST_DEVICE constexpr std::int32_t expert_of_key(std::uint64_t key) {
  return static_cast<std::int32_t>(key >> kWeightKeyBits);
}
/// The key of no expert. It sorts after all others, even if only overflow_key_bits are compared,
/// because no weight's key is all ones.
inline constexpr std::uint64_t kNoChoiceKey = ~std::uint64_t{0};

/// The number of low bits that determine the order of keys.
constexpr int overflow_key_bits(std::int32_t num_experts) {
  return kWeightKeyBits +
         static_cast<int>(std::bit_width(static_cast<std::uint32_t>(num_experts - 1)));
}

}  // namespace switchyard::cuda
