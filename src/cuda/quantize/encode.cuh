// SPDX-License-Identifier: Apache-2.0
//
// encode.cuh: fast GPU versions of the element formats of quant/codec.h and quant/scale_rules.h:
// four or eight elements per word; hardware conversions where their bits match the integer
// definition (tests/cuda/encode_test.cu compares all 2^32 inputs); three instructions per division
// by a shared divisor. Kernels that quantize need no other header.
//
// If an inlined rule of scale_rules.h makes the map and its scheme is a constant, then codec, NaN
// code and kind of scaling are constants too, and the branches below disappear.
#pragma once

#include <cstdint>

#include "cuda/base/ptx.cuh"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/scale_rules.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace switchyard::cuda {

/// x / divisor for a divisor that many x share: Markstein's correction of x * RN(1 / divisor) by
/// its exact remainder, which yields the IEEE quotient (Brisebarre, Muller, Raina: Accelerating
/// correctly rounded floating-point division when the divisor is known in advance, 2004) as long as
/// nothing overflows. Underflow happens only where every format rounds to zero. The signs around
/// the remainder are chosen so that -0 stays -0.
__device__ __forceinline__ float shared_quotient(float x, float divisor, float reciprocal) {
  const float first = x * reciprocal;
  const float minus_remainder = __fmaf_rn(first, divisor, -x);
  return __fmaf_rn(minus_remainder, -reciprocal, first);
}

/// Magnitudes and divisors up to this bound, and divisors down to its reciprocal, can neither
/// overflow nor underflow.
inline constexpr float kMaxShared = 0x1p60f;

__device__ __forceinline__ bool is_shared(float divisor) {
  return divisor >= 1.0f / kMaxShared && divisor <= kMaxShared;
}

/// 1 / x for x from 2^-125 to 2^125: what the division does after it has tested that.
__device__ __forceinline__ float near_reciprocal(float x) {
  const float estimate = reciprocal_estimate(x);
  return __fmaf_rn(estimate, __fmaf_rn(-x, estimate, 1.0f), estimate);
}

/// An ElementMap with the values that all its elements share.
struct PreparedMap {
  ElementMap map;
  float reciprocal;
  bool is_exact;  ///< shared_quotient yields the IEEE quotient; true for maps that multiply
};

/// `amax` bounds the magnitudes that the map will see, except NaN: the maximum that the scale was
/// made from, unless that was clipped. Infinity means unknown; divisions are then IEEE divisions.
__device__ __forceinline__ PreparedMap prepare_map(const ElementMap& map, float amax) {
  if (!map.divides) return {map, 0.0f, true};
  const bool is_exact = is_shared(map.factor) && amax <= kMaxShared;
  return {map, 1.0f / map.factor, is_exact};
}

/// The value to encode: x * factor, or x / factor, the latter exact only if is_exact.
__device__ __forceinline__ float scaled(const PreparedMap& m, float x) {
  return m.map.divides ? shared_quotient(x, m.map.factor, m.reciprocal) : x * m.map.factor;
}

/// Packs four bytes into a word, the first into the low byte.
__device__ __forceinline__ std::uint32_t pack_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// Encodes one element by the definition.
__device__ __forceinline__ std::uint32_t encode_defined(Codec codec, std::uint8_t nan_code,
                                                        float y) {
  return y != y ? nan_code : encode(codec, y);
}

__device__ __forceinline__ std::uint32_t encode4_e4m3(std::uint8_t nan_code, float a, float b,
                                                      float c, float d) {
#if __CUDA_ARCH__ >= 890
  // The conversion saturates and returns 7F for NaN; clamping one side gives NaN that bound's code.
  const auto bound = [nan_code](float y) {
    if (nan_code == kE4M3MinCode) return fmaxf(y, -kE4M3Max);
    return nan_code == kE4M3MaxCode ? fminf(y, kE4M3Max) : y;
  };
  const std::uint16_t low = cvt_e4m3x2(bound(a), bound(b));
  const std::uint16_t high = cvt_e4m3x2(bound(c), bound(d));
  return low | static_cast<std::uint32_t>(high) << 16;
#else
  return pack_bytes(
      encode_defined(Codec::kE4M3, nan_code, a), encode_defined(Codec::kE4M3, nan_code, b),
      encode_defined(Codec::kE4M3, nan_code, c), encode_defined(Codec::kE4M3, nan_code, d));
#endif
}

