// SPDX-License-Identifier: Apache-2.0
//
// The comparer must detect a single wrong bit anywhere.

#include "conformance/compare.h"

#include <array>
#include <cmath>

#include <gmock/gmock.h>

namespace switchyard::conformance {
namespace {

using reference::Table;
using ::testing::HasSubstr;

template <typename Call>
std::string difference(Call call) {
  try {
    call();
  } catch (const Difference& error) {
    return error.what();
  }
  return "";
}

// 1, -2, 0.5, 0; 4, 8, -0, 3 in bf16.
constexpr std::array<std::uint16_t, 8> kBits{0x3F80, 0xC000, 0x3F00, 0,
                                             0x4080, 0x4100, 0x8000, 0x4040};
const Table<float> kValues(2, 4, {1, -2, 0.5f, 0, 4, 8, -0.0f, 3});

TensorView view(const std::array<std::uint16_t, 8>& bits) {
  return TensorView(bits.data(), DType::kBF16, {2, 4});
}

TEST(CompareTest, EqualBitsAreEqual) {
  EXPECT_EQ(difference([] { expect_same_bits("output", view(kBits), kValues); }), "");
}

TEST(CompareTest, EveryWrongBitIsFoundAndNamed) {
  for (std::size_t i = 0; i < kBits.size(); ++i) {
    for (int bit = 0; bit < 16; ++bit) {
      std::array<std::uint16_t, 8> wrong = kBits;
      wrong[i] = static_cast<std::uint16_t>(wrong[i] ^ (1 << bit));
      EXPECT_THAT(difference([&] { expect_same_bits("output", view(wrong), kValues); }),
                  HasSubstr("output[" + std::to_string(i / 4) + ", " + std::to_string(i % 4) +
                            "] has the bits"));
    }
  }
}

TEST(CompareTest, AnotherShapeIsADifference) {
  EXPECT_THAT(difference([] {
                expect_same_bits("output", TensorView(kBits.data(), DType::kBF16, {1, 4}), kValues);
              }),
              HasSubstr("expected [2, 4]"));
  const std::array<std::byte, 2> two{};
  EXPECT_THAT(difference([&] { expect_same_bytes("scales", two, std::span(two).first(1), 1, 1); }),
              HasSubstr("scales has 2 bytes, expected 1"));
}

TEST(CompareTest, CloseMeansWithinTheBoundOfOneAndTheValue) {
  Table<float> want = kValues;
  want.data[5] = 8.4f;
  const Agreement agreement = expect_close("output", view(kBits), want, 0.06);
  EXPECT_FALSE(agreement.is_exact);
  EXPECT_NEAR(agreement.max_error, 0.4 / 9.4, 1e-6);
  EXPECT_EQ(agreement.bound, 0.06);
  EXPECT_THAT(difference([&] { expect_close("output", view(kBits), want, 0.04); }),
              HasSubstr("output[1, 1] is 8, expected"));
}

TEST(CompareTest, NaNIsCloseToNaNOnly) {
  std::array<std::uint16_t, 8> bits = kBits;
  bits[2] = 0x7FC0;
  EXPECT_THAT(difference([&] { expect_close("output", view(bits), kValues, 100); }),
              HasSubstr("output[0, 2] is nan"));
  Table<float> want = kValues;
  want.data[2] = std::nanf("");
  EXPECT_EQ(difference([&] { expect_close("output", view(bits), want, 0.01); }), "");
}

}  // namespace
}  // namespace switchyard::conformance
