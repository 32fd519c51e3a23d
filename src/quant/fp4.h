// SPDX-License-Identifier: Apache-2.0
//
// fp4.h: OCP e2m1: a sign, then an index into {0, 0.5, 1, 1.5, 2, 3, 4, 6}. Rounds to nearest, ties
// to even, and saturates at 6; NaN becomes +6, as the format has none. Minus zero keeps its sign,
// as in the hardware instruction. Two codes share a byte, the first in the low nibble.
#pragma once

#include "quant/bits.h"

namespace switchyard {

inline constexpr float kE2M1Max = 6.0f;
inline constexpr std::uint8_t kE2M1MaxCode = 0x7;

SWITCHYARD_HOST_DEVICE constexpr std::uint8_t e2m1_from_f32(float x) {
  const std::uint32_t bits = bits_from_f32(x);
  const std::uint32_t magnitude = bits & ~kF32SignBit;
  if (magnitude > kF32Infinity) return kE2M1MaxCode;
  const std::uint32_t code = narrow_magnitude<1, 1>(magnitude);
  return static_cast<std::uint8_t>((bits & kF32SignBit) >> 28 |
                                   (code < kE2M1MaxCode ? code : kE2M1MaxCode));
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_e2m1(std::uint8_t x) {
  return f32_from_bits((x & 0x8u) << 28 | bits_from_f32(widen_magnitude<1, 1>(x & 0x7u)));
}

}  // namespace switchyard