/// y rounded as the codec says. NaN becomes 0; saturation comes later.
__device__ __forceinline__ int round_i8(Codec codec, float y) {
  if (codec == Codec::kI8HalfEven) return __float2int_rn(y);
  // Truncating this sum as well keeps it exact down to the integer part.
  if (codec == Codec::kI8HalfAway) y = __fadd_rz(y, copysignf(0.5f, y));
  return __float2int_rz(y);
}

__device__ __forceinline__ std::uint32_t encode4_i8(Codec codec, float a, float b, float c,
                                                    float d) {
  const std::uint32_t high = pack_sat_s8(round_i8(codec, d), round_i8(codec, c), 0);
  return pack_sat_s8(round_i8(codec, b), round_i8(codec, a), high);
}

/// Encodes four scaled values as the bytes of an e4m3 or int8 codec, the first in the low byte. The
/// only NaN code of int8 is 0.
__device__ __forceinline__ std::uint32_t encode4(Codec codec, std::uint8_t nan_code, float a,
                                                 float b, float c, float d) {
  return codec == Codec::kE4M3 ? encode4_e4m3(nan_code, a, b, c, d) : encode4_i8(codec, a, b, c, d);
}

/// Encodes eight values as e2m1 codes, the first in the lowest nibble. `eighths` are their
/// magnitudes / 8, at most 1; `signed_like` carries their signs. The grid steps by 1/2 up to 2, by
/// 1 up to 4 and by 2 up to 6, so the code before rounding is the minimum of three lines. Rounding
/// preserves their order, and each segment starts at an even code, so ties round to even. (The
/// hardware conversion needs an architecture-specific target.)
__device__ __forceinline__ std::uint32_t encode8_e2m1(const float* eighths,
                                                      const float* signed_like) {
  constexpr float kOne = 0x1p23f;
  std::uint32_t sums = 0;
  std::uint32_t signs = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const std::uint32_t fine = bits_from_f32(__fmaf_rn(eighths[i], 16.0f, kOne));
    const std::uint32_t middle = bits_from_f32(__fmaf_rn(eighths[i], 8.0f, kOne + 2.0f));
    const std::uint32_t coarse = bits_from_f32(__fmaf_rn(eighths[i], 4.0f, kOne + 4.0f));
    sums = sums * 16 + min(min(fine, middle), coarse);
    signs = __funnelshift_l(bits_from_f32(signed_like[i]), signs, 4);
  }
  // Removes the exponent bits, which are left from the first two elements only. Code 8 becomes 7.
  constexpr std::uint32_t kUpper = bits_from_f32(kOne) * 17u;
  const std::uint32_t codes = sums - kUpper;
  return (codes - (codes >> 3 & 0x11111111u)) | (signs & 0x88888888u);
}

/// The same for one of the fp6 formats, but as a value: decode(encode(y)).
template <Codec kCodec>
__device__ __forceinline__ float round_fp6(float y) {
  constexpr int kMantissaBits = kCodec == Codec::kE2M3 ? 3 : 2;
  constexpr float kMax = kCodec == Codec::kE2M3 ? 7.5f : 28.0f;
  constexpr float kMinNormal = kCodec == Codec::kE2M3 ? 1.0f : 0.25f;
  const float magnitude = fminf(fabsf(y), kMax);
  // The power of two at or below it, then the number whose ulp is the grid step there.
  const float power = f32_from_bits(bits_from_f32(fmaxf(magnitude, kMinNormal)) & kF32Infinity);
  const float shift = power * static_cast<float>(1 << (23 - kMantissaBits));
  const float rounded = (magnitude + shift) - shift;
  // NaN maps to the largest value, and whatever rounds to zero becomes +0.
  return (y < 0.0f ? -rounded : rounded) + 0.0f;
}

