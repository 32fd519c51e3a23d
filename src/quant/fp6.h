// SPDX-License-Identifier: Apache-2.0
//
// fp6.h: the two OCP 6-bit floats, which are only simulated: a code in the low 6 bits of a byte.
// Rounds to nearest, ties to even, and saturates; NaN becomes the largest value. Values that round
// to zero become +0, as in Quark's emulation.
#pragma once

#include "quant/bits.h"

namespace switchyard {

inline constexpr std::uint8_t kFp6MaxCode = 0x1F;  // 7.5 in e2m3, 28 in e3m2

template <int kMantissaBits, int kBias>
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t fp6_from_f32(float x) {
  const std::uint32_t bits = bits_from_f32(x);
  const std::uint32_t magnitude = bits & ~kF32SignBit;
  if (magnitude > kF32Infinity) return kFp6MaxCode;
  const std::uint32_t code = narrow_magnitude<kMantissaBits, kBias>(magnitude);
  if (code == 0) return 0;
  return static_cast<std::uint8_t>((bits & kF32SignBit) >> 26 |
                                   (code < kFp6MaxCode ? code : kFp6MaxCode));
}

template <int kMantissaBits, int kBias>
SWITCHYARD_HOST_DEVICE constexpr float f32_from_fp6(std::uint8_t x) {
  const float magnitude = widen_magnitude<kMantissaBits, kBias>(x & kFp6MaxCode);
  return f32_from_bits((x & 0x20u) << 26 | bits_from_f32(magnitude));
}

SWITCHYARD_HOST_DEVICE constexpr std::uint8_t e2m3_from_f32(float x) {
  return fp6_from_f32<3, 1>(x);
}
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t e3m2_from_f32(float x) {
  return fp6_from_f32<2, 3>(x);
}
SWITCHYARD_HOST_DEVICE constexpr float f32_from_e2m3(std::uint8_t x) {
  return f32_from_fp6<3, 1>(x);
}
SWITCHYARD_HOST_DEVICE constexpr float f32_from_e3m2(std::uint8_t x) {
  return f32_from_fp6<2, 3>(x);
}

}  // namespace switchyard
