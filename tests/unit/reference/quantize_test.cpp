// SPDX-License-Identifier: Apache-2.0

#include <bit>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/error.h"

#include "reference/reference.h"
#include "support/random_batch.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

QuantScheme with_format(QuantScheme scheme, ScaleFormat format) {
  scheme.scale_format = format;
  return scheme;
}

TEST(ReferenceRoundTest, KnownAnswers) {
  EXPECT_EQ(bits(round_to(DType::kBF16, 1.00390625f)), 0x3F800000u);    // a tie goes to even
  EXPECT_EQ(bits(round_to(DType::kBF16, 1.01171875f)), 0x3F820000u);    // a tie goes to even
  EXPECT_EQ(bits(round_to(DType::kBF16, 3.4028235e38f)), 0x7F800000u);  // overflows to infinity
  EXPECT_EQ(bits(round_to(DType::kBF16, 0x1p-133f)), bits(0x1p-133f));  // smallest subnormal
  EXPECT_EQ(bits(round_to(DType::kBF16, -0x1p-134f)), 0x80000000u);     // tie with zero
  EXPECT_EQ(round_to(DType::kF16, 65519.0f), 65504.0f);
  EXPECT_EQ(round_to(DType::kF16, 65520.0f), kInf);
  EXPECT_EQ(round_to(DType::kF16, 0x1.8p-25f), 0x1p-24f);
  EXPECT_EQ(bits(round_to(DType::kBF16, -kNan)), 0x7FC00000u);
  EXPECT_EQ(bits(round_to(DType::kF32, -kNan)), 0x7FC00000u);
}

TEST(ReferenceRoundTest, Bf16AgreesWithAddHalfOfTheLastPlace) {
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const auto x = static_cast<std::uint32_t>(random_bits(5, i));
    if ((x & 0x7F800000u) == 0x7F800000u) continue;
    const std::uint32_t want = (x + 0x7FFFu + ((x >> 16) & 1u)) & 0xFFFF0000u;
    ASSERT_EQ(bits(round_to(DType::kBF16, std::bit_cast<float>(x))), want) << x;
  }
}

TEST(ReferenceE4m3Test, EveryCodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(f32_from_e4m3(byte)));
    } else {
      EXPECT_EQ(e4m3_from_f32(f32_from_e4m3(byte), 0), byte);
    }
  }
}

TEST(ReferenceE4m3Test, KnownAnswers) {
  EXPECT_EQ(f32_from_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(f32_from_e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(f32_from_e4m3(0x38), 1.0f);
  EXPECT_EQ(f32_from_e4m3(0xFE), -448.0f);
  EXPECT_EQ(e4m3_from_f32(0x1p-10f, 0), 0x00);   // tie between 0 and 2^-9
  EXPECT_EQ(e4m3_from_f32(-0x1p-10f, 0), 0x80);  // keeps the sign
  EXPECT_EQ(e4m3_from_f32(0x1.8p-9f, 0), 0x02);  // a tie goes to even
  EXPECT_EQ(e4m3_from_f32(17.0f, 0), 0x58);      // tie between 16 and 18
  EXPECT_EQ(e4m3_from_f32(19.0f, 0), 0x5A);      // tie between 18 and 20
  EXPECT_EQ(e4m3_from_f32(1e9f, 0), 0x7E);
  EXPECT_EQ(e4m3_from_f32(-kInf, 0), 0xFE);
  EXPECT_EQ(e4m3_from_f32(kNan, 0x7F), 0x7F);
}

struct ScaleCase {
  float amax;
  std::uint32_t divide;    // bits of max(amax, 1e-10) / 448
  std::uint32_t divide_e;  // its exponent byte, rounded up
  std::uint32_t multiply;  // bits of max(amax, 1e-4) * (1 / 448)
  std::uint32_t multiply_e;
};

TEST(ReferenceQuantizeTest, BlockScalesOfBothRules) {
  const ScaleCase cases[] = {
      {0.0f, 0x2A7B5123, 94, 0x346FACAD, 105},     {1e-5f, 0x32BFBD57, 102, 0x346FACAD, 105},
      {1e-4f, 0x346FACAD, 105, 0x346FACAD, 105},   {0.5f, 0x3A924925, 118, 0x3A924925, 118},
      {1.0f, 0x3B124925, 119, 0x3B124925, 119},    {3.0f, 0x3BDB6DB7, 120, 0x3BDB6DB8, 120},
      {6.0f, 0x3C5B6DB7, 121, 0x3C5B6DB8, 121},    {448.0f, 0x3F800000, 127, 0x3F800000, 127},
      {1000.0f, 0x400EDB6E, 129, 0x400EDB6E, 129}, {65504.0f, 0x431236DB, 135, 0x431236DC, 135}};
  for (const ScaleCase& c : cases) {
    const Table<float> x(1, 2, std::vector<float>{-c.amax, kNan});
    const auto scale = [&](const QuantScheme& s) { return bits(quantize(s, x).scales(0, 0)); };
    const auto byte = [&](const QuantScheme& s) {
      return quantize(with_format(s, ScaleFormat::kE8M0Packed), x).packed_scales(0, 0);
    };
    EXPECT_EQ(scale(schemes::kFp8Block), c.divide) << c.amax;
    EXPECT_EQ(byte(schemes::kFp8Block), c.divide_e) << c.amax;
    EXPECT_EQ(scale(schemes::kFp8BlockDeepEp), c.multiply) << c.amax;
    EXPECT_EQ(byte(schemes::kFp8BlockDeepEp), c.multiply_e) << c.amax;
    EXPECT_EQ(scale(with_format(schemes::kFp8Block, ScaleFormat::kF32PowerOfTwo)),
              c.divide_e << 23);
  }
}

TEST(ReferenceQuantizeTest, BlockElements) {
  const Table<float> x(1, 10, std::vector<float>{1, -1, .5f, .3125f, -.69921875f, 2, 3, -3, 0, 0});
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8BlockDeepEp}) {
    EXPECT_THAT(quantize(scheme, x).elements.data,
                ElementsAre(0x71, 0xF1, 0x69, 0x64, 0xED, 0x79, 0x7E, 0xFE, 0, 0));
    EXPECT_THAT(quantize(with_format(scheme, ScaleFormat::kF32PowerOfTwo), x).elements.data,
                ElementsAre(0x70, 0xF0, 0x68, 0x62, 0xEB, 0x78, 0x7C, 0xFC, 0, 0));
  }
}

