// SPDX-License-Identifier: Apache-2.0
//
// The vectorized mxfp6 rows against the scalar definition, bit for bit: each significand of a
// block's largest magnitude with each significand of the others, down to where they round to zero.

#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr std::size_t kBlock = 32;
constexpr int kMaxDrop = 9;  // binades below the largest magnitude; further ones round to zero

template <typename Bits>
struct Format {
  DType dtype;
  int mantissa_bits;
  Bits max_exponent;  // of finite values, as stored
};
constexpr Format<std::uint16_t> kBf16{DType::kBF16, 7, 254};
constexpr Format<std::uint16_t> kF16{DType::kF16, 10, 30};
constexpr Format<std::uint32_t> kF32{DType::kF32, 23, 254};

// A row of blocks that all begin with `largest`; the others have the given mantissas in each binade
// from its own down, with both signs. One more element ends the row within a block.
template <typename Bits>
std::vector<Bits> row_below(const Format<Bits>& format, Bits largest,
                            const std::vector<Bits>& mantissas) {
  const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const Bits exponent = static_cast<Bits>(largest >> format.mantissa_bits);
  std::vector<Bits> row;
  const auto add = [&](Bits bits) {
    if (row.size() % kBlock == 0) row.push_back(largest);
    row.push_back(bits);
  };
  for (Bits e = exponent; e + kMaxDrop > exponent; --e) {
    for (const Bits mantissa : mantissas) {
      const auto bits = static_cast<Bits>(e << format.mantissa_bits | mantissa);
      if (bits > largest) continue;
      add(bits);
      add(static_cast<Bits>(bits | sign));
    }
    if (e == 0) break;
  }
  add(sign);
  return row;
}

template <typename Bits>
void expect_equal(const QuantScheme& scheme, DType dtype, const std::vector<Bits>& x) {
  const auto hidden = static_cast<std::int64_t>(x.size());
  std::vector<Bits> want(x.size() + 1, Bits{0x5A5A});
  std::vector<Bits> got = want;
  scalar::quantize_row(scheme, x.data(), dtype, hidden,
                       reinterpret_cast<std::uint8_t*>(want.data()), nullptr);
  quantize_row(scheme, x.data(), dtype, hidden, reinterpret_cast<std::byte*>(got.data()), nullptr);
  ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(Bits)), 0)
      << name_of(scheme) << " of " << name_of(dtype) << ", largest bits " << x[0];
}

// The exponents at both ends, where scales or values are subnormal or overflow, and one between.
template <typename Bits>
std::vector<Bits> exponents(const Format<Bits>& format) {
  std::vector<Bits> all(static_cast<std::size_t>(format.max_exponent) + 1);
  std::iota(all.begin(), all.end(), Bits{0});
  if (test::is_exhaustive() || all.size() < 32) return all;
  std::vector<Bits> ends(all.begin(), all.begin() + 8);
  ends.push_back(127);
  ends.insert(ends.end(), all.end() - 7, all.end());
  return ends;
}

template <typename Bits>
void try_all(const Format<Bits>& format, const std::vector<Bits>& largest_mantissas,
             const std::vector<Bits>& mantissas) {
  for (const Bits exponent : exponents(format)) {
    for (const Bits mantissa : largest_mantissas) {
      const auto largest = static_cast<Bits>(exponent << format.mantissa_bits | mantissa);
      const std::vector<Bits> row = row_below(format, largest, mantissas);
      expect_equal(schemes::kMxfp6E3M2, format.dtype, row);
      expect_equal(schemes::kMxfp6E2M3, format.dtype, row);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

template <typename Bits>
std::vector<Bits> every(int mantissa_bits) {
  std::vector<Bits> all(std::size_t{1} << mantissa_bits);
  std::iota(all.begin(), all.end(), Bits{0});
  return all;
}

// The mantissas at which a scale or a code changes (multiples of 1/32), and their neighbours.
template <typename Bits>
std::vector<Bits> around_steps(int mantissa_bits) {
  const auto step = static_cast<Bits>(Bits{1} << (mantissa_bits - 5));
  std::vector<Bits> result;
  for (Bits i = 0; i < 32; ++i) {
    const auto at = static_cast<Bits>(i * step);
    result.insert(result.end(), {at, static_cast<Bits>(at + 1), static_cast<Bits>(at + step - 1)});
  }
  return result;
}

TEST(WideSimulatedTest, EverySignificandOfBf16IsBitEqual) {
  test::for_each_target([] { try_all(kBf16, every<std::uint16_t>(7), every<std::uint16_t>(7)); });
}

TEST(WideSimulatedTest, SignificandsOfF16AreBitEqual) {
  const auto some = around_steps<std::uint16_t>(10);
  const auto others = test::is_exhaustive() ? every<std::uint16_t>(10) : some;
  test::for_each_target([&] { try_all(kF16, some, others); });
}

TEST(WideSimulatedTest, TiesOfF32AndTheirNeighboursAreBitEqual) {
  const auto some = around_steps<std::uint32_t>(23);
  test::for_each_target([&] { try_all(kF32, some, some); });
}

// One block of many holds a NaN or an infinity; the blocks around it are ordinary.
TEST(WideSimulatedTest, SpecialValuesAreBitEqual) {
  test::for_each_target([] {
    constexpr std::uint16_t kSpecials[] = {0x7F80, 0xFF80, 0x7F81, 0xFFC0};
    for (const std::uint16_t special : kSpecials) {
      std::vector<std::uint16_t> row(3000);
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<std::uint16_t>(0x3F00 + i % 301 + 0x8000 * (i % 2));
      }
      row[1500] = special;
      row[2999] = special;
      expect_equal(schemes::kMxfp6E3M2, DType::kBF16, row);
      expect_equal(schemes::kMxfp6E2M3, DType::kBF16, row);
    }
  });
}

TEST(WideSimulatedTest, ARowMayReplaceItself) {
  test::for_each_target([] {
    std::vector<std::uint16_t> x(2100);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(0x3E00 + i % 700);
    std::vector<std::uint16_t> apart(x.size());
    const auto hidden = static_cast<std::int64_t>(x.size());
    quantize_row(schemes::kMxfp6E2M3, x.data(), DType::kBF16, hidden,
                 reinterpret_cast<std::byte*>(apart.data()), nullptr);
    ASSERT_NE(apart, x);
    quantize_row(schemes::kMxfp6E2M3, x.data(), DType::kBF16, hidden,
                 reinterpret_cast<std::byte*>(x.data()), nullptr);
    ASSERT_EQ(apart, x);
  });
}

}  // namespace
}  // namespace switchyard
