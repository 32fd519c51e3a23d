// SPDX-License-Identifier: Apache-2.0
//
// Weights of every format: known values, then exact experts against the oracle.

#include <array>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "cpu/weights.h"
#include "expert_problem.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using namespace test;

std::vector<float> read_row(const WeightTensor& tensor, std::int64_t expert, std::int64_t output) {
  std::vector<float> row(static_cast<std::size_t>(tensor.values.shape(2)));
  WeightReader(tensor).read(expert, output, row.data());
  return row;
}

// Two rows of four: codes 0 to 3 and 12 to 15, the first of each pair in the low nibble.
TEST(WeightReaderTest, Fp4KnownAnswers) {
  const std::uint8_t codes[] = {0x10, 0x32, 0xDC, 0xFE};
  const std::uint8_t powers[] = {127, 130, 126, 128};  // 1, 8, 1/2, 2: one scale per two inputs
  const WeightTensor mx{TensorView(codes, DType::kE2M1, {1, 2, 4}),
                        TensorView(powers, DType::kE8M0, {1, 2, 2}),
                        {1, 2}};
  EXPECT_EQ(read_row(mx, 0, 0), (std::vector<float>{0, 0.5f, 8, 12}));
  EXPECT_EQ(read_row(mx, 0, 1), (std::vector<float>{-1, -1.5f, -8, -12}));

  const std::uint8_t scales[] = {0x38, 0x40, 0x7E, 0x01};  // e4m3: 1, 2, 448, 2^-9
  const float alpha[] = {0.25f};
  const WeightTensor nv{TensorView(codes, DType::kE2M1, {1, 2, 4}),
                        TensorView(scales, DType::kE4M3, {1, 2, 2}),
                        {1, 2},
                        TensorView::of(alpha, {1})};
  EXPECT_EQ(read_row(nv, 0, 0), (std::vector<float>{0, 0.125f, 0.5f, 0.75f}));
  EXPECT_EQ(read_row(nv, 0, 1), (std::vector<float>{-224, -336, -0x1p-9f, -0x1.8p-9f}));
}

TEST(WeightReaderTest, Int8ByChannelAndFp8ByTensorKnownAnswers) {
  const std::int8_t i8[] = {1, -2, 127, -128, 0, 3};
  const std::uint16_t channels[] = {bf16_from_f32(0.5f), bf16_from_f32(2.0f)};
  const WeightTensor channel{TensorView::of(i8, {1, 2, 3}),
                             TensorView(channels, DType::kBF16, {1, 2, 1}),
                             weight_blocks::kChannel};
  EXPECT_EQ(read_row(channel, 0, 0), (std::vector<float>{0.5f, -1, 63.5f}));
  EXPECT_EQ(read_row(channel, 0, 1), (std::vector<float>{-256, 0, 6}));

  const std::uint8_t e4m3[] = {0x38, 0xB8, 0x7E, 0x01};  // two experts: 1, -1; 448, 2^-9
  const float scales[] = {3.0f, 0.5f};
  const WeightTensor tensor{TensorView(e4m3, DType::kE4M3, {2, 1, 2}),
                            TensorView::of(scales, {2, 1, 1}), weight_blocks::kTensor};
  EXPECT_EQ(read_row(tensor, 0, 0), (std::vector<float>{3, -3}));
  EXPECT_EQ(read_row(tensor, 1, 0), (std::vector<float>{224, 0x1p-10f}));
}

const WeightFormat kFormats[] = {
    DType::kBF16,
    DType::kF16,
    DType::kF32,
    DType::kE4M3,
    {DType::kE4M3, DType::kF32, weight_blocks::kTensor},
    {DType::kE4M3, DType::kF32, weight_blocks::kChannel},
    {DType::kE4M3, DType::kE8M0, {1, 32}},
    {DType::kE4M3, DType::kBF16, {7, 5}},
    {DType::kI8, DType::kF32, weight_blocks::kChannel},
    {DType::kI8, DType::kF16, weight_blocks::kTensor},
    {DType::kI8, DType::kF32, weight_blocks::k128x128},
    {DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true},
    {DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4},
    {DType::kE2M1, DType::kF32, {1, 3}},
};

TEST(ExpertWeightsTest, EveryFormatEqualsTheOracleOverOddSizes) {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{2, 2}, {130, 34}, {38, 290}};
  for (const WeightFormat& format : kFormats) {
    for (const auto& [hidden, intermediate] : sizes) {
      const Problem problem(hidden, intermediate, {1, 0, 7, 3}, format);
      EXPECT_EQ(run_experts(*make_exact_experts(problem.weights()), problem),
                oracle_experts(problem))
          << name_of(format.dtype) << " with " << name_of(format.scale_dtype) << " for "
          << format.block.outputs << " x " << format.block.inputs << ", " << hidden << " x "
          << intermediate;
    }
  }
}

