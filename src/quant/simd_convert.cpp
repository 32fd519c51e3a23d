// SPDX-License-Identifier: Apache-2.0
//
// simd_convert.cpp: vectorized conversions between f32 and bf16 or f16, with the rounding and NaN
// of bf16.h and f16.h. Highway's own conversions truncate (bf16) or keep NaN payloads (f16), so
// they are not used.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_convert.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/rows.h"
#include "quant/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<std::uint32_t> kU32{};
constexpr hn::ScalableTag<std::int32_t> kI32{};
constexpr hn::ScalableTag<float> kF32{};
constexpr hn::Rebind<std::uint16_t, decltype(kU32)> kU16{};
using VecU32 = hn::Vec<hn::ScalableTag<std::uint32_t>>;

HWY_INLINE VecU32 set(std::uint32_t bits) { return hn::Set(kU32, bits); }

// For bits without a sign, which compare as signed integers; every target has that comparison.
HWY_INLINE hn::Mask<hn::ScalableTag<std::uint32_t>> is_above(VecU32 magnitude,
                                                             std::uint32_t limit) {
  return hn::RebindMask(
      kU32, hn::Gt(hn::BitCast(kI32, magnitude), hn::Set(kI32, static_cast<std::int32_t>(limit))));
}

struct WidenBf16 {
  static HWY_INLINE VecU32 apply(VecU32 x) {
    const VecU32 bits = hn::ShiftLeft<16>(x);
    const auto is_nan = is_above(hn::And(bits, set(~kF32SignBit)), kF32Infinity);
    return hn::IfThenElse(is_nan, set(kF32NaN), bits);
  }
  static float scalar(std::uint16_t x) { return f32_from_bf16(x); }
};

struct WidenF16 {
  static HWY_INLINE VecU32 apply(VecU32 x) {
    const VecU32 magnitude = hn::And(x, set(0x7FFFu));
    const VecU32 sign = hn::ShiftLeft<16>(hn::AndNot(set(0x7FFFu), x));
    // 2^112 corrects the exponent bias; exact, also for subnormals.
    const VecU32 finite = hn::BitCast(
        kU32, hn::Mul(hn::BitCast(kF32, hn::ShiftLeft<13>(magnitude)), hn::Set(kF32, 0x1p112f)));
    const VecU32 number = hn::IfThenElse(is_above(magnitude, 0x7BFFu), set(kF32Infinity), finite);
    return hn::IfThenElse(is_above(magnitude, 0x7C00u), set(kF32NaN), hn::Or(number, sign));
  }
  static float scalar(std::uint16_t x) { return f32_from_f16(x); }
};

// bits / 2^kShift, to nearest, ties to even.
template <int kShift>
HWY_INLINE VecU32 shift_to_even(VecU32 bits) {
  const VecU32 odd = hn::And(hn::ShiftRight<kShift>(bits), set(1u));
  constexpr std::uint32_t kBelowHalf = (1u << (kShift - 1)) - 1;
  return hn::ShiftRight<kShift>(hn::Add(hn::Add(bits, set(kBelowHalf)), odd));
}

struct NarrowBf16 {
  static HWY_INLINE VecU32 apply(VecU32 bits) {
    const auto is_nan = is_above(hn::And(bits, set(~kF32SignBit)), kF32Infinity);
    return hn::IfThenElse(is_nan, set(0x7FC0u), shift_to_even<16>(bits));
  }
  static std::uint16_t scalar(float x) { return bf16_from_f32(x); }
};

