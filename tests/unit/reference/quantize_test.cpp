// SPDX-License-Identifier: Apache-2.0
//
// Rounding and quantization of the oracle, where tests/unit/quant does not hold it to the same
// known answers as the library.

#include <bit>
#include <limits>

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "core/random.h"
#include "reference/reference.h"
#include "support/errors.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

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

TEST(ReferenceQuantizeTest, SmallFloatsHaveTheirValues) {
  const std::vector<float> e2m1{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::size_t code = 0; code < 8; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(value_of_code(DType::kE2M1, byte), e2m1[code]);
    EXPECT_EQ(value_of_code(DType::kE2M1, static_cast<std::uint8_t>(byte | 8)), -e2m1[code]);
    EXPECT_EQ(nearest_code(DType::kE2M1, -e2m1[code], 0), code | 8);
  }
  EXPECT_EQ(value_of_code(DType::kE2M3, 0x01), 0.125f);
  EXPECT_EQ(value_of_code(DType::kE2M3, 0x08), 1.0f);
  EXPECT_EQ(value_of_code(DType::kE2M3, 0x3F), -7.5f);
  EXPECT_EQ(value_of_code(DType::kE3M2, 0x01), 0.0625f);
  EXPECT_EQ(value_of_code(DType::kE3M2, 0x04), 0.25f);
  EXPECT_EQ(value_of_code(DType::kE3M2, 0x3F), -28.0f);
  EXPECT_EQ(value_of_code(DType::kI8, 0x80), -128.0f);
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
  test::expect_error(Errc::kNotSupported, "scheme of e5m2",
                     [&] { quantize(scheme, Table<float>(1, 1)); });
}

}  // namespace
}  // namespace switchyard::reference
