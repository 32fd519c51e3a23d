// SPDX-License-Identifier: Apache-2.0
//
// codes-inl.h: vectorized encoding of finite elements. Included once per Highway target.
//
// Rounding to a small float is one f32 addition: y + M, with M = 2^(23 - mantissa bits) times the
// power of two of y (at least that of the smallest normal value), leaves the rounded mantissa,
// subnormals included, in the low bits. Integers use the same addition or a truncation.
//
// x / scale becomes a multiplication by r = 1 / scale and one correction by fma (Markstein, 1990):
// p = x r; p + r (x - p scale) is the IEEE quotient for every 8-bit and 11-bit significand of x and
// every significand of scale (wide_test.cpp tests them all). f32 elements are divided.

// Highway's include guard: once per target.
#if defined(SWITCHYARD_QUANT_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_QUANT_CODES_INL_H_
#undef SWITCHYARD_QUANT_CODES_INL_H_
#else
#define SWITCHYARD_QUANT_CODES_INL_H_
#endif

#include "quant/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// The ways to apply a scale. Multiply and Divide accept magnitudes and values.
struct Multiply {
  float factor;
  HWY_INLINE VecF32 operator()(VecF32 x) const { return hn::Mul(x, hn::Set(kF32, factor)); }
};

struct MultiplyLanes {
  VecF32 factors;
  HWY_INLINE VecF32 operator()(VecF32 x) const { return hn::Mul(x, factors); }
};