struct NarrowF16 {
  static HWY_INLINE VecU32 apply(VecU32 bits) {
    const VecU32 magnitude = hn::And(bits, set(~kF32SignBit));
    const VecU32 sign = hn::AndNot(set(0x7FFFu), hn::ShiftRight<16>(bits));
    const VecU32 normal = shift_to_even<13>(hn::Sub(magnitude, set(112u << 23)));
    // Adding 1/2 leaves the subnormal code, in units of 2^-24, in the low bits of the sum.
    const VecU32 sum =
        hn::BitCast(kU32, hn::Add(hn::BitCast(kF32, magnitude), hn::Set(kF32, 0.5f)));
    const VecU32 subnormal = hn::Sub(sum, set(bits_from_f32(0.5f)));
    const VecU32 finite = hn::IfThenElse(is_above(magnitude, (113u << 23) - 1), normal, subnormal);
    // 65520 and above round to infinity.
    const VecU32 number = hn::IfThenElse(is_above(magnitude, 0x477FEFFFu), set(0x7C00u), finite);
    return hn::IfThenElse(is_above(magnitude, kF32Infinity), set(0x7E00u), hn::Or(number, sign));
  }
  static std::uint16_t scalar(float x) { return f16_from_f32(x); }
};

template <typename Widen>
HWY_INLINE std::int64_t convert_vectors(const std::uint16_t* x, std::int64_t n, float* y) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kU32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecU32 bits = Widen::apply(hn::PromoteTo(kU32, hn::LoadU(kU16, x + i)));
    hn::StoreU(hn::BitCast(kF32, bits), kF32, y + i);
  }
  return i;
}

template <typename Narrow>
HWY_INLINE std::int64_t convert_vectors(const float* x, std::int64_t n, std::uint16_t* y) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kU32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecU32 code = Narrow::apply(hn::BitCast(kU32, hn::LoadU(kF32, x + i)));
    hn::StoreU(hn::TruncateTo(kU16, code), kU16, y + i);
  }
  return i;
}
#else
struct WidenBf16 {
  static float scalar(std::uint16_t x) { return f32_from_bf16(x); }
};
struct WidenF16 {
  static float scalar(std::uint16_t x) { return f32_from_f16(x); }
};
struct NarrowBf16 {
  static std::uint16_t scalar(float x) { return bf16_from_f32(x); }
};
struct NarrowF16 {
  static std::uint16_t scalar(float x) { return f16_from_f32(x); }
};
template <typename Conversion, typename From, typename To>
std::int64_t convert_vectors(const From*, std::int64_t, To*) {
  return 0;
}
#endif

template <typename Conversion, typename From, typename To>
HWY_INLINE void convert(const From* x, std::int64_t n, To* y) {
  for (std::int64_t i = convert_vectors<Conversion>(x, n, y); i < n; ++i) {
    y[i] = Conversion::scalar(x[i]);
  }
}

void widen_bf16(const std::uint16_t* x, std::int64_t n, float* y) { convert<WidenBf16>(x, n, y); }
void widen_f16(const std::uint16_t* x, std::int64_t n, float* y) { convert<WidenF16>(x, n, y); }
void narrow_bf16(const float* x, std::int64_t n, std::uint16_t* y) { convert<NarrowBf16>(x, n, y); }
void narrow_f16(const float* x, std::int64_t n, std::uint16_t* y) { convert<NarrowF16>(x, n, y); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {
namespace simd {
HWY_EXPORT(widen_bf16);
HWY_EXPORT(widen_f16);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_f16);
}  // namespace simd

using namespace simd;  // HWY_DYNAMIC_DISPATCH looks up its tables by unqualified name

void bf16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y) {
  HWY_DYNAMIC_DISPATCH(widen_bf16)(x, num_elements, y);
}

void f32_to_bf16(const float* x, std::int64_t num_elements, std::uint16_t* y) {
  HWY_DYNAMIC_DISPATCH(narrow_bf16)(x, num_elements, y);
}

void f16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y) {
  HWY_DYNAMIC_DISPATCH(widen_f16)(x, num_elements, y);
}

void f32_to_f16(const float* x, std::int64_t num_elements, std::uint16_t* y) {
  HWY_DYNAMIC_DISPATCH(narrow_f16)(x, num_elements, y);
}

}  // namespace switchyard
#endif
