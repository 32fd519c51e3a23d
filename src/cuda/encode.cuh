// SPDX-License-Identifier: Apache-2.0
//
// encode.cuh: the element formats of quant/codec.h and quant/scale_rules.h as a GPU does them fast:
// four or eight elements to one word, hardware conversions where their bits are those of the
// integer definition (tests/cuda/encode_test.cu compares all 2^32 inputs), division by a shared
// divisor in three instructions. Kernels that quantize include this and nothing else.
//
// With a map made by an inlined rule of scale_rules.h whose scheme is a constant, codec, NaN code
// and kind of scaling are constants too, and nothing of the choices below is left.
#pragma once

#include <cstdint>

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/scale_rules.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace switchyard {

/// x / divisor for a divisor that many x share: Markstein's correction of x * RN(1 / divisor) by
/// its exact remainder, which is the IEEE quotient (Brisebarre, Muller, Raina: Accelerating
/// correctly rounded floating-point division when the divisor is known in advance, 2004), as long
/// as nothing overflows. Underflow happens only where every format rounds to zero. The signs of the
/// remainder are chosen so that -0 stays -0.
__device__ __forceinline__ float shared_quotient(float x, float divisor, float reciprocal) {
  const float first = x * reciprocal;
  const float minus_remainder = __fmaf_rn(first, divisor, -x);
  return __fmaf_rn(minus_remainder, -reciprocal, first);
}

/// An ElementMap with what all its elements share.
struct PreparedMap {
  ElementMap map;
  float reciprocal;
  bool is_exact;  ///< shared_quotient gives the IEEE quotient; without divisions always true
};

/// `amax` bounds the magnitudes that the map will see, NaN aside: the one that the scale was made
/// from, if that was not cut off. Infinity: not known, and then divisions are IEEE ones.
__device__ __forceinline__ PreparedMap prepare_map(const ElementMap& map, float amax) {
  if (!map.divides) return {map, 0.0f, true};
  const bool is_exact = map.factor >= 0x1p-60f && map.factor <= 0x1p60f && amax <= 0x1p60f;
  return {map, 1.0f / map.factor, is_exact};
}

/// What is encoded: x * factor, or x / factor where is_exact holds.
__device__ __forceinline__ float scaled(const PreparedMap& m, float x) {
  return m.map.divides ? shared_quotient(x, m.map.factor, m.reciprocal) : x * m.map.factor;
}

/// Four codes of one byte, the first in the low byte. NaN becomes `nan_code`.
__device__ __forceinline__ std::uint32_t pack_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// The definition, element by element.
__device__ __forceinline__ std::uint32_t encode_defined(Codec codec, std::uint8_t nan_code,
                                                        float y) {
  return y != y ? nan_code : encode(codec, y);
}

__device__ __forceinline__ std::uint32_t encode4_e4m3(std::uint8_t nan_code, float a, float b,
                                                      float c, float d) {
#if __CUDA_ARCH__ >= 890
  // The conversion saturates and gives 7F for NaN; one bound turns NaN into the code of that bound.
  const auto bound = [nan_code](float y) {
    if (nan_code == kE4M3MinCode) return fmaxf(y, -kE4M3Max);
    return nan_code == kE4M3MaxCode ? fminf(y, kE4M3Max) : y;
  };
  std::uint16_t low;
  std::uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(low) : "f"(bound(a)), "f"(bound(b)));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(high) : "f"(bound(c)), "f"(bound(d)));
  return low | static_cast<std::uint32_t>(high) << 16;
#else
  return pack_bytes(
      encode_defined(Codec::kE4M3, nan_code, a), encode_defined(Codec::kE4M3, nan_code, b),
      encode_defined(Codec::kE4M3, nan_code, c), encode_defined(Codec::kE4M3, nan_code, d));
#endif
}

/// y rounded as the codec says; NaN becomes 0, saturation comes later.
__device__ __forceinline__ int round_i8(Codec codec, float y) {
  if (codec == Codec::kI8HalfEven) return __float2int_rn(y);
  // Truncating the sum too makes it exact up to the integer that counts.
  if (codec == Codec::kI8HalfAway) y = __fadd_rz(y, copysignf(0.5f, y));
  return __float2int_rz(y);
}

