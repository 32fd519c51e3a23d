// SPDX-License-Identifier: Apache-2.0
//
// simd_dequantize.cpp: e4m3 to f32, wide. The code's bits, moved to f32's place, plus the
// difference of the exponent biases are the value of a normal code; a subnormal one is first given
// exponent 1 and then loses the leading one that this adds.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_dequantize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {

void dequantize(const std::uint8_t* q, std::int64_t num_elements, float scale, float* y) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr hn::ScalableTag<float> d{};
  constexpr hn::RebindToUnsigned<decltype(d)> du{};
  constexpr hn::Rebind<std::uint8_t, decltype(d)> d8{};
  const auto nan = hn::BitCast(d, hn::Set(du, kF32NaN));
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  for (; i + step <= num_elements; i += step) {
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, q + i));
    const auto magnitude = hn::And(code, hn::Set(du, 0x7Fu));
    const auto sign = hn::ShiftLeft<24>(hn::AndNot(hn::Set(du, 0x7Fu), code));
    const auto normal = hn::BitCast(
        d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, std::uint32_t{120} << 23)));
    const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude),
                                                          hn::Set(du, std::uint32_t{121} << 23))),
                                   hn::Set(d, 0x1p-6f));
    const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 8u)));
    const auto is_nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7Fu)));
    const auto value =
        hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::BitCast(d, sign));
    const auto product = hn::Mul(hn::IfThenElse(is_nan, nan, value), hn::Set(d, scale));
    hn::StoreU(hn::IfThenElse(hn::IsNaN(product), nan, product), d, y + i);
  }
#endif
  for (; i < num_elements; ++i) y[i] = canonical_f32(f32_from_e4m3(q[i]) * scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard::simd {

HWY_EXPORT(dequantize);

void dequantize(const std::uint8_t* q, std::int64_t num_elements, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(dequantize)(q, num_elements, scale, y);
}

}  // namespace switchyard::simd
#endif
