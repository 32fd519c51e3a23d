// SPDX-License-Identifier: Apache-2.0
//
// exp.h: the library's only exp, in f32, with the same bits on every processor: x = n ln2 + r, a
// polynomial for exp(r) in fma, and scaling by 2^n in two exact steps, so that results between the
// smallest normal and the smallest subnormal round once.
//
// The error over all f32 is below 0.9 ulp (tests/unit/quant/exp_test.cpp measures it). exp(-Inf) is
// 0, exp(x) is +Inf above 88.72, and exp(NaN) is 7FC00000.
#pragma once

#include <cmath>

#include "quant/bits.h"

namespace switchyard {

/// The constants, shared with the vectorized version, which does the same steps in the same order.
namespace exp_constants {
inline constexpr float kMin = -104.0f;  // exp is 0 from here down
inline constexpr float kMax = 89.0f;    // exp is +Inf from here up
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kRound = 0x1.8p+23f;             // adding it rounds to an integer
inline constexpr float kMinusLn2High = -0x1.62e43p-1f;  // n * this is exact in the fma
inline constexpr float kMinusLn2Low = 0x1.05c61p-29f;
// Minimax of (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2; the relative error of exp(r) is 2^-28.2.
inline constexpr float kC0 = 0x1.fffffcp-2f;
inline constexpr float kC1 = 0x1.55548cp-3f;
inline constexpr float kC2 = 0x1.555858p-5f;
inline constexpr float kC3 = 0x1.123da6p-7f;
inline constexpr float kC4 = 0x1.6ac144p-10f;
}  // namespace exp_constants

SWITCHYARD_HOST_DEVICE inline float exp_f32(float x) {
  namespace c = exp_constants;
  if (x != x) return f32_from_bits(kF32NaN);
  const float clamped = x < c::kMin ? c::kMin : (x > c::kMax ? c::kMax : x);
  const float shifted = std::fma(clamped, c::kLog2E, c::kRound);
  const float n = shifted - c::kRound;
  const float r = std::fma(n, c::kMinusLn2Low, std::fma(n, c::kMinusLn2High, clamped));
  float p = std::fma(c::kC4, r, c::kC3);
  p = std::fma(p, r, c::kC2);
  p = std::fma(p, r, c::kC1);
  p = std::fma(p, r, c::kC0);
  p = std::fma(p, r, 1.0f);
  const float y = std::fma(p, r, 1.0f);
  const std::int32_t exponent =
      static_cast<std::int32_t>(bits_from_f32(shifted) - bits_from_f32(c::kRound));
  const std::int32_t half = exponent >> 1;
  const float first = f32_from_bits(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = f32_from_bits(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return y * first * second;
}

/// 1 / (1 + exp(-x)).
SWITCHYARD_HOST_DEVICE inline float sigmoid(float x) {
  return canonical_f32(1.0f / (1.0f + exp_f32(-x)));
}

/// x / (1 + exp(-x)), with one division. -Inf yields NaN, as the formula does.
SWITCHYARD_HOST_DEVICE inline float silu(float x) {
  return canonical_f32(x / (1.0f + exp_f32(-x)));
}

/// silu(gate) * up.
SWITCHYARD_HOST_DEVICE inline float silu_mul(float gate, float up) {
  return canonical_f32(silu(gate) * up);
}

/// g / (1 + exp(-(alpha * g))) * (u + beta), with g = min(gate, limit) and u = up clamped to
/// [-limit, limit]. One division, every step rounded; NaN stays NaN.
SWITCHYARD_HOST_DEVICE inline float clamped_swiglu(float gate, float up, float alpha, float beta,
                                                   float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return canonical_f32(g / (1.0f + exp_f32(-(alpha * g))) * (u + beta));
}

}  // namespace switchyard
