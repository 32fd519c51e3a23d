// SPDX-License-Identifier: Apache-2.0
//
// The scalar conversions against a definition without bit operations: the list of a format's values
// in double, and the midpoints between neighbors.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "quant/bf16.h"
#include "quant/e8m0.h"
#include "quant/f16.h"
#include "quant/fp4.h"
#include "quant/fp8.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  std::uint32_t max_code;       // of the largest finite value
  std::uint32_t overflow_code;  // for everything beyond it
  std::uint32_t nan_code;
  std::uint32_t sign_bit;
  std::function<std::uint32_t(float)> narrow;
  std::function<float(std::uint32_t)> widen;

  double value(std::uint32_t code) const {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
    const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
    return std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
  }
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all{
      {"bf16", 7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0x8000, [](float x) { return bf16_from_f32(x); },
       [](std::uint32_t code) { return f32_from_bf16(static_cast<std::uint16_t>(code)); }},
      {"f16", 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0x8000, [](float x) { return f16_from_f32(x); },
       [](std::uint32_t code) { return f32_from_f16(static_cast<std::uint16_t>(code)); }},
      {"e4m3", 3, 7, 0x7E, 0x7E, 0x7F, 0x80, [](float x) { return e4m3_from_f32(x); },
       [](std::uint32_t code) { return f32_from_e4m3(static_cast<std::uint8_t>(code)); }},
      {"e2m1", 1, 1, 0x7, 0x7, 0x7, 0x8, [](float x) { return e2m1_from_f32(x); },
       [](std::uint32_t code) { return f32_from_e2m1(static_cast<std::uint8_t>(code)); }}};
  return all;
}

// Entry c lies between codes c and c + 1; the last entry lies between the largest value and what
// the next would be.
std::vector<double> midpoints(const Format& format) {
  std::vector<double> middle;
  for (std::uint32_t code = 0; code <= format.max_code; ++code) {
    middle.push_back((format.value(code) + format.value(code + 1)) / 2);
  }
  return middle;
}

bool rounds_up(double magnitude, double middle, std::uint32_t code_below) {
  return magnitude > middle || (magnitude == middle && code_below % 2 == 1);
}

std::uint32_t with_limits(const Format& format, std::uint32_t code) {
  return code > format.max_code ? format.overflow_code : code;
}

std::uint32_t expected_code(const Format& format, const std::vector<double>& middle, float x) {
  if (std::isnan(x)) return format.nan_code;
  const double magnitude = std::abs(static_cast<double>(x));
  const auto at = std::lower_bound(middle.begin(), middle.end(), magnitude);
  auto code = static_cast<std::uint32_t>(at - middle.begin());
  if (code < middle.size() && rounds_up(magnitude, middle[code], code)) ++code;
  return with_limits(format, code) | (std::signbit(x) ? format.sign_bit : 0);
}

TEST(FormatTest, SampledFloatsRoundToTheNearestTiesToEven) {
  for (const Format& format : formats()) {
    const std::vector<double> middle = midpoints(format);
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 1999) {
      const float x = f32_from_bits(static_cast<std::uint32_t>(bits));
      ASSERT_EQ(format.narrow(x), expected_code(format, middle, x)) << format.name << " " << x;
    }
  }
}

TEST(FormatTest, EveryBoundaryAndItsNeighboursRound) {
  for (const Format& format : formats()) {
    const std::vector<double> middle = midpoints(format);
    for (std::uint32_t code = 0; code <= format.max_code; ++code) {
      for (const double centre : {format.value(code), middle[code]}) {
        const std::uint32_t bits = bits_from_f32(static_cast<float>(centre));
        for (std::uint32_t b = bits - std::min(bits, 3u); b <= bits + 3; ++b) {
          const float x = f32_from_bits(b);
          ASSERT_EQ(format.narrow(x), expected_code(format, middle, x)) << format.name << " " << x;
          ASSERT_EQ(format.narrow(-x), expected_code(format, middle, -x))
              << format.name << " " << x;
        }
      }
    }
  }
}