__device__ __forceinline__ std::uint32_t encode4_i8(Codec codec, float a, float b, float c,
                                                    float d) {
  std::uint32_t high;
  std::uint32_t all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(high)
      : "r"(round_i8(codec, d)), "r"(round_i8(codec, c)), "r"(0));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(all)
      : "r"(round_i8(codec, b)), "r"(round_i8(codec, a)), "r"(high));
  return all;
}

/// Four scaled values to the bytes of an e4m3 or int8 codec, the first in the low byte. int8 has no
/// NaN code but 0.
__device__ __forceinline__ std::uint32_t encode4(Codec codec, std::uint8_t nan_code, float a,
                                                 float b, float c, float d) {
  return codec == Codec::kE4M3 ? encode4_e4m3(nan_code, a, b, c, d) : encode4_i8(codec, a, b, c, d);
}

/// As e2m1_from_f32, in a chain of roundings on the fma pipe: the grid is 1/2 up to 2, 1 up to 4, 2
/// up to 6, and each part starts at an even code, so that ties go the right way. (The hardware
/// conversion needs an architecture-specific target.) The sign of NaN, which has the code of +6, is
/// cleared by the arithmetic that made y: GPUs give one positive NaN.
__device__ __forceinline__ std::uint32_t encode_e2m1(float y) {
  const float magnitude = fminf(fabsf(y), kE2M1Max);
  const float up_to_2 = __saturatef(magnitude * 0.5f);
  const float up_to_4 = __saturatef(__fmaf_rn(magnitude, 0.5f, -1.0f));
  const float up_to_6 = __saturatef(__fmaf_rn(magnitude, 0.5f, -2.0f));
  float sum = __fmaf_rn(up_to_2, 4.0f, 0x1p23f);
  sum = __fmaf_rn(up_to_4, 2.0f, sum);
  sum += up_to_6;
  return (bits_from_f32(sum) & 7u) | (bits_from_f32(y) >> 28 & 8u);
}

/// The same for one of the fp6 formats, as a value: decode(encode(y)).
template <Codec kCodec>
__device__ __forceinline__ float round_fp6(float y) {
  constexpr int kMantissaBits = kCodec == Codec::kE2M3 ? 3 : 2;
  constexpr float kMax = kCodec == Codec::kE2M3 ? 7.5f : 28.0f;
  constexpr float kMinNormal = kCodec == Codec::kE2M3 ? 1.0f : 0.25f;
  const float magnitude = fminf(fabsf(y), kMax);
  // The power of two at or below it, then the number whose last place is the grid there.
  const float power = f32_from_bits(bits_from_f32(fmaxf(magnitude, kMinNormal)) & kF32Infinity);
  const float shift = power * static_cast<float>(1 << (23 - kMantissaBits));
  const float rounded = (magnitude + shift) - shift;
  // NaN is the largest value, and what rounds to zero is +0.
  return (y < 0.0f ? -rounded : rounded) + 0.0f;
}

/// The rare group: IEEE divisions and the definition.
__device__ __noinline__ inline std::uint32_t quantize_defined(ElementMap map, float x) {
  return quantize_element(x, map);
}

/// Four elements to four bytes, the first in the low one: quantize_element of each.
__device__ __forceinline__ std::uint32_t quantize4(const PreparedMap& m, float a, float b, float c,
                                                   float d) {
  if (!m.is_exact) {
    return pack_bytes(quantize_defined(m.map, a), quantize_defined(m.map, b),
                      quantize_defined(m.map, c), quantize_defined(m.map, d));
  }
  return encode4(m.map.codec, m.map.nan_code, scaled(m, a), scaled(m, b), scaled(m, c),
                 scaled(m, d));
}

/// Eight elements to e2m1 codes, the first in the lowest nibble. The map multiplies.
__device__ __forceinline__ std::uint32_t quantize8_e2m1(const PreparedMap& m, const float* x) {
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= encode_e2m1(scaled(m, x[i])) << (4 * i);
  return codes;
}

/// The larger magnitude; NaN never is.
__device__ __forceinline__ float max_magnitude(float amax, float x) {
  return fmaxf(amax, fabsf(x));
}

