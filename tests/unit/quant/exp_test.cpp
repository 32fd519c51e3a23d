// SPDX-License-Identifier: Apache-2.0

#include "quant/exp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "quant/activation.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Distance from the exact value in f32 ulps at that value, subnormals included.
double error_in_ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::abs(static_cast<double>(got) - exact) / ulp;
}

double worst_error(std::uint64_t stride) {
  double worst = 0.0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += stride) {
    const float x = f32_from_bits(static_cast<std::uint32_t>(bits));
    if (!(x > -104.0f && x < 88.72f)) continue;
    worst = std::max(worst, error_in_ulps(exp_f32(x), std::exp(static_cast<double>(x))));
  }
  return worst;
}

TEST(ExpTest, ErrorIsBelowNineTenthsOfAnUlp) {
  EXPECT_LT(worst_error(test::is_exhaustive() ? 1 : 1021), 0.9);
}

TEST(ExpTest, EdgesFollowTheFunction) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(1e-30f), 1.0f);
  EXPECT_EQ(exp_f32(1.0f), 2.7182817f);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_FALSE(std::signbit(exp_f32(-kInfinity)));
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(88.72283f), 3.40279852e38f);  // the largest finite result
  EXPECT_EQ(exp_f32(std::nextafter(88.72283f, 89.0f)), kInfinity);
  EXPECT_EQ(exp_f32(-103.5f), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(exp_f32(-104.0f), 0.0f);
  EXPECT_EQ(bits_from_f32(exp_f32(f32_from_bits(0xFFFFFFFFu))), kF32NaN);
}

TEST(ExpTest, ActivationsFollowTheirFormulas) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(sigmoid(kInfinity), 1.0f);
  EXPECT_EQ(silu(kInfinity), kInfinity);
  EXPECT_EQ(bits_from_f32(silu(-kInfinity)), kF32NaN);
  EXPECT_EQ(bits_from_f32(silu(-0.0f)), kF32SignBit);
  for (float x = -20.0f; x <= 20.0f; x += 0.37f) {
    EXPECT_EQ(silu(x), x / (1.0f + exp_f32(-x)));
    EXPECT_NEAR(sigmoid(x), 1.0 / (1.0 + std::exp(-static_cast<double>(x))), 1e-7);
  }
}

// gate 7 and up 7 are the limits: 7 / (1 + exp(-11.914)) * 8.
TEST(ExpTest, ClampedSwigluKnownAnswers) {
  const auto gpt_oss = [](float gate, float up) {
    return clamped_swiglu(gate, up, 1.702f, 1.0f, 7.0f);
  };
  EXPECT_EQ(gpt_oss(0.0f, 5.0f), 0.0f);
  EXPECT_EQ(gpt_oss(3.0f, -1.0f), 0.0f);
  EXPECT_NEAR(gpt_oss(1.0f, 0.0f), 0.8457957659, 1e-7);
  EXPECT_NEAR(gpt_oss(7.0f, 7.0f), 55.99962503, 1e-5);
  EXPECT_EQ(gpt_oss(100.0f, 100.0f), gpt_oss(7.0f, 7.0f));
  EXPECT_EQ(gpt_oss(kInfinity, kInfinity), gpt_oss(7.0f, 7.0f));
  EXPECT_EQ(gpt_oss(2.0f, -100.0f), gpt_oss(2.0f, -7.0f));
  // The gate has no lower limit.
  EXPECT_NEAR(gpt_oss(-8.0f, 1.0f), -16.0 / (1.0 + std::exp(13.616)), 1e-10);
  EXPECT_EQ(bits_from_f32(gpt_oss(f32_from_bits(0xFFC00001u), 1.0f)), kF32NaN);
  EXPECT_EQ(bits_from_f32(gpt_oss(1.0f, f32_from_bits(0x7F800001u))), kF32NaN);
  EXPECT_EQ(bits_from_f32(gpt_oss(-kInfinity, 1.0f)), kF32NaN);
  // Without limits it equals silu_mul.
  for (float x = -20.0f; x <= 20.0f; x += 0.37f) {
    EXPECT_EQ(clamped_swiglu(x, 3.0f, 1.0f, 0.0f, kInfinity), silu_mul(x, 3.0f));
  }
}

std::vector<float> inputs() {
  std::vector<float> x{0.0f,  -0.0f,  kInfinity, -kInfinity, 88.72283f,
                       88.8f, -87.4f, -103.5f,   -104.1f};
  for (const std::uint32_t nan : {0x7F800001u, 0xFFC00000u, 0xFFFFFFFFu}) {
    x.push_back(f32_from_bits(nan));
  }
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521) {
    x.push_back(f32_from_bits(static_cast<std::uint32_t>(bits)));
  }
  for (float value = -110.0f; value < 95.0f; value += 0.0078125f) x.push_back(value);
  return x;
}

TEST(ExpTest, WideIsBitEqualOnEveryTarget) {
  const std::vector<float> x = inputs();
  const auto count = static_cast<std::int64_t>(x.size());
  test::for_each_target([&] {
    std::vector<float> y(x.size());
    exp_f32(x.data(), count, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(bits_from_f32(y[i]), bits_from_f32(exp_f32(x[i]))) << x[i];
    }
  });
}

TEST(ExpTest, WideGatedSiluIsBitEqualOnEveryTarget) {
  const std::vector<float> gate = inputs();
  std::vector<float> up(gate.rbegin(), gate.rend());
  test::for_each_target([&] {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{33}, gate.size()}) {
      std::vector<float> y(count + 1, 7.0f);
      silu_mul(gate.data(), up.data(), static_cast<std::int64_t>(count), y.data());
      for (std::size_t i = 0; i < count; ++i) {
        const float want = canonical_f32(silu(gate[i]) * up[i]);
        ASSERT_EQ(bits_from_f32(y[i]), bits_from_f32(want)) << gate[i] << " " << up[i];
      }
      EXPECT_EQ(y[count], 7.0f);
    }
  });
}

TEST(ExpTest, WideClampedSwigluIsBitEqualOnEveryTarget) {
  const std::vector<float> gate = inputs();
  std::vector<float> up(gate.rbegin(), gate.rend());
  const Activation choices[] = {
      activations::kGptOss,
      {ActivationKind::kClampedSwiGlu, 0.0f, -1.5f, 3.0f},  // 0 * -Inf is NaN
      {ActivationKind::kClampedSwiGlu, -2.0f, 0.0f, kInfinity},
  };
  test::for_each_target([&] {
    for (const Activation& a : choices) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{33}, gate.size()}) {
        std::vector<float> y(count + 1, 7.0f);
        activate(a, gate.data(), up.data(), static_cast<std::int64_t>(count), y.data());
        for (std::size_t i = 0; i < count; ++i) {
          const float want = clamped_swiglu(gate[i], up[i], a.alpha, a.beta, a.limit);
          ASSERT_EQ(bits_from_f32(y[i]), bits_from_f32(want)) << gate[i] << " " << up[i];
        }
        EXPECT_EQ(y[count], 7.0f);
      }
    }
  });
}

}  // namespace
}  // namespace switchyard
