// SPDX-License-Identifier: Apache-2.0
//
// bits.h: f32 as bits, and rounding to nearest, ties to even, on integers: the basis of every
// format conversion of quant.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace switchyard {

inline constexpr std::uint32_t kF32SignBit = 0x80000000u;
inline constexpr std::uint32_t kF32Infinity = 0x7F800000u;
inline constexpr std::uint32_t kF32NaN = 0x7FC00000u;  // the one NaN that the library writes

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t bits_from_f32(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// NaN of any payload and sign becomes the canonical one; other values are unchanged.
SWITCHYARD_HOST_DEVICE constexpr float canonical_f32(float x) {
  return (bits_from_f32(x) & ~kF32SignBit) > kF32Infinity ? f32_from_bits(kF32NaN) : x;
}

/// value / 2^shift, to nearest, ties to even. shift is from 1 to 31, value below 2^31.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t shift_right_to_even(std::uint32_t value, int shift) {
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  return (value + (half - 1) + ((value >> shift) & 1)) >> shift;
}

/// The code of a finite magnitude (f32 bits without sign) in a format with kMantissaBits and
/// exponent bias kBias, subnormals included. The caller handles codes above the format's largest.
template <int kMantissaBits, int kBias>
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t narrow_magnitude(std::uint32_t magnitude) {
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr int kMinNormal = 128 - kBias;  // f32 exponent field of the format's smallest normal
  const int exponent = static_cast<int>(magnitude >> 23);
  if (exponent >= kMinNormal) {
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
    return shift_right_to_even(magnitude - kRebias, kDropped);
  }
  const bool is_normal = exponent > 0;
  const std::uint32_t significand = (magnitude & 0x7FFFFFu) | (is_normal ? 0x800000u : 0u);
  const int shift = kDropped + kMinNormal - (is_normal ? exponent : 1);
  return shift > 24 ? 0 : shift_right_to_even(significand, shift);  // beyond 24: less than half
}

/// The magnitude of a finite code of such a format. Exact.
template <int kMantissaBits, int kBias>
SWITCHYARD_HOST_DEVICE constexpr float widen_magnitude(std::uint32_t code) {
  constexpr std::uint32_t kMantissaMask = (std::uint32_t{1} << kMantissaBits) - 1;
  if ((code >> kMantissaBits) == 0) {
    constexpr std::uint32_t kUnit = static_cast<std::uint32_t>(128 - kBias - kMantissaBits) << 23;
    return static_cast<float>(code & kMantissaMask) * f32_from_bits(kUnit);
  }
  return f32_from_bits((code << (23 - kMantissaBits)) +
                       (static_cast<std::uint32_t>(127 - kBias) << 23));
}

}  // namespace switchyard
