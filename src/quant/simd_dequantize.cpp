// SPDX-License-Identifier: Apache-2.0
//
// simd_dequantize.cpp: vectorized decoding to f32. The bits of a small float's code, moved to their
// place in an f32, plus the difference of the exponent biases give the value of a normal code. A
// subnormal code first gets exponent 1 and then loses the leading one that this adds.

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_dequantize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
namespace hn = hwy::HWY_NAMESPACE;

// The values of the codes in the low bits of the lanes, for the given sign bit and mantissa bits.
template <int kSignBit, int kMantissaBits, int kBias, class D, class V>
HWY_INLINE hn::Vec<D> small_float_values(D d, V code) {
  constexpr hn::RebindToUnsigned<D> du{};
  constexpr auto kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  constexpr std::uint32_t kMask = (1u << kSignBit) - 1;
  const V magnitude = hn::And(code, hn::Set(du, kMask));
  const V sign = hn::ShiftLeft<31 - kSignBit>(hn::And(code, hn::Set(du, kMask + 1)));
  const V bits = hn::ShiftLeft<23 - kMantissaBits>(magnitude);
  const auto normal = hn::BitCast(d, hn::Add(bits, hn::Set(du, kRebias)));
  const auto least_normal = hn::BitCast(d, hn::Set(du, kRebias + (1u << 23)));
  const auto subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(du, kRebias + (1u << 23)))), least_normal);
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 1u << kMantissaBits)));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::BitCast(d, sign));
}

template <class D>
HWY_INLINE hn::Vec<D> scaled(D d, hn::Vec<D> value, float scale) {
  const auto nan = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), kF32NaN));
  const auto product = hn::Mul(value, hn::Set(d, scale));
  return hn::IfThenElse(hn::IsNaN(product), nan, product);
}

// Decoders compute element * scale for the elements of a block, and return how many they decoded.
struct E4M3Decoder {
  static HWY_INLINE std::int64_t decode(const std::uint8_t* q, std::int64_t n, float scale,
                                        float* y) {
    constexpr hn::ScalableTag<float> d{};
    constexpr hn::RebindToUnsigned<decltype(d)> du{};
    constexpr hn::Rebind<std::uint8_t, decltype(d)> d8{};
    const auto nan = hn::BitCast(d, hn::Set(du, kF32NaN));
    const auto mask = hn::Set(du, 0x7Fu);
    const auto step = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
      const auto code = hn::PromoteTo(du, hn::LoadU(d8, q + i));
      const auto is_nan = hn::RebindMask(d, hn::Eq(hn::And(code, mask), mask));
      const auto value = hn::IfThenElse(is_nan, nan, small_float_values<7, 3, 7>(d, code));
      hn::StoreU(scaled(d, value, scale), d, y + i);
    }
    return i;
  }
};

struct I8Decoder {
  static HWY_INLINE std::int64_t decode(const std::uint8_t* q, std::int64_t n, float scale,
                                        float* y) {
    constexpr hn::ScalableTag<float> d{};
    constexpr hn::RebindToSigned<decltype(d)> di{};
    constexpr hn::Rebind<std::uint8_t, decltype(d)> d8{};
    constexpr hn::RebindToSigned<decltype(d8)> di8{};
    const auto step = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
      const auto code = hn::PromoteTo(di, hn::BitCast(di8, hn::LoadU(d8, q + i)));
      hn::StoreU(scaled(d, hn::ConvertTo(d, code), scale), d, y + i);
    }
    return i;
  }
};

// Decodes at most 8 bytes at once, so that a block of 16 fills a vector.
struct E2M1Decoder {
  static HWY_INLINE std::int64_t decode(const std::uint8_t* q, std::int64_t n, float scale,
                                        float* y) {
    constexpr hn::CappedTag<float, 8> d{};
    constexpr hn::RebindToUnsigned<decltype(d)> du{};
    constexpr hn::Rebind<std::uint8_t, decltype(d)> d8{};
    const auto step = static_cast<std::int64_t>(2 * hn::Lanes(d));
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
      const auto pair = hn::PromoteTo(du, hn::LoadU(d8, q + i / 2));
      const auto low = small_float_values<3, 1, 1>(d, pair);
      const auto high = small_float_values<3, 1, 1>(d, hn::ShiftRight<4>(pair));
      hn::StoreInterleaved2(scaled(d, low, scale), scaled(d, high, scale), d, y + i);
    }
    return i;
  }
};

#else  // no vectors: the scalar definition decodes everything
struct NoDecoder {
  static std::int64_t decode(const std::uint8_t*, std::int64_t, float, float*) { return 0; }
};
using E4M3Decoder = NoDecoder;
using I8Decoder = NoDecoder;
using E2M1Decoder = NoDecoder;
#endif

template <typename Decoder>
void dequantize_blocks(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                       std::int64_t hidden, float* y, float tensor_scale) {
  const std::int64_t group = scalar::elements_per_scale(scheme, hidden);
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const int bits = scheme.dtype == DType::kE2M1 ? 4 : 8;
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += group, ++b) {
    const std::int64_t n = std::min(group, hidden - begin);
    const float stored =
        is_tensor ? tensor_scale : scalar::load_scale(scheme.scale_format, scales, b);
    const float scale = effective_scale(scheme, stored, tensor_scale);
    const std::uint8_t* codes = q + begin * bits / 8;
    for (std::int64_t i = Decoder::decode(codes, n, scale, y + begin); i < n; ++i) {
      const float value = decode(scheme.dtype, scalar::load_code(scheme.dtype, codes, i));
      y[begin + i] = canonical_f32(value * scale);
    }
  }
}

void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale) {
  switch (scheme.dtype) {
    case DType::kI8:
      return dequantize_blocks<I8Decoder>(scheme, q, scales, hidden, y, tensor_scale);
    case DType::kE2M1:
      return dequantize_blocks<E2M1Decoder>(scheme, q, scales, hidden, y, tensor_scale);
    default: return dequantize_blocks<E4M3Decoder>(scheme, q, scales, hidden, y, tensor_scale);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard::simd {

HWY_EXPORT(dequantize_row);

void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale) {
  HWY_DYNAMIC_DISPATCH(dequantize_row)(scheme, q, scales, hidden, y, tensor_scale);
}

}  // namespace switchyard::simd
#endif
