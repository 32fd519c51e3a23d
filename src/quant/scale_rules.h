// SPDX-License-Identifier: Apache-2.0
//
// scale_rules.h: from the largest magnitude of the elements that share a scale to that scale and to
// the operation that each element undergoes before encoding. The block rules keep the order of
// operations of the kernels they are named after.
#pragma once

#include "switchyard/quant.h"

#include "quant/codec.h"
#include "quant/e8m0.h"

namespace switchyard {

/// Maps an element to its code: x / factor or x * factor, encoded. NaN becomes nan_code.
struct ElementMap {
  float factor;
  bool divides;
  std::uint8_t nan_code;
  Codec codec = Codec::kE4M3;
};

struct ScaleAndMap {
  float scale;  ///< as stored; dequantization multiplies by it, except as in effective_scale
  ElementMap map;
};

SWITCHYARD_HOST_DEVICE constexpr std::uint8_t quantize_element(float x, const ElementMap& map) {
  const float y = map.divides ? x / map.factor : x * map.factor;
  return y != y ? map.nan_code : encode(map.codec, y);
}

/// vLLM, per_token_group_quant_fp8: the running maximum starts at 1e-10; the clamp min(max(x,
/// -448), 448) turns NaN into -448. A power-of-two scale is at least 2^-33.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap divide_rule(float amax, bool is_power_of_two) {
  float scale = (amax > 1e-10f ? amax : 1e-10f) / kE4M3Max;
  if (is_power_of_two) scale = power_of_two_ceil(scale > 1e-10f ? scale : 1e-10f);
  return {scale, {scale, true, kE4M3MinCode}};
}

/// DeepEP, calculate_fp8_scales: a floor of 1e-4, multiplication by 448 / amax, and a saturating
/// conversion without a clamp, so NaN stays NaN.
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

/// vLLM, dynamic_per_token_scaled_fp8_quant: true division; max(-448, min(x, 448)) makes NaN +448.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap token_rule(float amax) {
  constexpr float kMinScale = 1.0f / (kE4M3Max * 512.0f);
  const float dynamic = amax / kE4M3Max;
  const float scale = dynamic > kMinScale ? dynamic : kMinScale;
  return {scale, {scale, true, kE4M3MaxCode}};
}

/// vLLM, static_scaled_fp8_quant: multiplication by the reciprocal. With scale 0 (the dynamic scale
/// of zeros has no lower bound) 0 * Inf = NaN, which becomes +448 and dequantizes to 0.
SWITCHYARD_HOST_DEVICE constexpr ElementMap tensor_rule(float scale) {
  return {1.0f / scale, false, kE4M3MaxCode};
}

/// vLLM, per_token_quant_int8: x * (127 / amax), ties away from zero.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap int8_token_rule(float amax) {
  const float floored = amax > 1e-10f ? amax : 1e-10f;
  return {floored / kI8Max, {kI8Max / floored, false, 0, Codec::kI8HalfAway}};
}

/// vLLM, static_scaled_int8_quant: true division, ties to even.
SWITCHYARD_HOST_DEVICE constexpr ElementMap int8_tensor_rule(float scale) {
  return {scale, true, 0, Codec::kI8HalfEven};
}

/// vLLM, per_token_group_quant_int8: true division, then truncation by the conversion.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap int8_block_rule(float amax) {
  const float scale = (amax > 1e-10f ? amax : 1e-10f) / kI8Max;
  return {scale, {scale, true, 0, Codec::kI8Truncate}};
}

/// The exponent byte for fp4 and fp6 elements (Quark's even_round): the exponent of amax, rounded
/// to the element's mantissa, minus the exponent of the format's largest value.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t mx_exponent(Codec codec, float amax) {
  const std::uint32_t mantissa_bits = codec == Codec::kE2M1 ? 1 : codec == Codec::kE3M2 ? 2 : 3;
  const std::uint32_t max_exponent = codec == Codec::kE3M2 ? 4 : 2;
  const std::uint32_t rounded = bits_from_f32(amax) + (1u << (22 - mantissa_bits));
  const std::uint32_t exponent = rounded >> 23;
  return exponent > max_exponent ? exponent - max_exponent : 0;
}