TEST(WeightReaderTest, OneExpertAloneReadsTheSame) {
  for (const WeightFormat& format : kFormats) {
    const test::Weight weight(format, 3, 6, 10, 1);
    const WeightTensor all{weight.values, weight.scales, format.block, weight.alpha};
    for (std::int64_t e = 0; e < 3; ++e) {
      for (std::int64_t n = 0; n < 6; ++n) {
        EXPECT_EQ(read_row(all.of_expert(e), 0, n), read_row(all, e, n)) << name_of(format.dtype);
      }
    }
  }
}

TEST(ExpertWeightsTest, OnlyBF16StaysNarrow) {
  const auto bytes_of = [](const WeightFormat& format) {
    const test::Weight weight(format, 1, 32, 64, 1);
    return PackedWeights(
               std::array{WeightTensor{weight.values, weight.scales, format.block, weight.alpha}})
        .size_bytes();
  };
  EXPECT_EQ(bytes_of(DType::kBF16), 32U * 64 * 2);
  for (const WeightFormat& format : {kFormats[1], kFormats[3], kFormats[8], kFormats[11]}) {
    EXPECT_EQ(bytes_of(format), 32U * 64 * 4);
  }
}

// gate and up are the even and odd rows of one packed tensor, as GPT-OSS stores them.
TEST(ExpertWeightsTest, InterleavedHalvesOfPackedPairsChangeNothing) {
  const Problem problem(64, 10, {3, 4}, {DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4});
  const Tensor fused(DType::kE2M1, {2, 20, 64});
  const Tensor scales(DType::kE8M0, {2, 20, 2});
  for (std::int64_t row = 0; row < 40; ++row) {
    const test::Weight& half = row % 2 == 0 ? problem.gate : problem.up;
    std::memcpy(fused.as<std::byte>() + row * 32, half.values.as<std::byte>() + row / 2 * 32, 32);
    std::memcpy(scales.as<std::byte>() + row * 2, half.scales.as<std::byte>() + row / 2 * 2, 2);
  }
  const auto half = [](const Tensor& tensor, std::int64_t columns, std::int64_t first_byte) {
    return TensorView(tensor.as<std::byte>() + first_byte, tensor.dtype(), {2, 10, columns},
                      {20 * columns, 2 * columns, 1});
  };
  ExpertWeights weights = problem.weights();
  weights.gate = half(fused, 64, 0);
  weights.up = half(fused, 64, 32);
  weights.gate_scale = half(scales, 2, 0);
  weights.up_scale = half(scales, 2, 2);
  EXPECT_EQ(run_experts(*make_exact_experts(weights), problem), oracle_experts(problem));
}

TEST(ExpertWeightsTest, BadScalesAndPackingAreNamed) {
  const Problem good(130, 40, {1, 1}, {DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true});
  const Problem odd(129, 40, {1, 1});
  struct Case {
    const char* phrase;
    std::function<void(ExpertWeights&)> spoil;
  };
  const Case cases[] = {
      {"block is 0 x 16, must be at least 1, or -1",
       [](ExpertWeights& w) {
         w.block = {0, 16};
       }},
      {"block is 1 x -2",
       [](ExpertWeights& w) {
         w.block = {1, -2};
       }},
      {"gate_scale is e4m3 [2, 40, 9], must be [2, 1, 2]", [](ExpertWeights& w) { w.block = {}; }},
      {"must be [2, 40, 1] of f32, bf16, f16, e8m0 or e4m3 for e2m1 gate",
       [](ExpertWeights& w) {
         w.block = {1, 2147483647};
       }},
      {"gate_scale is i8 [2, 40, 9]",
       [&](ExpertWeights& w) {
         w.gate_scale = TensorView(good.gate.scales.data(), DType::kI8, {2, 40, 9});
       }},
      {"up_alpha is f32 [2, 40], must be f32 [2]",
       [&](ExpertWeights& w) {
         w.up_alpha = TensorView(good.up.alpha.data(), DType::kF32, {2, 40});
       }},
      {"down_alpha is f32 [2], but down is bf16",
       [](ExpertWeights& w) {
         w.down = TensorView(w.down.data(), DType::kBF16, {2, 130, 40});
         w.down_scale = {};
       }},
      {"gate is e2m1 [2, 40, 129] with strides 5160, 129 and 1, must be an even number of inputs",
       [&](ExpertWeights& w) {
         w.gate = TensorView(w.gate.data(), DType::kE2M1, {2, 40, 129});
         w.up = odd.up.values;
         w.down = odd.down.values;
         w.up_scale = w.down_scale = w.up_alpha = w.down_alpha = {};
       }},
      {"strides 5200, 1 and 40",
       [](ExpertWeights& w) {
         w.gate = TensorView(w.gate.data(), DType::kE2M1, {2, 40, 130}, {5200, 1, 40});
       }},
  };
  for (const Case& bad : cases) {
    ExpertWeights weights = good.weights();
    bad.spoil(weights);
    SCOPED_TRACE(bad.phrase);
    test::expect_invalid(bad.phrase, [&] { make_exact_experts(weights); });
  }
}

}  // namespace
}  // namespace switchyard
