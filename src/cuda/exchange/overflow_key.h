// SPDX-License-Identifier: Apache-2.0
//
// overflow_key.h: choices as numbers whose order is that of plan/overflow.h: by expert, then the
// largest weight first. What is equal is left to a stable sort.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "quant/bits.h"

namespace switchyard::cuda {

inline constexpr int kWeightKeyBits = 32;

/// Less for a larger weight. Both zeros are equal; NaN is equal to minus infinity.
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
/// Of no expert: after all others, also when only the bits below are looked at, because no weight
/// has a key of ones.
inline constexpr std::uint64_t kNoChoiceKey = ~std::uint64_t{0};

/// Bits that order keys, from the lowest on.
constexpr int overflow_key_bits(std::int32_t num_experts) {
  return kWeightKeyBits +
         static_cast<int>(std::bit_width(static_cast<std::uint32_t>(num_experts - 1)));
}

}  // namespace switchyard::cuda
