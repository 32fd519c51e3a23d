// SPDX-License-Identifier: Apache-2.0
//
// fp8.h: e4m3, the 8-bit float of the formats here. Rounds to nearest, ties to even, subnormals
// included; overflow and infinity saturate to the largest finite value. NaN becomes 7F.
#pragma once

#include "quant/bits.h"

namespace switchyard {

inline constexpr float kE4M3Max = 448.0f;
inline constexpr std::uint8_t kE4M3MaxCode = 0x7E;
inline constexpr std::uint8_t kE4M3MinCode = 0xFE;
inline constexpr std::uint8_t kE4M3NaN = 0x7F;

SWITCHYARD_HOST_DEVICE constexpr std::uint8_t e4m3_from_f32(float x) {
  const std::uint32_t bits = bits_from_f32(x);
  const std::uint32_t magnitude = bits & ~kF32SignBit;
  if (magnitude > kF32Infinity) return kE4M3NaN;
  const std::uint32_t code = narrow_magnitude<3, 7>(magnitude);
  return static_cast<std::uint8_t>((bits & kF32SignBit) >> 24 |
                                   (code < kE4M3MaxCode ? code : kE4M3MaxCode));
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_e4m3(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7Fu;
  if (magnitude == kE4M3NaN) return f32_from_bits(kF32NaN);
  return f32_from_bits((x & 0x80u) << 24 | bits_from_f32(widen_magnitude<3, 7>(magnitude)));
}

}  // namespace switchyard
