// SPDX-License-Identifier: Apache-2.0

#include "cpu/intermediate.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "quant/exp.h"
#include "quant/scalar.h"

namespace switchyard {
namespace {

std::vector<float> normal_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(random_normal(seed, i));
  return values;
}

std::vector<float> rounded(const QuantScheme& scheme, std::int64_t width, std::vector<float> h) {
  std::vector<std::byte> scratch(intermediate_scratch_bytes(scheme, width));
  round_intermediate(scheme, static_cast<std::int64_t>(h.size()) / width, width, h.data(),
                     scratch.data());
  return h;
}

TEST(ActivateRowsTest, WorksOnRowsThatAreApart) {
  constexpr std::int64_t kWidth = 37;
  constexpr std::int64_t kStride = 80;
  const std::vector<float> gate_up = normal_values(3 * kStride, 1);
  for (const Activation& a : {activations::kSiluMul, activations::kGptOss}) {
    std::vector<float> h(3 * kWidth);
    activate_rows(a, gate_up.data(), gate_up.data() + 40, kStride, 3, kWidth, h.data());
    for (std::size_t i = 0; i < h.size(); ++i) {
      const std::size_t at = i / kWidth * kStride + i % kWidth;
      const float gate = gate_up[at];
      const float up = gate_up[at + 40];
      EXPECT_EQ(h[i], a == activations::kSiluMul
                          ? silu(gate) * up
                          : clamped_swiglu(gate, up, a.alpha, a.beta, a.limit));
    }
  }
}

TEST(AddBiasTest, AddsOnceToEachRowAndNothingBetweenRows) {
  const float bias[] = {1.0f, -2.0f, 0x1p-24f};
  std::vector<float> y = {1, 2, 1, 9, 3, 4, 0, 9};
  add_bias(bias, 3, 2, y.data(), 4);
  EXPECT_EQ(y, (std::vector<float>{2, 0, 1, 9, 4, 2, 0x1p-24f, 9}));
}

TEST(RoundIntermediateTest, NoneRoundsToBF16) {
  // Ties go to even.
  EXPECT_EQ(rounded(schemes::kNone, 3, {0x1.01p+0f, 0x1.03p+0f, 1.5f}),
            (std::vector<float>{1.0f, 0x1.04p+0f, 1.5f}));
}

// 448 and 0.267 share a per-tensor scale of 1; with per-token scales each row has its own.
TEST(RoundIntermediateTest, ScaleIsThatOfTheTensorOrOfTheRow) {
  const std::vector<float> h = {448.0f, 448.0f, 0x1.11p-2f, 0x1.11p-2f};
  const std::vector<float> tensor = rounded(schemes::kFp8Tensor, 2, h);
  EXPECT_EQ(tensor[0], 448.0f);
  EXPECT_EQ(tensor[2], 0x1.2p-2f);  // 1.066 rounds to 3 mantissa bits: 1.125
  const std::vector<float> token = rounded(schemes::kFp8Token, 2, h);
  EXPECT_EQ(token[0], 448.0f);
  EXPECT_NEAR(token[2], 0x1.11p-2f, 1e-7);  // the largest value of its row
}

TEST(RoundIntermediateTest, AStaticScaleIsUsedAsGiven) {
  std::vector<float> h = {3.0f, 1000.0f};
  std::vector<std::byte> scratch(intermediate_scratch_bytes(schemes::kFp8Tensor, 2));
  round_intermediate(schemes::kFp8Tensor, 1, 2, h.data(), scratch.data(), 0.5f);
  EXPECT_EQ(h, (std::vector<float>{3.0f, 224.0f}));  // clamped to 448 * 0.5
}

TEST(RoundIntermediateTest, EqualsTheScalarDefinition) {
  for (const QuantScheme& scheme :
       {schemes::kFp8Block, schemes::kFp8BlockDeepEp, schemes::kFp8Token}) {
    for (const std::int64_t width : {1, 127, 128, 300}) {
      const std::vector<float> h = normal_values(static_cast<std::size_t>(5 * width), 3);
      std::vector<float> expected = h;
      std::vector<std::uint8_t> q(static_cast<std::size_t>(width));
      std::vector<float> scales(static_cast<std::size_t>(num_scales(scheme, width)));
      for (float* row = expected.data(); row < expected.data() + 5 * width; row += width) {
        scalar::quantize_row(scheme, row, DType::kF32, width, q.data(), scales.data());
        scalar::dequantize_row(scheme, q.data(), scales.data(), width, row);
      }
      EXPECT_EQ(rounded(scheme, width, h), expected) << name_of(scheme) << ", " << width;
    }
  }
}

}  // namespace
}  // namespace switchyard