// For magnitudes under a scale chosen by others: the result may exceed 448 or be infinite.
struct MultiplyAndClamp {
  float factor;
  HWY_INLINE VecF32 operator()(VecF32 x) const {
    const VecI32 limit = hn::Set(kI32, static_cast<std::int32_t>(bits_from_f32(kE4M3Max)));
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

// Codes of magnitudes in the low 8 bits of each lane; the other bits are arbitrary. `magic` is
// 2^(23 - mantissa bits) and, in its low bits, the difference between biased exponents and codes,
// modulo 256; it is even, for ties. Callers handle magnitudes that round above the largest value.
template <int kMantissaBits, std::uint32_t kMinNormalBits>
HWY_INLINE VecU32 small_float_codes(VecF32 y, float magic) {
  const VecI32 exponent = hn::And(hn::BitCast(kI32, y), hn::Set(kI32, 0x7F800000));
  const VecI32 clamped =
      hn::Max(exponent, hn::Set(kI32, static_cast<std::int32_t>(kMinNormalBits)));
  // The product is exact, so this is one rounding with and without fma.
  const VecF32 rounded = hn::MulAdd(hn::BitCast(kF32, clamped), hn::Set(kF32, magic), y);
  return hn::Add(hn::BitCast(kU32, rounded),
                 hn::ShiftRight<23 - kMantissaBits>(hn::BitCast(kU32, clamped)));
}

// Coders turn a scaled pair into codes in the low kBits of each lane. Higher bits are arbitrary.
struct E4M3Coder {
  static constexpr int kBits = 16;

  template <typename Source, typename Scale>
  static HWY_INLINE VecU32 codes(typename Source::Words words, const Scale& scale) {
    const auto magnitudes = Source::magnitudes(words);
    const VecU32 low = one(scale(Source::low_magnitude(magnitudes)));
    const VecU32 high = one(scale(Source::high_magnitude(magnitudes)));
    const VecU32 both = hn::Or(hn::And(low, hn::Set(kU32, 0xFFu)), hn::ShiftLeft<8>(high));
    const VecU32 signs = Source::signs(words);
    return hn::Or(both, hn::Or(hn::ShiftRight<8>(signs), hn::ShiftRight<16>(signs)));
  }

  static HWY_INLINE VecU32 one(VecF32 magnitude) {
    return small_float_codes<3, 0x3C800000u>(magnitude, 0x1.00007p+20f);
  }
};

struct E2M1Coder {
  static constexpr int kBits = 8;

  template <typename Source, typename Scale>
  static HWY_INLINE VecU32 codes(typename Source::Words words, const Scale& scale) {
    const auto magnitudes = Source::magnitudes(words);
    const VecU32 low = one(scale(Source::low_magnitude(magnitudes)));
    const VecU32 high = one(scale(Source::high_magnitude(magnitudes)));
    const VecU32 seven = hn::Set(kU32, 7u);
    const VecU32 both = hn::Or(hn::And(low, seven), hn::ShiftLeft<4>(hn::And(high, seven)));
    const VecU32 signs = Source::signs(words);
    return hn::Or(both, hn::Or(hn::ShiftRight<12>(signs), hn::ShiftRight<24>(signs)));
  }

  static HWY_INLINE VecU32 one(VecF32 magnitude) {
    const VecF32 y = hn::Min(magnitude, hn::Set(kF32, kE2M1Max));
    return small_float_codes<1, 0x3F800000u>(y, 0x1.000004p+22f);
  }
};

// Two's complement: signs need no special handling.
template <typename Rounding>
struct I8Coder {
  static constexpr int kBits = 16;

  template <typename Source, typename Scale>
  static HWY_INLINE VecU32 codes(typename Source::Words words, const Scale& scale) {
    const VecU32 low = Rounding::apply(scale(Source::low_value(words)));
    const VecU32 high = Rounding::apply(scale(Source::high_value(words)));
    return hn::Or(hn::And(low, hn::Set(kU32, 0xFFu)), hn::ShiftLeft<8>(high));
  }
};

struct Truncation {
  static HWY_INLINE VecU32 apply(VecF32 y) { return hn::BitCast(kU32, hn::ConvertTo(kI32, y)); }
};

// Adds the largest float below 0.5, because 0.49999997 + 0.5 would round to 1.
struct HalfAway {
  static HWY_INLINE VecU32 apply(VecF32 y) {
    const VecF32 sign = hn::BitCast(kF32, hn::And(hn::BitCast(kU32, y), sign_bits()));
    return Truncation::apply(hn::Add(y, hn::Or(sign, hn::Set(kF32, 0x1.fffffep-2f))));
  }
};

// For scales chosen by others, so it saturates. 1.5 * 2^23 leaves the integer in the low bits.
struct HalfEven {
  static HWY_INLINE VecU32 apply(VecF32 y) {
    const VecF32 clamped = hn::Max(hn::Min(y, hn::Set(kF32, 127.0f)), hn::Set(kF32, -128.0f));
    return hn::BitCast(kU32, hn::Add(clamped, hn::Set(kF32, 0x1.8p+23f)));
  }
};

template <int kBits>
HWY_INLINE void store_codes(VecU32 codes, std::uint8_t* q) {
  if constexpr (kBits == 16) {
    constexpr hn::Rebind<std::uint16_t, decltype(kU32)> d16{};
    constexpr hn::Repartition<std::uint8_t, decltype(d16)> d8{};
    hn::StoreU(hn::BitCast(d8, hn::TruncateTo(d16, codes)), d8, q);
  } else {
    constexpr hn::Rebind<std::uint8_t, decltype(kU32)> d8{};
    hn::StoreU(hn::TruncateTo(d8, codes), d8, q);
  }
}

// Encodes whole vectors of finite elements to bytes; returns the number of elements encoded.
template <typename Source, typename Coder, typename Scale>
HWY_INLINE std::int64_t encode_vectors(const typename Source::Element* x, std::int64_t n,
                                       const Scale& scale, std::uint8_t* q) {
  static_assert(Coder::kBits == 16, "one byte an element");
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(kU32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    store_codes<16>(Coder::template codes<Source>(Source::load(x + i), scale), q + i);
  }
  return i;
}

template <typename Source, typename Coder>
HWY_INLINE std::int64_t divide_vectors(const typename Source::Element* x, std::int64_t n,
                                       float scale, std::uint8_t* q) {
#if HWY_NATIVE_FMA
  if constexpr (Source::kDType != DType::kF32) {
    return encode_vectors<Source, Coder>(x, n, DivideByReciprocal{scale, 1.0f / scale}, q);
  }
#endif
  return encode_vectors<Source, Coder>(x, n, Divide{scale}, q);
}

// The elements after the last whole vector. There are none as a rule; a call to code without AVX,
// before the upper halves of the registers are cleared, costs Intel's processors about 100 cycles.
template <typename Source>
HWY_INLINE void encode_rest(const typename Source::Element* x, std::int64_t done, std::int64_t n,
                            const ElementMap& map, std::uint8_t* q) {
  if (done < n) scalar::encode(x, Source::kDType, done, n, map, q);
}

// Encodes finite elements with a scale derived from them, so that no magnitude exceeds the largest
// value by more than rounding. map.factor is finite and positive.
template <typename Source, typename Coder>
HWY_INLINE void encode(const typename Source::Element* x, std::int64_t n, const ElementMap& map,
                       std::uint8_t* q) {
  const std::int64_t done = map.divides
                                ? divide_vectors<Source, Coder>(x, n, map.factor, q)
                                : encode_vectors<Source, Coder>(x, n, Multiply{map.factor}, q);
  encode_rest<Source>(x, done, n, map, q);
}

// The same with any finite, positive tensor scale.
template <typename Source, typename Coder>
HWY_INLINE void encode_clamped(const typename Source::Element* x, std::int64_t n,
                               const ElementMap& map, std::uint8_t* q) {
  const std::int64_t done =
      map.divides ? encode_vectors<Source, Coder>(x, n, Divide{map.factor}, q)
                  : encode_vectors<Source, Coder>(x, n, MultiplyAndClamp{map.factor}, q);
  encode_rest<Source>(x, done, n, map, q);
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard
