// SPDX-License-Identifier: Apache-2.0
//
// simd-inl.h: what the kernels of this folder need beyond Highway's own operations: a multiply-add
// that is fused on every target, and exact widening of 16-bit floats. Included once per target,
// after hwy/highway.h.

// clang-format off
#if defined(SWITCHYARD_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_CPU_SIMD_INL_H
#undef SWITCHYARD_CPU_SIMD_INL_H
#else
#define SWITCHYARD_CPU_SIMD_INL_H
#endif
// clang-format on

#include <cmath>
#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// a * b + c, rounded once. Highway's MulAdd rounds twice where the instruction set has no fma
/// (SSSE3, SSE4, EMU128); std::fma is called for each lane there.
template <typename D, typename V = hn::Vec<D>>
HWY_INLINE V fused_mul_add(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[hn::MaxLanes(D())];
  HWY_ALIGN float y[hn::MaxLanes(D())];
  HWY_ALIGN float z[hn::MaxLanes(D())];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

template <typename D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const std::uint16_t* bits) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> half;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(half, bits))));
}

// Exponent and fraction move to their places in an f32, and 2^112 corrects the bias, which is exact
// for subnormals too; infinity and NaN get the largest exponent instead.
template <typename D>
HWY_INLINE hn::Vec<D> load_f16(D d, const std::uint16_t* bits) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> half;
  const auto wide = hn::PromoteTo(du, hn::LoadU(half, bits));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x7FFFu)));
  const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
  const auto special = hn::Or(magnitude, hn::Set(du, 0x7F800000u));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x0F7FFFFFu));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // once per target