/// The rare case: IEEE divisions, by the definition.
__device__ __noinline__ inline std::uint32_t quantize_defined(ElementMap map, float x) {
  return quantize_element(x, map);
}

/// quantize_element of four elements, packed into a word, the first in the low byte.
__device__ __forceinline__ std::uint32_t quantize4(const PreparedMap& m, float a, float b, float c,
                                                   float d) {
  if (!m.is_exact) {
    return pack_bytes(quantize_defined(m.map, a), quantize_defined(m.map, b),
                      quantize_defined(m.map, c), quantize_defined(m.map, d));
  }
  return encode4(m.map.codec, m.map.nan_code, scaled(m, a), scaled(m, b), scaled(m, c),
                 scaled(m, d));
}

/// Quantizes eight elements to e2m1 codes, the first in the lowest nibble. The map must multiply.
__device__ __forceinline__ std::uint32_t quantize8_e2m1(const PreparedMap& m, const float* x) {
  float y[8];
  float eighths[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    y[i] = scaled(m, x[i]);
    // NaN has the code of +6: the product already cleared its sign, as GPUs return one NaN.
    eighths[i] = fminf(fabsf(y[i]) * 0.125f, 1.0f);
  }
  return encode8_e2m1(eighths, y);
}

/// The larger magnitude; NaN is ignored.
__device__ __forceinline__ float max_magnitude(float amax, float x) {
  return fmaxf(amax, fabsf(x));
}

/// The same for two elements of bf16 or f16.
__device__ __forceinline__ std::uint32_t max_magnitude2(DType dtype, std::uint32_t amax,
                                                        std::uint32_t pair) {
  const std::uint32_t magnitudes = pair & 0x7FFF7FFFu;
  return dtype == DType::kBF16 ? max_bf16x2(amax, magnitudes) : max_f16x2(amax, magnitudes);
}

/// The largest magnitude of elements as loaded from memory, as f32 bits. NaN counts as positive and
/// larger than every number.
template <DType kDType, int kWords>
__device__ __forceinline__ std::uint32_t max_bits_of(const std::uint32_t (&words)[kWords]) {
  if constexpr (kDType == DType::kF32) {
    float amax = 0.0f;
#pragma unroll
    for (int w = 0; w < kWords; ++w) amax = max_nan(amax, fabsf(f32_from_bits(words[w])));
    return bits_from_f32(amax);
  } else {
    std::uint32_t pair = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) pair = __vmaxu2(pair, words[w] & 0x7FFF7FFFu);
    const std::uint32_t largest = max(pair & 0xFFFFu, pair >> 16);
    return kDType == DType::kBF16
               ? largest << 16
               : bits_from_f32(__half2float(__ushort_as_half(static_cast<std::uint16_t>(largest))));
  }
}

/// Widens the two bf16 of a word to f32, the low one first. NaN keeps its bits, for callers that
/// encode it; widen2 below makes it canonical.
__device__ __forceinline__ float2 widen2_bf16(std::uint32_t pair) {
  return {f32_from_bits(pair << 16), f32_from_bits(pair & 0xFFFF0000u)};
}

__device__ __forceinline__ float2 widen2_f16(std::uint32_t pair) {
  return {cvt_f32_f16(static_cast<std::uint16_t>(pair)),
          cvt_f32_f16(static_cast<std::uint16_t>(pair >> 16))};
}

__device__ __forceinline__ float2 canonical2(float2 v) {
  return {canonical_f32(v.x), canonical_f32(v.y)};
}

/// f32_from_bf16 or f32_from_f16 of two elements.
template <DType kDType>
__device__ __forceinline__ float2 widen2(std::uint32_t pair) {
  return canonical2(kDType == DType::kBF16 ? widen2_bf16(pair) : widen2_f16(pair));
}

__device__ __forceinline__ bool is_nan_bits(float x) {
  return (bits_from_f32(x) & ~kF32SignBit) > kF32Infinity;
}

/// bf16_from_f32 or f16_from_f32 of two values, the first in the low half; but NaN becomes 7FFF.
template <DType kDType>
__device__ __forceinline__ std::uint32_t narrow2_finite(float a, float b) {
  if constexpr (kDType == DType::kBF16) {
    return cvt_bf16x2(a, b);
  } else {
    return cvt_f16x2(a, b);
  }
}

