// SPDX-License-Identifier: Apache-2.0
//
// The wide conversions of rows.h against the scalar ones, on every target.

#include <vector>

#include <gtest/gtest.h>

#include "quant/rows.h"
#include "quant/scalar.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

// Samples of all f32, and the neighbors of every bf16 and f16 rounding boundary.
std::vector<float> sampled_floats() {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093) {
    x.push_back(f32_from_bits(static_cast<std::uint32_t>(bits)));
  }
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const std::uint32_t middle_f16 =
        bits_from_f32(f32_from_f16(static_cast<std::uint16_t>(code))) + 0x1000;
    const std::uint32_t middle_bf16 = (code << 16) + 0x8000;
    for (const std::uint32_t middle : {middle_f16, middle_bf16}) {
      for (std::uint32_t d = 0; d < 3; ++d) x.push_back(f32_from_bits(middle - 1 + d));
    }
  }
  return x;
}

TEST(ConvertTest, WideNarrowingIsBitEqualOnEveryTarget) {
  const std::vector<float> x = sampled_floats();
  const auto count = static_cast<std::int64_t>(x.size());
  test::for_each_target([&] {
    std::vector<std::uint16_t> bf16(x.size());
    std::vector<std::uint16_t> f16(x.size());
    f32_to_bf16(x.data(), count, bf16.data());
    f32_to_f16(x.data(), count, f16.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(bf16[i], bf16_from_f32(x[i])) << bits_from_f32(x[i]);
      ASSERT_EQ(f16[i], f16_from_f32(x[i])) << bits_from_f32(x[i]);
    }
  });
}

TEST(ConvertTest, WideWideningIsBitEqualForEveryPatternOnEveryTarget) {
  std::vector<std::uint16_t> x(0x10000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
  test::for_each_target([&] {
    std::vector<float> bf16(x.size());
    std::vector<float> f16(x.size());
    bf16_to_f32(x.data(), 0x10000, bf16.data());
    f16_to_f32(x.data(), 0x10000, f16.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(bits_from_f32(bf16[i]), bits_from_f32(f32_from_bf16(x[i]))) << i;
      ASSERT_EQ(bits_from_f32(f16[i]), bits_from_f32(f32_from_f16(x[i]))) << i;
    }
  });
}

TEST(ConvertTest, OddLengthsStopAtTheEnd) {
  test::for_each_target([] {
    for (const std::size_t count : {0u, 1u, 7u, 17u, 31u, 129u}) {
      const std::vector<float> x(count, 1.5f);
      std::vector<std::uint16_t> y(count + 1, 0xABCD);
      f32_to_bf16(x.data(), static_cast<std::int64_t>(count), y.data());
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(y[i], 0x3FC0);
      EXPECT_EQ(y[count], 0xABCD);
    }
  });
}

TEST(ConvertTest, WideDequantizeIsBitEqualForEveryCodeOnEveryTarget) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  const float infinity = f32_from_bits(kF32Infinity);
  const float nan = f32_from_bits(0xFFC00001u);
  const std::vector<float> scales{1.0f, 0x1p-7f, 0.0066964286f, 1e-42f, 0.0f, 3e38f, infinity, nan};
  test::for_each_target([&] {
    for (float scale : scales) {
      std::vector<float> y(codes.size());
      dequantize_row(schemes::kFp8Token, reinterpret_cast<const std::byte*>(codes.data()), &scale,
                     DType::kE4M3, 256, y.data());
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float want = canonical_f32(f32_from_e4m3(codes[i]) * scale);
        ASSERT_EQ(bits_from_f32(y[i]), bits_from_f32(want)) << i << " " << scale;
      }
    }
  });
}

}  // namespace
}  // namespace switchyard