TEST(ReferenceQuantizeTest, LastBlockMayBePartialAndBytesArePacked) {
  // 5 elements in blocks of 1: exponents of 448 * 2^i are 127 + i.
  QuantScheme scheme = with_format(schemes::kFp8Block, ScaleFormat::kE8M0Packed);
  scheme.block = 1;
  const Table<float> x(1, 5, std::vector<float>{448, 896, 1792, 3584, 7168});
  EXPECT_THAT(quantize(scheme, x).packed_scales.data, ElementsAre(0x8281807Fu, 0x83u));
  scheme.block = 2;
  EXPECT_THAT(quantize(scheme, x).scales.data, ElementsAre(2, 8, 16));
}

TEST(ReferenceQuantizeTest, TokenAndTensor) {
  const Table<float> x(2, 2, std::vector<float>{448, -224, 0, 0});
  const QuantizedRows token = quantize(schemes::kFp8Token, x);
  EXPECT_THAT(token.elements.data, ElementsAre(0x7E, 0xF6, 0, 0));
  EXPECT_EQ(token.scales(0, 0), 1.0f);
  EXPECT_EQ(bits(token.scales(1, 0)), 0x36924925u);  // 1 / (448 * 512)
  const QuantizedRows tensor = quantize(schemes::kFp8Tensor, x);
  EXPECT_THAT(tensor.scales.data, ElementsAre(1.0f));
  EXPECT_THAT(quantize(schemes::kFp8Tensor, x, 2.0f).elements.data, ElementsAre(0x76, 0xEE, 0, 0));
  // All zeros give scale 0, so 0 * infinity, which the clamp turns into the largest value.
  const QuantizedRows zero = quantize(schemes::kFp8Tensor, Table<float>(1, 2));
  EXPECT_THAT(zero.elements.data, ElementsAre(0x7E, 0x7E));
  EXPECT_THAT(dequantize(schemes::kFp8Tensor, zero).data, ElementsAre(0.0f, 0.0f));
}

TEST(ReferenceQuantizeTest, NanElementsFollowTheOriginals) {
  const Table<float> x(1, 2, std::vector<float>{kNan, 448.0f});
  EXPECT_EQ(quantize(schemes::kFp8Block, x).elements(0, 0), 0xFE);
  EXPECT_EQ(quantize(schemes::kFp8BlockDeepEp, x).elements(0, 0), 0x7F);
  EXPECT_EQ(quantize(schemes::kFp8Token, x).elements(0, 0), 0x7E);
  EXPECT_EQ(quantize(schemes::kFp8Tensor, x).elements(0, 0), 0x7E);
}

TEST(ReferenceQuantizeTest, InfinityMakesTheScaleInfinite) {
  const Table<float> x(1, 2, std::vector<float>{-kInf, 2.0f});
  const QuantizedRows rows = quantize(schemes::kFp8Block, x);
  EXPECT_EQ(rows.scales(0, 0), kInf);
  EXPECT_THAT(rows.elements.data, ElementsAre(0xFE, 0x00));
  EXPECT_EQ(quantize(schemes::kFp8BlockDeepEp, x).elements(0, 0), 0x7F);
  // In packed scales, byte 255 means NaN.
  const QuantScheme packed = with_format(schemes::kFp8Block, ScaleFormat::kE8M0Packed);
  EXPECT_EQ(quantize(packed, x).packed_scales(0, 0), 255u);
  EXPECT_TRUE(std::isnan(dequantize(packed, quantize(packed, x))(0, 0)));
}

TEST(ReferenceQuantizeTest, ErrorIsAtMostHalfAStep) {
  const Table<float> x = test::random_table(7, 300, 3);
  for (const QuantScheme& scheme :
       {schemes::kFp8Block, schemes::kFp8BlockDeepEp, schemes::kFp8Token, schemes::kFp8Tensor}) {
    const Table<float> y = dequantize(scheme, quantize(scheme, x));
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      // Half a step of e4m3 is 1/16 of the power of two below; tiny values share the smallest step.
      EXPECT_NEAR(y.data[i], x.data[i], std::abs(x.data[i]) / 15.9 + 2e-5);
    }
  }
}

TEST(ReferenceQuantizeTest, WeightsHaveOneScaleABlock) {
  Table<float> scales(2, 2, std::vector<float>{1, 2, 4, 8});
  const Table<float> w = dequantize_weight(Table<std::uint8_t>(129, 130, 0x38), scales);
  EXPECT_EQ(w(0, 0), 1.0f);
  EXPECT_EQ(w(127, 128), 2.0f);
  EXPECT_EQ(w(128, 127), 4.0f);
  EXPECT_EQ(w(128, 129), 8.0f);
}

TEST(ReferenceQuantizeTest, OtherFormatsAreRefused) {
  QuantScheme scheme = schemes::kFp8Block;
  scheme.dtype = DType::kE5M2;
  try {
    quantize(scheme, Table<float>(1, 1));
    FAIL() << "e5m2 was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kNotSupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("scheme of e5m2"));
  }
}

}  // namespace
}  // namespace switchyard::reference
