// SPDX-License-Identifier: Apache-2.0
//
// f16.h: IEEE half precision. Rounds to nearest, ties to even, subnormals included; 65520 and above
// become infinity. NaN becomes 7E00 when narrowed and 7FC00000 when widened.
#pragma once

#include "quant/bits.h"

namespace switchyard {

SWITCHYARD_HOST_DEVICE constexpr std::uint16_t f16_from_f32(float x) {
  constexpr std::uint32_t kInfinity = 0x7C00;
  const std::uint32_t bits = bits_from_f32(x);
  const std::uint32_t magnitude = bits & ~kF32SignBit;
  if (magnitude > kF32Infinity) return 0x7E00;
  const std::uint32_t code = narrow_magnitude<10, 15>(magnitude);
  const std::uint32_t sign = (bits & kF32SignBit) >> 16;
  return static_cast<std::uint16_t>(sign | (code < kInfinity ? code : kInfinity));
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_f16(std::uint16_t x) {
  constexpr std::uint32_t kInfinity = 0x7C00;
  const std::uint32_t sign = (x & 0x8000u) << 16;
  const std::uint32_t magnitude = x & 0x7FFFu;
  if (magnitude > kInfinity) return f32_from_bits(kF32NaN);
  if (magnitude == kInfinity) return f32_from_bits(sign | kF32Infinity);
  return f32_from_bits(sign | bits_from_f32(widen_magnitude<10, 15>(magnitude)));
}

}  // namespace switchyard
