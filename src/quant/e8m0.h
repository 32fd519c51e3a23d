// SPDX-License-Identifier: Apache-2.0
//
// e8m0.h: power-of-two scales. Byte b is 2^(b - 127), byte 255 is NaN. Rounds up by incrementing
// the exponent if any mantissa bit is set, which equals 2^ceil(log2(x)).
#pragma once

#include "quant/bits.h"

namespace switchyard {

/// The smallest power of two not below a positive x. +Inf stays; a subnormal becomes 2^-126.
SWITCHYARD_HOST_DEVICE constexpr float power_of_two_ceil(float x) {
  return f32_from_bits((bits_from_f32(x) + 0x7FFFFFu) & kF32Infinity);
}

/// The byte of a positive x, rounded up; 255 for +Inf.
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t e8m0_ceil(float x) {
  return static_cast<std::uint8_t>(bits_from_f32(power_of_two_ceil(x)) >> 23);
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_e8m0(std::uint8_t byte) {
  if (byte == 0) return f32_from_bits(0x00400000u);  // 2^-127 is a subnormal f32
  return f32_from_bits(byte == 255 ? kF32NaN : static_cast<std::uint32_t>(byte) << 23);
}

}  // namespace switchyard
