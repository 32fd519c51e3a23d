// SPDX-License-Identifier: Apache-2.0
//
// int8.h: the three roundings of int8 kernels. All saturate to [-128, 127] and turn NaN into 0.
// Codes are two's complement, stored in a byte.
#pragma once

#include "quant/bits.h"

namespace switchyard {

inline constexpr float kI8Max = 127.0f;

/// Saturates and removes NaN, for the functions below.
SWITCHYARD_HOST_DEVICE constexpr float clamp_to_i8(float x) {
  const float below = x < 127.0f ? x : 127.0f;
  return x != x ? 0.0f : below > -128.0f ? below : -128.0f;
}

/// Rounds toward zero.
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t i8_truncate(float x) {
  return static_cast<std::uint8_t>(static_cast<int>(clamp_to_i8(x)));
}

/// Rounds to nearest, ties away from zero (C's round).
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t i8_half_away(float x) {
  const float y = clamp_to_i8(x);
  const int whole = static_cast<int>(y);
  const float rest = y - static_cast<float>(whole);  // exact
  return static_cast<std::uint8_t>(whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0));
}

/// Rounds to nearest, ties to even.
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t i8_half_even(float x) {
  const float y = clamp_to_i8(x);
  const int whole = static_cast<int>(y);
  const float rest = y - static_cast<float>(whole);
  const bool is_odd = whole % 2 != 0;
  const bool up = rest > 0.5f || (rest == 0.5f && is_odd);
  const bool down = rest < -0.5f || (rest == -0.5f && is_odd);
  return static_cast<std::uint8_t>(whole + (up ? 1 : 0) - (down ? 1 : 0));
}

SWITCHYARD_HOST_DEVICE constexpr float f32_from_i8(std::uint8_t code) {
  return static_cast<float>(static_cast<std::int8_t>(code));
}

}  // namespace switchyard
