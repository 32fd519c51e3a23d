// SPDX-License-Identifier: Apache-2.0
//
// golden_activation.h: gated activations against activation.safetensors, and silu_mul_quantize on
// either device. Vectors are exact values rounded once; ours may differ by the error of exp.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

#include "switchyard/activation.h"
#include "switchyard/quantize_batched.h"

#include "support/golden.h"

namespace switchyard::test {

struct NamedActivation {
  const char* name;
  Activation activation;
};
inline constexpr NamedActivation kGoldenActivations[] = {
    {"silu", activations::kSiluMul},
    {"gpt_oss", activations::kGptOss},
    {"limited", {ActivationKind::kClampedSwiGlu, 1.0f, 0.0f, 0.75f}},
    {"odd", {ActivationKind::kClampedSwiGlu, -0.5f, -2.0f}},
};

/// exp is wrong by less than 0.9 ulp, and sum, quotient and products round; alpha * gate rounds
/// before exp, which multiplies that error by its value. In units of 2^-24 of the result.
inline bool is_close(float got, float want, float exponent = 0.0f) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return true;
  const double bound = (8.0 + std::fabs(exponent)) * 0x1p-24;
  return std::fabs(double{got} - double{want}) <= bound * std::fabs(double{want}) + 0x1p-147;
}

/// Values of an activation for all pairs of gate and up.
inline void expect_golden_activation(const Golden& golden, const NamedActivation& test,
                                     const float* got) {
  const TensorView want = golden(test.name);
  const auto* gate = golden("gate").as<float>();
  const auto* up = golden("up").as<float>();
  for (std::int64_t i = 0; i < want.num_elements(); ++i) {
    const float exponent = std::fmin(gate[i], test.activation.limit) * test.activation.alpha;
    EXPECT_TRUE(is_close(got[i], want.as<float>()[i], exponent))
        << test.name << " of " << gate[i] << ", " << up[i] << " is " << got[i] << ", want "
        << want.as<float>()[i];
  }
}

/// silu(gate) * up in f32, without scales.
inline void expect_golden_silu_rows(const Golden& golden, Stream stream) {
  const Tensor x = copy_to(golden("fused/x"), stream.device());
  const Tensor y(DType::kF32, {x.shape(0), x.shape(1) / 2}, stream.device());
  silu_mul_quantize(x, {DType::kF32}, y, {}, stream);
  const Tensor got = y.to(Device::cpu());
  const TensorView want = golden("fused/y");
  for (std::int64_t i = 0; i < want.num_elements(); ++i) {
    EXPECT_TRUE(is_close(got.as<float>()[i], want.as<float>()[i])) << "element " << i;
  }
}

/// vLLM's fused rule: scales within the bound (powers of two equal), codes at most one step apart.
inline void expect_golden_fused(const Golden& golden, Stream stream, const std::string& name,
                                ScaleFormat format) {
  const QuantScheme scheme{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kDivide, format};
  const Tensor x = copy_to(golden("fused/x"), stream.device());
  const TensorView want_q = golden("fused/" + name + "/q");
  const TensorView want_scales = golden("fused/" + name + "/scales");
  const Tensor q(DType::kE4M3, {want_q.shape(0), want_q.shape(1)}, stream.device());
  const Tensor scales(DType::kF32, {want_scales.shape(0), want_scales.shape(1)}, stream.device());
  silu_mul_quantize(x, scheme, q, scales, stream, ActivationScale::kFused);
  if (format == ScaleFormat::kF32PowerOfTwo) expect_bytes(name, scales, want_scales);
  const Tensor got_q = q.to(Device::cpu());
  const Tensor got_scales = scales.to(Device::cpu());
  for (std::int64_t i = 0; i < want_scales.num_elements(); ++i) {
    EXPECT_TRUE(is_close(got_scales.as<float>()[i], want_scales.as<float>()[i])) << "scale " << i;
  }
  std::int64_t num_other = 0;
  for (std::int64_t i = 0; i < want_q.num_elements(); ++i) {
    const int distance = got_q.as<std::uint8_t>()[i] - want_q.as<std::uint8_t>()[i];
    EXPECT_LE(std::abs(distance), 1) << "element " << i;
    num_other += distance != 0 ? 1 : 0;
  }
  EXPECT_LE(num_other, 4) << "elements of " << want_q.num_elements() << " lie next to a tie";
}

inline void expect_golden_silu_quantize(const Golden& golden, Stream stream) {
  expect_golden_silu_rows(golden, stream);
  expect_golden_fused(golden, stream, "f32", ScaleFormat::kF32);
  expect_golden_fused(golden, stream, "power", ScaleFormat::kF32PowerOfTwo);
}

}  // namespace switchyard::test