/// Two bf16 of a word to f32, the low one first. NaN keeps its bits: for values whose NaN ends in a
/// code. widen2 below makes it canonical.
__device__ __forceinline__ float2 widen2_bf16(std::uint32_t pair) {
  return {f32_from_bits(pair << 16), f32_from_bits(pair & 0xFFFF0000u)};
}

__device__ __forceinline__ float2 widen2_f16(std::uint32_t pair) {
  float2 v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v.x) : "h"(static_cast<std::uint16_t>(pair)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(v.y) : "h"(static_cast<std::uint16_t>(pair >> 16)));
  return v;
}

__device__ __forceinline__ float2 canonical2(float2 v) {
  return {canonical_f32(v.x), canonical_f32(v.y)};
}

/// f32_from_bf16 and f32_from_f16 of two.
template <DType kDType>
__device__ __forceinline__ float2 widen2(std::uint32_t pair) {
  return canonical2(kDType == DType::kBF16 ? widen2_bf16(pair) : widen2_f16(pair));
}

__device__ __forceinline__ bool is_nan_bits(float x) {
  return (bits_from_f32(x) & ~kF32SignBit) > kF32Infinity;
}

/// bf16_from_f32 and f16_from_f32 of two that are not NaN, the first in the low half.
template <DType kDType>
__device__ __forceinline__ std::uint32_t narrow2_finite(float a, float b) {
  std::uint32_t pair;
  if constexpr (kDType == DType::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(a), "f"(b));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(a), "f"(b));
  }
  return pair;
}

/// bf16_from_f32 and f16_from_f32 of two. The hardware's NaN is 7FFF.
template <DType kDType>
__device__ __forceinline__ std::uint32_t narrow2(float a, float b) {
  constexpr std::uint32_t kNaN = kDType == DType::kBF16 ? 0x7FC0u : 0x7E00u;
  std::uint32_t pair = narrow2_finite<kDType>(a, b);
  // By their bits: nvcc 13 drops the comparisons of floats here.
  if (is_nan_bits(a)) pair = (pair & 0xFFFF0000u) | kNaN;
  if (is_nan_bits(b)) pair = (pair & 0xFFFFu) | kNaN << 16;
  return pair;
}

/// 16 bytes of bf16 or f16, as they lie in memory, to 8 values. NaN keeps its bits.
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

/// The same with NaN as 7FC00000: exactly f32_from_bf16, f32_from_f16.
template <DType kDType>
__device__ __forceinline__ void widen8_canonical(uint4 raw, float* x) {
  widen8<kDType>(raw, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = canonical_f32(x[i]);
}

/// Eight values to 16 bytes of bf16 or f16: exactly bf16_from_f32, f16_from_f32.
template <DType kDType>
__device__ __forceinline__ uint4 narrow8(const float* x) {
  return {narrow2<kDType>(x[0], x[1]), narrow2<kDType>(x[2], x[3]), narrow2<kDType>(x[4], x[5]),
          narrow2<kDType>(x[6], x[7])};
}

/// Four codes of a word, the low byte first, to their values before any scale. NaN is a NaN of any
/// payload.
__device__ __forceinline__ void decode4(DType dtype, std::uint32_t codes, float* y) {
#if __CUDA_ARCH__ >= 890
  if (dtype == DType::kE4M3) {
    std::uint32_t low;
    std::uint32_t high;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"(static_cast<std::uint16_t>(codes)));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(static_cast<std::uint16_t>(codes >> 16)));
    const float2 first = widen2_f16(low);
    const float2 second = widen2_f16(high);
    y[0] = first.x, y[1] = first.y, y[2] = second.x, y[3] = second.y;
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = decode(dtype, static_cast<std::uint8_t>(codes >> (8 * i)));
}

/// Eight e2m1 codes of a word, the lowest nibble first: the bits of a subnormal or small f32, which
/// one exact multiplication lifts to their value.
__device__ __forceinline__ void decode8_e2m1(std::uint32_t codes, float* y) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t code = codes >> (4 * i);
    y[i] = f32_from_bits((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
  }
}

}  // namespace switchyard
