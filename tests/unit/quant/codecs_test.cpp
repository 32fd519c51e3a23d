// SPDX-License-Identifier: Apache-2.0
//
// Each element format: all bf16 inputs against the oracle, round trips of all codes, and the
// roundings that distinguish similar formats.

#include <cmath>

#include <gtest/gtest.h>

#include "quant/bf16.h"
#include "quant/codec.h"
#include "reference/reference.h"

namespace switchyard {
namespace {

struct SmallFormat {
  Codec codec;
  DType dtype;
  std::uint8_t nan_code;
  int num_codes;
};

constexpr SmallFormat kSmallFormats[] = {{Codec::kE4M3, DType::kE4M3, 0x7F, 256},
                                         {Codec::kE2M1, DType::kE2M1, 0x07, 16},
                                         {Codec::kE2M3, DType::kE2M3, 0x1F, 64},
                                         {Codec::kE3M2, DType::kE3M2, 0x1F, 64}};

TEST(CodecTest, EveryBf16EncodesToTheNearestValue) {
  for (const SmallFormat& format : kSmallFormats) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = f32_from_bf16(static_cast<std::uint16_t>(bits));
      ASSERT_EQ(encode(format.codec, x), reference::nearest_code(format.dtype, x, format.nan_code))
          << name_of(format.dtype) << " " << x;
    }
  }
}

TEST(CodecTest, EveryCodeDecodesToItsValueAndBack) {
  for (const SmallFormat& format : kSmallFormats) {
    for (int i = 0; i < format.num_codes; ++i) {
      const auto code = static_cast<std::uint8_t>(i);
      const float x = decode(format.dtype, code);
      const float want = reference::value_of_code(format.dtype, code);
      ASSERT_EQ(bits_from_f32(x), bits_from_f32(want)) << name_of(format.dtype) << " " << i;
      const bool is_fp6_minus_zero = format.num_codes == 64 && code == 0x20;
      if (std::isnan(x) || is_fp6_minus_zero) continue;
      ASSERT_EQ(encode(format.codec, x), code) << name_of(format.dtype);
    }
  }
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    for (const Codec codec : {Codec::kI8HalfAway, Codec::kI8HalfEven, Codec::kI8Truncate}) {
      ASSERT_EQ(encode(codec, decode(DType::kI8, code)), code);
    }
  }
}

TEST(CodecTest, EveryBf16EncodesToAnIntegerByEachRounding) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = f32_from_bf16(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(i8_half_away(x), reference::int8_code(std::round(x))) << x;
    ASSERT_EQ(i8_half_even(x), reference::int8_code(std::nearbyint(x))) << x;
    ASSERT_EQ(i8_truncate(x), reference::int8_code(std::trunc(x))) << x;
  }
}

std::uint8_t code(int value) { return static_cast<std::uint8_t>(value); }

TEST(CodecTest, IntegersRoundThreeWays) {
  struct Case {
    float x;
    int half_away, half_even, truncated;
  };
  for (const Case& c :
       {Case{2.5f, 3, 2, 2}, Case{-2.5f, -3, -2, -2}, Case{2.9f, 3, 3, 2}, Case{-2.9f, -3, -3, -2},
        Case{0.49999997f, 0, 0, 0}, Case{0.5f, 1, 0, 0}, Case{126.5f, 127, 126, 126},
        Case{127.6f, 127, 127, 127}, Case{-128.7f, -128, -128, -128}, Case{1e30f, 127, 127, 127}}) {
    EXPECT_EQ(i8_half_away(c.x), code(c.half_away)) << c.x;
    EXPECT_EQ(i8_half_even(c.x), code(c.half_even)) << c.x;
    EXPECT_EQ(i8_truncate(c.x), code(c.truncated)) << c.x;
  }
}

TEST(CodecTest, MinusZeroKeepsItsSignInE2M1AndLosesItInFp6) {
  EXPECT_EQ(e2m1_from_f32(-0.0f), 0x8);
  EXPECT_EQ(e2m1_from_f32(-0.1f), 0x8);
  EXPECT_EQ(bits_from_f32(f32_from_e2m1(0x8)), kF32SignBit);
  for (const float x : {-0.0f, -0.01f}) {
    EXPECT_EQ(e2m3_from_f32(x), 0);
    EXPECT_EQ(e3m2_from_f32(x), 0);
  }
}

TEST(CodecTest, NaNBecomesWhatTheFormatHas) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFFFFFFFu}) {
    const float nan = f32_from_bits(bits);
    EXPECT_EQ(i8_half_away(nan), 0);
    EXPECT_EQ(i8_half_even(nan), 0);
    EXPECT_EQ(i8_truncate(nan), 0);
    EXPECT_EQ(decode(DType::kE2M1, e2m1_from_f32(nan)), 6.0f);
    EXPECT_EQ(decode(DType::kE2M3, e2m3_from_f32(nan)), 7.5f);
    EXPECT_EQ(decode(DType::kE3M2, e3m2_from_f32(nan)), 28.0f);
  }
}

}  // namespace
}  // namespace switchyard
