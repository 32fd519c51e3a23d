// SPDX-License-Identifier: Apache-2.0
//
// e4m3-inl.h: finite elements to e4m3 and their largest magnitude, wide; the part of
// simd_quantize.cpp that knows vectors. Included once for each Highway target.
//
// A 32-bit lane takes two 16-bit elements, widened by a shift, so that nothing is shuffled until
// the codes are stored. Rounding to e4m3 is one f32 addition: y + M, with M = 2^20 times the power
// of two of y (at least 2^-6), leaves the rounded mantissa, subnormals included, in the low bits.
//
// x / scale becomes a multiplication by r = 1 / scale and one correction in fma (Markstein, 1990):
// p = x r; p + r (x - p scale) is the IEEE quotient for every 8-bit and 11-bit significand of x and
// every significand of scale (wide_test.cpp tries them). f32 elements are divided.

// The include guard of Highway: once for each target.
#if defined(SWITCHYARD_QUANT_E4M3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_QUANT_E4M3_INL_H_
#undef SWITCHYARD_QUANT_E4M3_INL_H_
#else
#define SWITCHYARD_QUANT_E4M3_INL_H_
#endif

#include <algorithm>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "quant/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::uint32_t kMinNormalBits = 0x3C800000u;  // 2^-6
constexpr std::uint32_t kMaxBits = 0x43E00000u;        // 448
// 2^20, and in the low bits what the biased exponents lack to a code, modulo 256; even, for ties.
constexpr float kMagic = 0x1.00007p+20f;

constexpr hn::ScalableTag<std::uint32_t> kU32{};
constexpr hn::ScalableTag<std::int32_t> kI32{};
constexpr hn::ScalableTag<std::uint16_t> kU16{};
constexpr hn::ScalableTag<std::int16_t> kI16{};
constexpr hn::ScalableTag<float> kF32{};
using VecU32 = hn::Vec<hn::ScalableTag<std::uint32_t>>;
using VecI32 = hn::Vec<hn::ScalableTag<std::int32_t>>;
using VecF32 = hn::Vec<hn::ScalableTag<float>>;

// Two 16-bit elements in each 32-bit word, low half first; signs are off.
struct Bf16 {
  using Element = std::uint16_t;
  static constexpr DType kDType = DType::kBF16;
  static constexpr std::uint32_t kInfinity = 0x7F80;
  static float widen(std::uint32_t bits) { return f32_from_bits(bits << 16); }
  static HWY_INLINE VecF32 low(VecU32 words) { return hn::BitCast(kF32, hn::ShiftLeft<16>(words)); }
  static HWY_INLINE VecF32 high(VecU32 words) {
    return hn::BitCast(kF32, hn::And(words, hn::Set(kU32, 0x7FFF0000u)));
  }
};

struct F16 {
  using Element = std::uint16_t;
  static constexpr DType kDType = DType::kF16;
  static constexpr std::uint32_t kInfinity = 0x7C00;
  static float widen(std::uint32_t bits) { return f32_from_f16(static_cast<Element>(bits)); }
  // Bits at the place of f32's, then 2^112 corrects the exponent bias; exact, subnormals too.
  static HWY_INLINE VecF32 rebias(VecU32 bits) {
    return hn::Mul(hn::BitCast(kF32, bits), hn::Set(kF32, 0x1p112f));
  }
  static HWY_INLINE VecF32 low(VecU32 words) {
    return rebias(hn::ShiftLeft<13>(hn::And(words, hn::Set(kU32, 0x7FFFu))));
  }
  static HWY_INLINE VecF32 high(VecU32 words) {
    return rebias(hn::And(hn::ShiftRight<3>(words), hn::Set(kU32, 0x0FFFE000u)));
  }
};

struct F32 {
  using Element = float;
  static constexpr DType kDType = DType::kF32;
  static constexpr std::uint32_t kInfinity = kF32Infinity;
  static float widen(std::uint32_t bits) { return f32_from_bits(bits); }
};

// The ways to apply a scale to magnitudes.
struct Multiply {
  float factor;
  HWY_INLINE VecF32 operator()(VecF32 x) const { return hn::Mul(x, hn::Set(kF32, factor)); }
};

// For scales that others chose: 448 may be exceeded, also by infinity.
struct MultiplyAndClamp {
  float factor;
  HWY_INLINE VecF32 operator()(VecF32 x) const {
    const VecI32 limit = hn::Set(kI32, static_cast<std::int32_t>(kMaxBits));
    const VecF32 y = hn::Mul(x, hn::Set(kF32, factor));
    return hn::BitCast(kF32, hn::Min(hn::BitCast(kI32, y), limit));
  }
};

struct Divide {
  float scale;
  HWY_INLINE VecF32 operator()(VecF32 x) const { return hn::Div(x, hn::Set(kF32, scale)); }
};

#if HWY_NATIVE_FMA
struct DivideByReciprocal {
  float scale;
  float reciprocal;
  HWY_INLINE VecF32 operator()(VecF32 x) const {
    const VecF32 r = hn::Set(kF32, reciprocal);
    const VecF32 p = hn::Mul(x, r);
    return hn::MulAdd(hn::NegMulAdd(p, hn::Set(kF32, scale), x), r, p);
  }
};
#endif

// Codes of magnitudes up to 448, in the low 8 bits of each lane; the other bits are arbitrary.
HWY_INLINE VecU32 encode_lanes(VecF32 y) {
  const VecI32 exponent = hn::And(hn::BitCast(kI32, y), hn::Set(kI32, 0x7F800000));
  const VecI32 clamped =
      hn::Max(exponent, hn::Set(kI32, static_cast<std::int32_t>(kMinNormalBits)));
  // The product is exact, so this is one rounding with and without fma.
  const VecF32 rounded = hn::MulAdd(hn::BitCast(kF32, clamped), hn::Set(kF32, kMagic), y);
  return hn::Add(hn::BitCast(kU32, rounded), hn::ShiftRight<20>(hn::BitCast(kU32, clamped)));
}

