// SPDX-License-Identifier: Apache-2.0
//
// bf16.h: bfloat16, the upper half of an f32. Rounds to nearest, ties to even; overflow becomes
// infinity. NaN becomes 7FC0 when narrowed and 7FC00000 when widened.
#pragma once

#include "quant/bits.h"

namespace switchyard {

SWITCHYARD_HOST_DEVICE constexpr std::uint16_t bf16_from_f32(float x) {
  const std::uint32_t bits = bits_from_f32(x);
  if ((bits & ~kF32SignBit) > kF32Infinity) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_bf16(std::uint16_t x) {
  return canonical_f32(f32_from_bits(static_cast<std::uint32_t>(x) << 16));
}

}  // namespace switchyard
