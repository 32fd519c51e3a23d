// SPDX-License-Identifier: Apache-2.0
//
// Values computed by hand from the formulas of vLLM's and DeepEP's kernels, for the library and for
// the oracle.

#include <array>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "quant/rows.h"
#include "quant/scalar.h"
#include "reference/reference.h"

namespace switchyard {
namespace {

struct ScaleCase {
  float amax;
  std::uint32_t divide_bits;
  std::uint32_t divide_byte;
  std::uint32_t multiply_bits;
  std::uint32_t factor_bits;
  std::uint32_t multiply_byte;
};

// The rows 0 and 1e-5 show the lower bounds: 1e-10 in vLLM, 1e-4 in DeepEP.
constexpr std::array<ScaleCase, 10> kScales{
    {{0.0f, 0x2A7B5123, 94, 0x346FACAD, 0x4A88B800, 105},
     {1e-5f, 0x32BFBD57, 102, 0x346FACAD, 0x4A88B800, 105},
     {1e-4f, 0x346FACAD, 105, 0x346FACAD, 0x4A88B800, 105},
     {0.5f, 0x3A924925, 118, 0x3A924925, 0x44600000, 118},
     {1.0f, 0x3B124925, 119, 0x3B124925, 0x43E00000, 119},
     {3.0f, 0x3BDB6DB7, 120, 0x3BDB6DB8, 0x43155555, 120},
     {6.0f, 0x3C5B6DB7, 121, 0x3C5B6DB8, 0x42955555, 121},
     {448.0f, 0x3F800000, 127, 0x3F800000, 0x3F800000, 127},
     {1000.0f, 0x400EDB6E, 129, 0x400EDB6E, 0x3EE56042, 129},
     {65504.0f, 0x431236DB, 135, 0x431236DC, 0x3BE01C04, 135}}};

// What the library writes; the oracle must agree.
std::vector<std::uint8_t> quantized(const QuantScheme& scheme, const std::vector<float>& x,
                                    std::vector<std::uint32_t>& scales) {
  const auto hidden = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> q(x.size());
  scales.assign(static_cast<std::size_t>(num_scales(scheme, hidden)), 0);
  quantize_row(scheme, x.data(), DType::kF32, hidden, reinterpret_cast<std::byte*>(q.data()),
               scales.data());
  const reference::QuantizedRows oracle =
      reference::quantize(scheme, reference::Table<float>(1, hidden, x));
  EXPECT_EQ(reference::stored_elements(scheme, oracle).data, q);
  const std::vector<std::uint8_t> bytes = reference::stored_scales(scheme, oracle).data;
  EXPECT_EQ(bytes.size(), 4 * scales.size());
  EXPECT_EQ(std::memcmp(bytes.data(), scales.data(), bytes.size()), 0);
  return q;
}

TEST(KnownAnswersTest, BlockScales) {
  const auto scale = [](QuantScheme scheme, float amax, ScaleFormat format = ScaleFormat::kF32) {
    std::vector<std::uint32_t> scales;
    scheme.scale_format = format;
    quantized(scheme, {-amax, f32_from_bits(kF32NaN)}, scales);
    return scales.front();
  };
  constexpr ScaleFormat kPacked = ScaleFormat::kE8M0Packed;
  constexpr ScaleFormat kPowers = ScaleFormat::kF32PowerOfTwo;
  for (const ScaleCase& c : kScales) {
    EXPECT_EQ(scale(schemes::kFp8Block, c.amax), c.divide_bits) << c.amax;
    EXPECT_EQ(scale(schemes::kFp8Block, c.amax, kPacked), c.divide_byte) << c.amax;
    EXPECT_EQ(scale(schemes::kFp8Block, c.amax, kPowers), c.divide_byte << 23) << c.amax;
    EXPECT_EQ(scale(schemes::kFp8BlockDeepEp, c.amax), c.multiply_bits) << c.amax;
    EXPECT_EQ(scale(schemes::kFp8BlockDeepEp, c.amax, kPacked), c.multiply_byte) << c.amax;
    EXPECT_TRUE(divide_rule(c.amax, false).map.divides);
    const ScaleAndMap multiply = multiply_rule(c.amax, false);
    EXPECT_EQ(bits_from_f32(multiply.map.factor), c.factor_bits) << c.amax;
    EXPECT_FALSE(multiply.map.divides);
  }
}

TEST(KnownAnswersTest, BlockCodes) {
  std::vector<float> x{1.0f, -1.0f, 0.5f, 0.3125f, -0.69921875f, 2.0f, 3.0f, -3.0f};
  x.resize(128);
  std::vector<std::uint8_t> plain{0x71, 0xF1, 0x69, 0x64, 0xED, 0x79, 0x7E, 0xFE};
  std::vector<std::uint8_t> rounded{0x70, 0xF0, 0x68, 0x62, 0xEB, 0x78, 0x7C, 0xFC};
  plain.resize(128);
  rounded.resize(128);
  std::vector<std::uint32_t> scales;
  for (QuantScheme scheme : {schemes::kFp8Block, schemes::kFp8BlockDeepEp}) {
    EXPECT_EQ(quantized(scheme, x, scales), plain);
    scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
    EXPECT_EQ(quantized(scheme, x, scales), rounded);
    EXPECT_EQ(scales, std::vector<std::uint32_t>{bits_from_f32(0x1p-7f)});
    scheme.scale_format = ScaleFormat::kE8M0Packed;
    EXPECT_EQ(quantized(scheme, x, scales), rounded);
    EXPECT_EQ(scales, std::vector<std::uint32_t>{120});
  }
}

TEST(KnownAnswersTest, PackedExponentsAreLittleEndianAndMissingGroupsZero) {
  QuantScheme scheme = schemes::kFp8Block;
  scheme.scale_format = ScaleFormat::kE8M0Packed;
  std::vector<float> x(5 * 128);
  for (std::size_t b = 0; b < 5; ++b) x[b * 128] = std::array{1.0f, 3.0f, 6.0f, 448.0f, 1000.0f}[b];
  std::vector<std::uint32_t> scales;
  quantized(scheme, x, scales);
  EXPECT_EQ(scales, (std::vector<std::uint32_t>{119u | 120u << 8 | 121u << 16 | 127u << 24, 129u}));
}

TEST(KnownAnswersTest, NaNFollowsTheClampOrderOfEachKernel) {
  const float nan = f32_from_bits(0xFFC00000u);
  const std::vector<float> x{nan, 2.0f, -2.0f};
  std::vector<std::uint32_t> scales;
  EXPECT_EQ(quantized(schemes::kFp8Block, x, scales),
            (std::vector<std::uint8_t>{0xFE, 0x7E, 0xFE}));
  EXPECT_EQ(scales[0], bits_from_f32(2.0f / 448.0f));  // NaN does not affect the scale
  EXPECT_EQ(quantized(schemes::kFp8BlockDeepEp, x, scales),
            (std::vector<std::uint8_t>{0x7F, 0x7E, 0xFE}));
  EXPECT_EQ(quantized(schemes::kFp8Token, x, scales),
            (std::vector<std::uint8_t>{0x7E, 0x7E, 0xFE}));
}

TEST(KnownAnswersTest, InfinityMakesTheScaleInfinite) {
  const std::vector<float> x{f32_from_bits(kF32Infinity), 2.0f, -2.0f};
  std::vector<std::uint32_t> scales;
  EXPECT_EQ(quantized(schemes::kFp8Block, x, scales),
            (std::vector<std::uint8_t>{0xFE, 0x00, 0x80}));
  EXPECT_EQ(scales[0], kF32Infinity);
  EXPECT_EQ(quantized(schemes::kFp8BlockDeepEp, x, scales),
            (std::vector<std::uint8_t>{0x7F, 0x00, 0x80}));
  EXPECT_EQ(quantized(schemes::kFp8Token, x, scales),
            (std::vector<std::uint8_t>{0x7E, 0x00, 0x80}));
  QuantScheme packed = schemes::kFp8Block;
  packed.scale_format = ScaleFormat::kE8M0Packed;
  quantized(packed, x, scales);
  EXPECT_EQ(scales[0], 255u);
}

TEST(KnownAnswersTest, TokenScaleHasALowerBound) {
  std::vector<std::uint32_t> scales;
  EXPECT_EQ(quantized(schemes::kFp8Token, {0.0f, -0.0f}, scales),
            (std::vector<std::uint8_t>{0x00, 0x80}));
  EXPECT_EQ(scales[0], 0x36924925u);
  quantized(schemes::kFp8Token, {3.0f}, scales);
  EXPECT_EQ(scales[0], 0x3BDB6DB7u);
}

TEST(KnownAnswersTest, StaticTensorScaleMultipliesByTheReciprocal) {
  const std::vector<float> x{
      1.0f, -1000.0f, 1e30f, f32_from_bits(kF32Infinity), 0.3f, f32_from_bits(kF32NaN)};
  std::vector<std::uint8_t> q(x.size());
  const float scale = 0.7f;
  quantize_row(schemes::kFp8Tensor, x.data(), DType::kF32, 6,
               reinterpret_cast<std::byte*>(q.data()), nullptr, scale);
  EXPECT_EQ(q, (std::vector<std::uint8_t>{e4m3_from_f32(1.0f / 0.7f), 0xFE, 0x7E, 0x7E,
                                          e4m3_from_f32(0.3f * (1.0f / 0.7f)), 0x7E}));
  EXPECT_EQ(reference::quantize(schemes::kFp8Tensor, reference::Table<float>(1, 6, x), scale)
                .elements.data,
            q);
}

}  // namespace
}  // namespace switchyard