// Encodes whole vectors of finite elements; returns how many elements are done.
template <typename Source, typename Scale>
HWY_INLINE std::int64_t encode_vectors(const std::uint16_t* x, std::int64_t n, const Scale& scale,
                                       std::uint8_t* q) {
  constexpr hn::Rebind<std::uint16_t, decltype(kU32)> d16{};
  constexpr hn::Repartition<std::uint8_t, decltype(d16)> d8{};
  const VecU32 magnitude_mask = hn::Set(kU32, 0x7FFF7FFFu);
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(kU32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecU32 both = hn::BitCast(kU32, hn::LoadU(kU16, x + i));
    const VecU32 signs = hn::AndNot(magnitude_mask, both);
    const VecU32 magnitudes = hn::And(magnitude_mask, both);
    const VecU32 low = encode_lanes(scale(Source::low(magnitudes)));
    const VecU32 high = encode_lanes(scale(Source::high(magnitudes)));
    const VecU32 codes = hn::Or(hn::And(low, hn::Set(kU32, 0xFFu)), hn::ShiftLeft<8>(high));
    const VecU32 code_signs = hn::Or(hn::ShiftRight<8>(signs), hn::ShiftRight<16>(signs));
    hn::StoreU(hn::BitCast(d8, hn::TruncateTo(d16, hn::Or(codes, code_signs))), d8, q + i);
  }
  return i;
}

template <typename Source, typename Scale>
HWY_INLINE std::int64_t encode_vectors(const float* x, std::int64_t n, const Scale& scale,
                                       std::uint8_t* q) {
  constexpr hn::Rebind<std::uint8_t, decltype(kU32)> d8{};
  const auto step = static_cast<std::int64_t>(hn::Lanes(kU32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecF32 v = hn::LoadU(kF32, x + i);
    const VecU32 sign = hn::And(hn::ShiftRight<24>(hn::BitCast(kU32, v)), hn::Set(kU32, 0x80u));
    const VecU32 code = hn::And(encode_lanes(scale(hn::Abs(v))), hn::Set(kU32, 0xFFu));
    hn::StoreU(hn::TruncateTo(d8, hn::Or(code, sign)), d8, q + i);
  }
  return i;
}

template <typename Source>
HWY_INLINE std::int64_t divide_vectors(const typename Source::Element* x, std::int64_t n,
                                       float scale, std::uint8_t* q) {
#if HWY_NATIVE_FMA
  if constexpr (Source::kDType != DType::kF32) {
    return encode_vectors<Source>(x, n, DivideByReciprocal{scale, 1.0f / scale}, q);
  }
#endif
  return encode_vectors<Source>(x, n, Divide{scale}, q);
}

// Encodes finite elements by the scale that was made for them, so that no magnitude exceeds 448 by
// more than rounding. map.factor is finite and positive.
template <typename Source>
HWY_INLINE void encode(const typename Source::Element* x, std::int64_t n, const ElementMap& map,
                       std::uint8_t* q) {
  const std::int64_t done = map.divides ? divide_vectors<Source>(x, n, map.factor, q)
                                        : encode_vectors<Source>(x, n, Multiply{map.factor}, q);
  scalar::encode(x, Source::kDType, done, n, map, q);
}

template <typename Source>
HWY_INLINE void encode_clamped(const typename Source::Element* x, std::int64_t n,
                               const ElementMap& map, std::uint8_t* q) {
  const std::int64_t done = encode_vectors<Source>(x, n, MultiplyAndClamp{map.factor}, q);
  scalar::encode(x, Source::kDType, done, n, map, q);
}

// Asks for what follows the row, which in most uses is the next row: encoding leaves the memory
// idle. A hint about bytes, never a read, so it may point past the end.
template <typename Element>
HWY_INLINE void prefetch_ahead(const Element* x, std::int64_t num_elements, std::int64_t distance) {
  const auto from =
      reinterpret_cast<std::uintptr_t>(x) + static_cast<std::uintptr_t>(distance) * sizeof(Element);
  const auto end = from + static_cast<std::uintptr_t>(num_elements) * sizeof(Element);
  for (std::uintptr_t line = from; line < end; line += 64) {
    hwy::Prefetch(reinterpret_cast<const std::byte*>(line));
  }
}

// Largest bit pattern without sign; above kInfinity when there is a NaN.
HWY_INLINE std::uint32_t max_bits(const std::uint16_t* x, std::int64_t n) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kU16));
  const auto mask = hn::Set(kU16, 0x7FFF);
  auto largest = hn::Zero(kI16);
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    largest = hn::Max(largest, hn::BitCast(kI16, hn::And(hn::LoadU(kU16, x + i), mask)));
  }
  const VecU32 both = hn::BitCast(kU32, largest);
  const VecU32 low = hn::And(both, hn::Set(kU32, 0xFFFFu));
  const VecI32 each = hn::Max(hn::BitCast(kI32, low), hn::BitCast(kI32, hn::ShiftRight<16>(both)));
  auto result = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, each)));
  for (; i < n; ++i) result = std::max(result, x[i] & 0x7FFFu);
  return result;
}

HWY_INLINE std::uint32_t max_bits(const float* x, std::int64_t n) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kF32));
  VecI32 largest = hn::Zero(kI32);
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    largest = hn::Max(largest, hn::BitCast(kI32, hn::Abs(hn::LoadU(kF32, x + i))));
  }
  auto result = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, largest)));
  for (; i < n; ++i) result = std::max(result, bits_from_f32(x[i]) & ~kF32SignBit);
  return result;
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard
