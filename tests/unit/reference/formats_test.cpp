// SPDX-License-Identifier: Apache-2.0
//
// The oracle's own known answers for int8, nvfp4 and OCP MX.

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/reference.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Table<float> row(std::vector<float> values) {
  const auto cols = static_cast<std::int64_t>(values.size());
  return Table<float>(1, cols, std::move(values));
}

TEST(ReferenceFormatsTest, SmallFloatsHaveTheirValues) {
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

TEST(ReferenceFormatsTest, TiesGoToTheEvenCode) {
  EXPECT_EQ(nearest_code(DType::kE2M1, 0.25f, 0), 0);
  EXPECT_EQ(nearest_code(DType::kE2M1, 0.75f, 0), 2);
  EXPECT_EQ(nearest_code(DType::kE2M1, 1.75f, 0), 4);
  EXPECT_EQ(nearest_code(DType::kE2M1, 5.0f, 0), 6);
  EXPECT_EQ(nearest_code(DType::kE2M1, 5.1f, 0), 7);
  EXPECT_EQ(nearest_code(DType::kE2M1, -0.0f, 0), 8);
  EXPECT_EQ(nearest_code(DType::kE3M2, -0.0f, 0), 0);
  EXPECT_EQ(nearest_code(DType::kE3M2, kNan, 0x1F), 0x1F);
  EXPECT_EQ(int8_code(kInf), 127);
  EXPECT_EQ(int8_code(-kInf), 0x80);
  EXPECT_EQ(int8_code(kNan), 0);
}

TEST(ReferenceFormatsTest, Int8RoundsByItsGroup) {
  const QuantizedRows token = quantize(schemes::kInt8Token, row({63.5f, -1.25f, 1.25f, kNan}));
  EXPECT_THAT(token.elements.data, ElementsAre(127, 0xFD, 3, 0));
  EXPECT_EQ(token.scales(0, 0), 0.5f);
  const QuantizedRows block = quantize(schemes::kInt8Block, row({127.0f, 2.9f, -2.9f}));
  EXPECT_THAT(block.elements.data, ElementsAre(127, 2, 0xFE));
  const QuantizedRows tensor = quantize(schemes::kInt8Tensor, row({1.25f, 1.75f, -1.25f}), 0.5f);
  EXPECT_THAT(tensor.elements.data, ElementsAre(2, 4, 0xFE));
  EXPECT_THAT(dequantize(schemes::kInt8Tensor, tensor).data, ElementsAre(1.0f, 2.0f, -1.0f));
}

TEST(ReferenceFormatsTest, Nvfp4) {
  std::vector<float> x{-192, -166, -141, -115, -90, -64, -38, -13,
                       13,   38,   64,   90,   115, 141, 166, 192};
  for (float& value : x) value /= 256;
  const QuantizedRows rows = quantize(schemes::kNvfp4, row(x), 896.0f);
  EXPECT_THAT(stored_elements(schemes::kNvfp4, rows).data,
              ElementsAre(0xFF, 0xEE, 0xCD, 0x9A, 0x21, 0x54, 0x66, 0x77));
  EXPECT_THAT(stored_scales(schemes::kNvfp4, rows).data, ElementsAre(0x6E));
  EXPECT_FLOAT_EQ(dequantize(schemes::kNvfp4, rows)(0, 15), 0.75f);
}

TEST(ReferenceFormatsTest, MxExponents) {
  const auto byte = [](const QuantScheme& scheme, float amax) {
    return stored_scales(scheme, quantize(scheme, row({-amax, 0.0f}))).data.front();
  };
  for (const auto& [amax, want] : std::vector<std::pair<float, int>>{
           {1.0f, 125}, {1.74f, 125}, {1.75f, 126}, {6.0f, 127}, {7.0f, 128}, {0.0f, 0}}) {
    EXPECT_EQ(byte(schemes::kMxfp4, amax), want) << amax;
  }
  for (const auto& [amax, want] : std::vector<std::pair<float, int>>{
           {1.0f, 123}, {1.8f, 123}, {1.875f, 124}, {7.5f, 126}, {28.0f, 127}}) {
    EXPECT_EQ(byte(schemes::kMxfp6E3M2, amax), want) << amax;
  }
  for (const auto& [amax, want] : std::vector<std::pair<float, int>>{
           {1.0f, 125}, {1.875f, 125}, {1.9375f, 126}, {7.5f, 127}, {28.0f, 129}}) {
    EXPECT_EQ(byte(schemes::kMxfp6E2M3, amax), want) << amax;
  }
  for (const auto& [amax, want] : std::vector<std::pair<float, int>>{
           {1.0f, 119}, {3.0f, 120}, {448.0f, 127}, {449.0f, 128}, {0.0f, 0}, {kInf, 254}}) {
    EXPECT_EQ(byte(schemes::kMxfp8, amax), want) << amax;
  }
}

}  // namespace
}  // namespace switchyard::reference