// The walk visits magnitudes in ascending order, so the expected code only ascends: no search.
TEST(FormatTest, EveryFloatRounds) {
  if (!test::is_exhaustive()) GTEST_SKIP() << "set SWITCHYARD_TEST_EXHAUSTIVE=1";
  for (const Format& format : formats()) {
    const std::vector<double> middle = midpoints(format);
    std::uint32_t code = 0;
    for (std::uint32_t bits = 0; bits < kF32SignBit; ++bits) {
      const float x = f32_from_bits(bits);
      const bool is_nan = std::isnan(x);
      while (code < middle.size() && rounds_up(static_cast<double>(x), middle[code], code)) ++code;
      const std::uint32_t want = is_nan ? format.nan_code : with_limits(format, code);
      const std::uint32_t negative = is_nan ? want : want | format.sign_bit;
      ASSERT_EQ(format.narrow(x), want) << format.name << " " << bits;
      ASSERT_EQ(format.narrow(f32_from_bits(bits | kF32SignBit)), negative) << format.name;
    }
  }
}

TEST(FormatTest, EveryCodeWidensToItsValueAndBack) {
  for (const Format& format : formats()) {
    for (std::uint32_t code = 0; code <= format.max_code; ++code) {
      const float x = format.widen(code);
      ASSERT_EQ(static_cast<double>(x), format.value(code)) << format.name << " " << code;
      ASSERT_EQ(format.narrow(x), code) << format.name;
      const float negative = format.widen(code | format.sign_bit);
      ASSERT_EQ(bits_from_f32(negative), bits_from_f32(x) | kF32SignBit) << format.name;
      ASSERT_EQ(format.narrow(negative), code | format.sign_bit) << format.name;
    }
  }
}

TEST(FormatTest, CodesBeyondTheLargestAreInfinityOrTheOneNaN) {
  for (const Format& format : formats()) {
    const bool has_infinity = format.max_code != 0x7E;
    for (std::uint32_t code = format.max_code + 1; code < format.sign_bit; ++code) {
      const bool is_infinity = has_infinity && code == format.max_code + 1;
      for (const std::uint32_t sign : {0u, format.sign_bit}) {
        const float x = format.widen(code | sign);
        if (is_infinity) {
          ASSERT_EQ(static_cast<double>(x), sign != 0 ? -kInfinity : kInfinity) << format.name;
        } else {
          ASSERT_EQ(bits_from_f32(x), kF32NaN) << format.name << " " << code;
        }
      }
    }
  }
}

TEST(FormatTest, NaNOfAnySignAndPayloadIsCanonical) {
  for (const std::uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu}) {
    for (const Format& format : formats()) {
      EXPECT_EQ(format.narrow(f32_from_bits(bits)), format.nan_code) << format.name;
    }
  }
}

TEST(E8M0Test, RoundsUpToPowersOfTwo) {
  EXPECT_EQ(e8m0_ceil(1.0f), 127);
  EXPECT_EQ(e8m0_ceil(std::nextafter(1.0f, 2.0f)), 128);
  EXPECT_EQ(e8m0_ceil(std::nextafter(1.0f, 0.0f)), 127);
  EXPECT_EQ(e8m0_ceil(std::numeric_limits<float>::max()), 255);
  EXPECT_EQ(e8m0_ceil(std::numeric_limits<float>::infinity()), 255);
  EXPECT_EQ(e8m0_ceil(std::numeric_limits<float>::denorm_min()), 1);
  for (int exponent = -126; exponent < 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(power_of_two_ceil(power), power);
    EXPECT_EQ(power_of_two_ceil(power * 1.25f), 2 * power);
    EXPECT_EQ(f32_from_e8m0(e8m0_ceil(power)), power);
  }
  EXPECT_EQ(f32_from_e8m0(0), std::ldexp(1.0f, -127));
  EXPECT_TRUE(std::isnan(f32_from_e8m0(255)));
}

}  // namespace
}  // namespace switchyard