/// bf16_from_f32 or f16_from_f32 of two values. The hardware's NaN, 7FFF, is replaced.
template <DType kDType>
__device__ __forceinline__ std::uint32_t narrow2(float a, float b) {
  constexpr std::uint32_t kNaN = kDType == DType::kBF16 ? 0x7FC0u : 0x7E00u;
  std::uint32_t pair = narrow2_finite<kDType>(a, b);
  // Tests bits because nvcc 13 drops floating-point NaN comparisons here.
  if (is_nan_bits(a)) pair = (pair & 0xFFFF0000u) | kNaN;
  if (is_nan_bits(b)) pair = (pair & 0xFFFFu) | kNaN << 16;
  return pair;
}

/// Widens 16 bytes of bf16 or f16, as loaded from memory, to 8 values. NaN keeps its bits.
template <DType kDType>
__device__ __forceinline__ void widen8(uint4 raw, float* x) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = kDType == DType::kBF16 ? widen2_bf16(words[i]) : widen2_f16(words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

/// Decodes the four codes of a word, the low byte first, without a scale. NaN may have any payload.
__device__ __forceinline__ void decode4(DType dtype, std::uint32_t codes, float* y) {
#if __CUDA_ARCH__ >= 890
  if (dtype == DType::kE4M3) {
    const std::uint32_t low = cvt_f16x2_e4m3x2(static_cast<std::uint16_t>(codes));
    const std::uint32_t high = cvt_f16x2_e4m3x2(static_cast<std::uint16_t>(codes >> 16));
    const float2 first = widen2_f16(low);
    const float2 second = widen2_f16(high);
    y[0] = first.x, y[1] = first.y, y[2] = second.x, y[3] = second.y;
    return;
  }
#endif
  if (dtype == DType::kI8) {
    // The low byte of the f32 2^23 + 128 + value.
    const std::uint32_t biased = codes ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] = f32_from_bits(__byte_perm(biased, 0x4B000000u, 0x7440 + i)) - (0x1p23f + 128.0f);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = decode(dtype, static_cast<std::uint8_t>(codes >> (8 * i)));
}

/// Decodes two e2m1 codes, given as e4m3 bytes worth 2^-6 times their values.
__device__ __forceinline__ float2 decode2_small_e4m3(std::uint16_t codes) {
#if __CUDA_ARCH__ >= 890
  return widen2_f16(mul_f16x2(cvt_f16x2_e4m3x2(codes), 0x54005400u));  // 64
#else
  return {};
#endif
}

/// Decodes the eight e2m1 codes of a word, the lowest nibble first.
__device__ __forceinline__ void decode8_e2m1(std::uint32_t codes, float* y) {
#if __CUDA_ARCH__ >= 890
  // Moves sign, exponent and mantissa to their places in e4m3: even elements, then odd ones.
  const std::uint32_t even = (codes << 2 & 0x1C1C1C1Cu) | (codes << 4 & 0x80808080u);
  const std::uint32_t odd = (codes >> 2 & 0x1C1C1C1Cu) | (codes & 0x80808080u);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 evens = decode2_small_e4m3(static_cast<std::uint16_t>(even >> (16 * i)));
    const float2 odds = decode2_small_e4m3(static_cast<std::uint16_t>(odd >> (16 * i)));
    y[4 * i] = evens.x, y[4 * i + 1] = odds.x, y[4 * i + 2] = evens.y, y[4 * i + 3] = odds.y;
  }
#else
  // The bits form a subnormal or small f32; one exact multiplication scales it to the value.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t code = codes >> (4 * i);
    y[i] = f32_from_bits((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
  }
#endif
}

/// decode(encode(y)) for e4m3.
__device__ __forceinline__ float round_e4m3(float y) {
  float values[4];
  decode4(DType::kE4M3, encode4_e4m3(kE4M3NaN, y, 0.0f, 0.0f, 0.0f), values);
  return values[0];
}

}  // namespace switchyard::cuda
