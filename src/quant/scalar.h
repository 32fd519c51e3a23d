// SPDX-License-Identifier: Apache-2.0
//
// scalar.h: the definition of each row format, element by element. rows.h does the same work wide
// and must give the same bits; tests compare the two.
//
// A scheme is two decisions: the scale that follows from the largest magnitude of the elements that
// share it, and the map from an element to its code under that scale. Infinity among the elements
// makes the scale infinite: finite elements then become 0, and infinite ones NaN / the NaN's code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

#include "quant/bf16.h"
#include "quant/e8m0.h"
#include "quant/f16.h"
#include "quant/fp8.h"

namespace switchyard {

/// Element to e4m3: x / factor or x * factor, rounded, saturating; a NaN result becomes nan_code.
struct ElementMap {
  float factor;
  bool divides;
  std::uint8_t nan_code;
};

struct ScaleAndMap {
  float scale;  ///< what dequantization multiplies by
  ElementMap map;
};

SWITCHYARD_HOST_DEVICE constexpr std::uint8_t quantize_element(float x, const ElementMap& map) {
  const float y = map.divides ? x / map.factor : x * map.factor;
  return y != y ? map.nan_code : e4m3_from_f32(y);
}

/// vLLM, per_token_group_quant_fp8: the accumulator of the largest magnitude starts at 1e-10; the
/// clamp min(max(x, -448), 448) turns NaN into -448. A power-of-two scale is at least 2^-33.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap divide_rule(float amax, bool is_power_of_two) {
  float scale = (amax > 1e-10f ? amax : 1e-10f) / kE4M3Max;
  if (is_power_of_two) scale = power_of_two_ceil(scale > 1e-10f ? scale : 1e-10f);
  return {scale, {scale, true, kE4M3MinCode}};
}

/// DeepEP, calculate_fp8_scales: floor 1e-4, multiplication by 448 / amax, a saturating conversion
/// without a clamp before it, so NaN stays NaN.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap multiply_rule(float amax, bool is_power_of_two) {
  const float floored = amax > 1e-4f ? amax : 1e-4f;
  float scale = floored * (1.0f / kE4M3Max);
  float factor = kE4M3Max / floored;
  if (is_power_of_two) {
    scale = power_of_two_ceil(scale);
    factor = 1.0f / scale;
  }
  return {scale, {factor, false, kE4M3NaN}};
}

SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap block_rule(ScaleRule rule, ScaleFormat format,
                                                        float amax) {
  const bool is_power_of_two = format != ScaleFormat::kF32;
  return rule == ScaleRule::kDivide ? divide_rule(amax, is_power_of_two)
                                    : multiply_rule(amax, is_power_of_two);
}

/// vLLM, dynamic_per_token_scaled_fp8_quant: true division; max(-448, min(x, 448)) turns NaN into
/// +448.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap token_rule(float amax) {
  constexpr float kMinScale = 1.0f / (kE4M3Max * 512.0f);
  const float dynamic = amax / kE4M3Max;
  const float scale = dynamic > kMinScale ? dynamic : kMinScale;
  return {scale, {scale, true, kE4M3MaxCode}};
}

/// vLLM, static_scaled_fp8_quant: multiplication by the reciprocal. Scale 0 (a dynamic scale of
/// zeros has no lower bound) makes 0 * Inf = NaN, which becomes +448 and dequantizes to 0.
SWITCHYARD_HOST_DEVICE constexpr ElementMap tensor_rule(float scale) {
  return {1.0f / scale, false, kE4M3MaxCode};
}

/// The scale of a whole tensor from its largest magnitude.
SWITCHYARD_HOST_DEVICE constexpr float tensor_scale(float amax) { return amax / kE4M3Max; }

namespace scalar {

/// Element i of bf16, f16 or f32 memory.
SWITCHYARD_HOST_DEVICE inline float load(const void* x, DType dtype, std::int64_t i) {
  if (dtype == DType::kBF16) return f32_from_bf16(static_cast<const std::uint16_t*>(x)[i]);
  if (dtype == DType::kF16) return f32_from_f16(static_cast<const std::uint16_t*>(x)[i]);
  return static_cast<const float*>(x)[i];
}

SWITCHYARD_HOST_DEVICE inline void store(void* y, DType dtype, std::int64_t i, float value) {
  if (dtype == DType::kBF16) {
    static_cast<std::uint16_t*>(y)[i] = bf16_from_f32(value);
  } else if (dtype == DType::kF16) {
    static_cast<std::uint16_t*>(y)[i] = f16_from_f32(value);
  } else {
    static_cast<float*>(y)[i] = canonical_f32(value);
  }
}

/// Largest magnitude of elements begin to end - 1; NaN never compares greater.
SWITCHYARD_HOST_DEVICE inline float max_magnitude(const void* x, DType dtype, std::int64_t begin,
                                                  std::int64_t end) {
  float amax = 0.0f;
  for (std::int64_t i = begin; i < end; ++i) {
    const float magnitude = f32_from_bits(bits_from_f32(load(x, dtype, i)) & ~kF32SignBit);
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

SWITCHYARD_HOST_DEVICE inline void encode(const void* x, DType dtype, std::int64_t begin,
                                          std::int64_t end, const ElementMap& map,
                                          std::uint8_t* q) {
  for (std::int64_t i = begin; i < end; ++i) q[i] = quantize_element(load(x, dtype, i), map);
}

/// Scale b of a row. Packed words are cleared before, by their block 0, 4, 8, ...
SWITCHYARD_HOST_DEVICE inline void store_scale(ScaleFormat format, void* scales, std::int64_t b,
                                               float scale) {
  if (format != ScaleFormat::kE8M0Packed) {
    static_cast<float*>(scales)[b] = scale;
    return;
  }
  std::uint32_t& word = static_cast<std::uint32_t*>(scales)[b / 4];
  word = (b % 4 == 0 ? 0u : word) | bits_from_f32(scale) >> 23 << (8 * (b % 4));
}

SWITCHYARD_HOST_DEVICE inline float load_scale(ScaleFormat format, const void* scales,
                                               std::int64_t b) {
  if (format != ScaleFormat::kE8M0Packed) return static_cast<const float*>(scales)[b];
  const std::uint32_t word = static_cast<const std::uint32_t*>(scales)[b / 4];
  return f32_from_e8m0(static_cast<std::uint8_t>(word >> (8 * (b % 4))));
}

/// Elements of a row that share a scale.
SWITCHYARD_HOST_DEVICE inline std::int64_t elements_per_scale(const QuantScheme& scheme,
                                                              std::int64_t hidden) {
  return scheme.group == ScaleGroup::kBlock ? scheme.block : hidden;
}

/// As quantize_row and dequantize_row of rows.h, for quantized schemes.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales);
void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y);

}  // namespace scalar
}  // namespace switchyard
