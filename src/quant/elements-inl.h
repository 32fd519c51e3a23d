// SPDX-License-Identifier: Apache-2.0
//
// elements-inl.h: bf16, f16 and f32 rows as vectors, and their largest magnitude. Included once per
// Highway target.
//
// A 32-bit lane holds two adjacent elements of a row, `low` and `high`. 16-bit elements are widened
// by shifts, so nothing is shuffled until the codes are stored. Elements here are finite.

// Highway's include guard: once per target.
#if defined(SWITCHYARD_QUANT_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_QUANT_ELEMENTS_INL_H_
#undef SWITCHYARD_QUANT_ELEMENTS_INL_H_
#else
#define SWITCHYARD_QUANT_ELEMENTS_INL_H_
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

constexpr hn::ScalableTag<std::uint32_t> kU32{};
constexpr hn::ScalableTag<std::int32_t> kI32{};
constexpr hn::ScalableTag<std::uint16_t> kU16{};
constexpr hn::ScalableTag<std::int16_t> kI16{};
constexpr hn::ScalableTag<float> kF32{};
using VecU32 = hn::Vec<hn::ScalableTag<std::uint32_t>>;
using VecI32 = hn::Vec<hn::ScalableTag<std::int32_t>>;
using VecF32 = hn::Vec<hn::ScalableTag<float>>;

HWY_INLINE VecU32 sign_bits() { return hn::Set(kU32, kF32SignBit); }

// Common to Bf16 and F16: each 32-bit word holds two elements, the low half first. A source
// provides vectors of 2 * Lanes(kU32) elements (Words), both halves of each lane with signs
// (values) and without (magnitudes), and only the signs in bits 15 (low) and 31 (high), other bits
// zero.
struct HalfWords {
  using Element = std::uint16_t;
  using Words = VecU32;
  static HWY_INLINE Words load(const Element* x) { return hn::BitCast(kU32, hn::LoadU(kU16, x)); }
  static HWY_INLINE VecU32 signs(Words words) { return hn::And(words, hn::Set(kU32, 0x80008000u)); }
};

struct Bf16 : HalfWords {
  static constexpr DType kDType = DType::kBF16;
  static constexpr std::uint32_t kInfinity = 0x7F80;
  static HWY_INLINE VecF32 widen(VecU32 bits) { return hn::BitCast(kF32, hn::ShiftLeft<16>(bits)); }
  static float widen_one(std::uint32_t bits) { return f32_from_bits(bits << 16); }
  static HWY_INLINE VecF32 low_value(Words words) { return widen(words); }
  static HWY_INLINE VecF32 high_value(Words words) {
    return hn::BitCast(kF32, hn::And(words, hn::Set(kU32, 0xFFFF0000u)));
  }
  static HWY_INLINE Words magnitudes(Words words) {
    return hn::And(words, hn::Set(kU32, 0x7FFF7FFFu));
  }
  static HWY_INLINE VecF32 low_magnitude(Words magnitudes) { return low_value(magnitudes); }
  static HWY_INLINE VecF32 high_magnitude(Words magnitudes) { return high_value(magnitudes); }
};

struct F16 : HalfWords {
  static constexpr DType kDType = DType::kF16;
  static constexpr std::uint32_t kInfinity = 0x7C00;
  // Moves the bits to their places in an f32; 2^112 then corrects the bias. Exact for subnormals.
  static HWY_INLINE VecF32 rebias(VecU32 bits) {
    return hn::Mul(hn::BitCast(kF32, bits), hn::Set(kF32, 0x1p112f));
  }
  static HWY_INLINE VecF32 widen(VecU32 bits) { return rebias(hn::ShiftLeft<13>(bits)); }
  static float widen_one(std::uint32_t bits) { return f32_from_f16(static_cast<Element>(bits)); }
  static HWY_INLINE VecF32 low_magnitude(Words words) {
    return widen(hn::And(words, hn::Set(kU32, 0x7FFFu)));
  }
  static HWY_INLINE VecF32 high_magnitude(Words words) {
    return rebias(hn::And(hn::ShiftRight<3>(words), hn::Set(kU32, 0x0FFFE000u)));
  }
  static HWY_INLINE Words magnitudes(Words words) { return words; }
  static HWY_INLINE VecF32 low_value(Words words) {
    return with_sign(low_magnitude(words), hn::ShiftLeft<16>(words));
  }
  static HWY_INLINE VecF32 high_value(Words words) {
    return with_sign(high_magnitude(words), words);
  }

 private:
  static HWY_INLINE VecF32 with_sign(VecF32 magnitude, VecU32 sign) {
    return hn::Or(magnitude, hn::BitCast(kF32, hn::And(sign, sign_bits())));
  }
};

struct F32 {
  using Element = float;
  struct Words {
    VecF32 low;
    VecF32 high;
  };
  static constexpr DType kDType = DType::kF32;
  static constexpr std::uint32_t kInfinity = kF32Infinity;
  static HWY_INLINE VecF32 widen(VecU32 bits) { return hn::BitCast(kF32, bits); }
  static float widen_one(std::uint32_t bits) { return f32_from_bits(bits); }
  static HWY_INLINE Words load(const float* x) {
    Words words;
    hn::LoadInterleaved2(kF32, x, words.low, words.high);
    return words;
  }
  static HWY_INLINE VecU32 signs(Words words) {
    const VecU32 low = hn::And(hn::BitCast(kU32, words.low), sign_bits());
    const VecU32 high = hn::And(hn::BitCast(kU32, words.high), sign_bits());
    return hn::Or(hn::ShiftRight<16>(low), high);
  }
  static HWY_INLINE Words magnitudes(Words words) { return words; }
  static HWY_INLINE VecF32 low_magnitude(Words words) { return hn::Abs(words.low); }
  static HWY_INLINE VecF32 high_magnitude(Words words) { return hn::Abs(words.high); }
  static HWY_INLINE VecF32 low_value(Words words) { return words.low; }
  static HWY_INLINE VecF32 high_value(Words words) { return words.high; }
};

// Prefetches what follows the row, usually the next row, since encoding leaves memory idle. This is
// a hint and never a read, so it may point past the end.
template <typename Element>
HWY_INLINE void prefetch_ahead(const Element* x, std::int64_t num_elements, std::int64_t distance) {
  const auto from =
      reinterpret_cast<std::uintptr_t>(x) + static_cast<std::uintptr_t>(distance) * sizeof(Element);
  const auto end = from + static_cast<std::uintptr_t>(num_elements) * sizeof(Element);
  for (std::uintptr_t line = from; line < end; line += 64) {
    hwy::Prefetch(reinterpret_cast<const std::byte*>(line));
  }
}

// The largest bit pattern without sign; above kInfinity if there is a NaN.
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
