// SPDX-License-Identifier: Apache-2.0
//
// simd_activation.cpp: exp.h, vectorized, with the same operations in the same order. Only for
// targets with fma: elsewhere Highway's MulAdd rounds twice.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/activation.h"
#include "quant/exp.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR && HWY_NATIVE_FMA
namespace hn = hwy::HWY_NAMESPACE;
namespace ec = exp_constants;

constexpr hn::ScalableTag<float> kF32{};
constexpr hn::RebindToSigned<decltype(kF32)> kI32{};
using VecF32 = hn::Vec<hn::ScalableTag<float>>;

HWY_INLINE VecF32 set(float x) { return hn::Set(kF32, x); }

HWY_INLINE VecF32 canonical(VecF32 x) {
  const VecF32 nan = hn::BitCast(kF32, hn::Set(kI32, static_cast<std::int32_t>(kF32NaN)));
  return hn::IfThenElse(hn::IsNaN(x), nan, x);
}

// 2^n for n from -126 to 127.
HWY_INLINE VecF32 power_of_two(hn::VFromD<decltype(kI32)> n) {
  return hn::BitCast(kF32, hn::ShiftLeft<23>(hn::Add(n, hn::Set(kI32, 127))));
}

// NaN may yield any NaN or number; the caller restores it.
HWY_INLINE VecF32 exp_of_number(VecF32 x) {
  const VecF32 clamped = hn::Min(hn::Max(x, set(ec::kMin)), set(ec::kMax));
  const VecF32 shifted = hn::MulAdd(clamped, set(ec::kLog2E), set(ec::kRound));
  const VecF32 n = hn::Sub(shifted, set(ec::kRound));
  const VecF32 r =
      hn::MulAdd(n, set(ec::kMinusLn2Low), hn::MulAdd(n, set(ec::kMinusLn2High), clamped));
  VecF32 p = hn::MulAdd(set(ec::kC4), r, set(ec::kC3));
  p = hn::MulAdd(p, r, set(ec::kC2));
  p = hn::MulAdd(p, r, set(ec::kC1));
  p = hn::MulAdd(p, r, set(ec::kC0));
  p = hn::MulAdd(p, r, set(1.0f));
  const VecF32 y = hn::MulAdd(p, r, set(1.0f));
  const auto exponent = hn::Sub(hn::BitCast(kI32, shifted), hn::BitCast(kI32, set(ec::kRound)));
  const auto half = hn::ShiftRight<1>(exponent);
  return hn::Mul(hn::Mul(y, power_of_two(half)), power_of_two(hn::Sub(exponent, half)));
}

HWY_INLINE std::int64_t exp_vectors(const float* x, std::int64_t n, float* y) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kF32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecF32 v = hn::LoadU(kF32, x + i);
    const VecF32 result = hn::IfThenElse(hn::IsNaN(v), v, exp_of_number(v));
    hn::StoreU(canonical(result), kF32, y + i);
  }
  return i;
}

HWY_INLINE std::int64_t silu_mul_vectors(const float* gate, const float* up, std::int64_t n,
                                         float* y) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kF32));
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const VecF32 x = hn::LoadU(kF32, gate + i);
    const VecF32 denominator = hn::Add(set(1.0f), exp_of_number(hn::Neg(x)));
    const VecF32 result = hn::Mul(hn::Div(x, denominator), hn::LoadU(kF32, up + i));
    hn::StoreU(canonical(hn::IfThenElse(hn::IsNaN(x), x, result)), kF32, y + i);
  }
  return i;
}

HWY_INLINE std::int64_t clamped_swiglu_vectors(const Activation& a, const float* gate,
                                               const float* up, std::int64_t n, float* y) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(kF32));
  const VecF32 limit = set(a.limit);
  const VecF32 minus_limit = set(-a.limit);
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    VecF32 g = hn::LoadU(kF32, gate + i);
    VecF32 u = hn::LoadU(kF32, up + i);
    g = hn::IfThenElse(hn::Gt(g, limit), limit, g);  // Min would lose NaN
    u = hn::IfThenElse(hn::Gt(u, limit), limit, u);
    u = hn::IfThenElse(hn::Lt(u, minus_limit), minus_limit, u);
    const VecF32 x = hn::Mul(set(a.alpha), g);
    const VecF32 denominator = hn::Add(set(1.0f), exp_of_number(hn::Neg(x)));
    const VecF32 result = hn::Mul(hn::Div(g, denominator), hn::Add(u, set(a.beta)));
    hn::StoreU(canonical(hn::IfThenElse(hn::IsNaN(x), x, result)), kF32, y + i);
  }
  return i;
}
#else
std::int64_t exp_vectors(const float*, std::int64_t, float*) { return 0; }
std::int64_t silu_mul_vectors(const float*, const float*, std::int64_t, float*) { return 0; }
std::int64_t clamped_swiglu_vectors(const Activation&, const float*, const float*, std::int64_t,
                                    float*) {
  return 0;
}
#endif

void exp_array(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = exp_vectors(x, n, y); i < n; ++i) y[i] = exp_f32(x[i]);
}

void silu_mul_array(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = silu_mul_vectors(gate, up, n, y); i < n; ++i) {
    y[i] = silu_mul(gate[i], up[i]);
  }
}

void clamped_swiglu_array(const Activation& a, const float* gate, const float* up, std::int64_t n,
                          float* y) {
  for (std::int64_t i = clamped_swiglu_vectors(a, gate, up, n, y); i < n; ++i) {
    y[i] = clamped_swiglu(gate[i], up[i], a.alpha, a.beta, a.limit);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {
namespace simd {
HWY_EXPORT(exp_array);
HWY_EXPORT(silu_mul_array);
HWY_EXPORT(clamped_swiglu_array);

void run_exp(const float* x, std::int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(exp_array)(x, n, y); }

void run_silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(silu_mul_array)(gate, up, n, y);
}

void run_clamped_swiglu(const Activation& a, const float* gate, const float* up, std::int64_t n,
                        float* y) {
  HWY_DYNAMIC_DISPATCH(clamped_swiglu_array)(a, gate, up, n, y);
}
}  // namespace simd

void exp_f32(const float* x, std::int64_t num_elements, float* y) {
  simd::run_exp(x, num_elements, y);
}

void silu_mul(const float* gate, const float* up, std::int64_t num_elements, float* y) {
  simd::run_silu_mul(gate, up, num_elements, y);
}

void activate(const Activation& activation, const float* gate, const float* up,
              std::int64_t num_elements, float* y) {
  if (activation.kind == ActivationKind::kClampedSwiGlu) {
    simd::run_clamped_swiglu(activation, gate, up, num_elements, y);
  } else {
    simd::run_silu_mul(gate, up, num_elements, y);
  }
}

}  // namespace switchyard
#endif