/// The exponent byte for e4m3 elements: amax / 448 rounded up to a power of two, at most 2^127.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t mxfp8_exponent(float amax) {
  const std::uint32_t exponent = e8m0_ceil(amax / kE4M3Max);
  return exponent < 254 ? exponent : 254;
}

/// OCP MX: x / 2^(e - 127), computed exactly as a product with 2^(127 - e). NaN stays NaN in e4m3
/// and becomes the largest value of formats without NaN.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap mx_rule(Codec codec, float amax) {
  const bool is_fp8 = codec == Codec::kE4M3;
  const std::uint32_t e = is_fp8 ? mxfp8_exponent(amax) : mx_exponent(codec, amax);
  const float factor = e == 254 ? 0x1p-127f : f32_from_bits((254 - e) << 23);
  const std::uint8_t nan_code = is_fp8                  ? kE4M3NaN
                                : codec == Codec::kE2M1 ? kE2M1MaxCode
                                                        : kFp6MaxCode;
  return {f32_from_e8m0(static_cast<std::uint8_t>(e)), {factor, false, nan_code, codec}};
}

/// vLLM, scaled_fp4_quant (cvt_warp_fp16_to_fp4), with IEEE reciprocals: the scale is stored as
/// e4m3, relative to 1 / global_scale.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap two_level_rule(float amax, float global_scale) {
  const float stored = f32_from_e4m3(e4m3_from_f32(global_scale * (amax * (1.0f / kE2M1Max))));
  const float factor = stored != 0.0f ? 1.0f / (stored * (1.0f / global_scale)) : 0.0f;
  return {stored, {factor, false, kE2M1MaxCode, Codec::kE2M1}};
}

SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap block_rule(const QuantScheme& scheme, float amax,
                                                        float tensor_scale) {
  switch (scheme.rule) {
    case ScaleRule::kMx: return mx_rule(codec_of(scheme), amax);
    case ScaleRule::kTwoLevel: return two_level_rule(amax, tensor_scale);
    case ScaleRule::kMultiply: return multiply_rule(amax, scheme.scale_format != ScaleFormat::kF32);
    case ScaleRule::kDivide: break;
  }
  if (scheme.dtype == DType::kI8) return int8_block_rule(amax);
  return divide_rule(amax, scheme.scale_format != ScaleFormat::kF32);
}

/// The rule of a quantized scheme. `amax` is ignored for kTensor; `tensor_scale` is used for
/// kTensor and kTwoLevel only.
SWITCHYARD_HOST_DEVICE constexpr ScaleAndMap scale_rule(const QuantScheme& scheme, float amax,
                                                        float tensor_scale) {
  const bool is_i8 = scheme.dtype == DType::kI8;
  if (scheme.group == ScaleGroup::kToken) return is_i8 ? int8_token_rule(amax) : token_rule(amax);
  if (scheme.group == ScaleGroup::kBlock) return block_rule(scheme, amax, tensor_scale);
  return {tensor_scale, is_i8 ? int8_tensor_rule(tensor_scale) : tensor_rule(tensor_scale)};
}

/// The scale of a whole tensor from its largest magnitude; int8 has vLLM's lower bound.
SWITCHYARD_HOST_DEVICE constexpr float tensor_scale(float amax, DType dtype = DType::kE4M3) {
  if (dtype != DType::kI8) return amax / kE4M3Max;
  const float scale = amax / kI8Max;
  return scale > 1e-10f ? scale : 1e-10f;
}

/// The factor that dequantizes an element, given the scale as stored.
SWITCHYARD_HOST_DEVICE constexpr float effective_scale(const QuantScheme& scheme, float stored,
                                                       float tensor_scale) {
  return scheme.rule == ScaleRule::kTwoLevel ? stored * (1.0f / tensor_scale) : stored;
}

}  // namespace switchyard
