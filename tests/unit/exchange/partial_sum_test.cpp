// SPDX-License-Identifier: Apache-2.0

#include "exchange/cpu/partial_sum.h"

#include <array>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>

#include "core/random.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

using ::testing::Each;

constexpr std::int64_t kHidden = 37;

std::vector<float> random_row(std::uint64_t seed) {
  std::vector<float> row;
  for (std::uint64_t h = 0; h < kHidden; ++h) {
    row.push_back(static_cast<float>(random_normal(seed, h)));
  }
  return row;
}

TEST(PartialSumTest, NoRowsGiveZero) {
  PartialSum partial(kHidden);
  for (int i = 0; i < 2; ++i) {
    std::vector<float> sum(kHidden, 7.0f);
    partial.clear();
    partial.sum(sum.data(), DType::kF32);
    EXPECT_THAT(sum, Each(0.0f));
  }
}

// Mixed dtypes of one to four partial sums; one object serves all sums.
TEST(PartialSumTest, MixedDtypesAreSummedInOrder) {
  PartialSum partial(kHidden);
  constexpr std::array kDTypes{DType::kBF16, DType::kF16, DType::kF32};
  for (int code = 0; code < 3 * 3 * 3 * 3; ++code) {
    const int num_rows = 1 + code % 4;
    std::vector<std::vector<std::uint16_t>> halves(4);
    std::vector<std::vector<float>> rows;
    std::vector<float> want(kHidden, 0.0f);
    partial.clear();
    for (int i = 0, rest = code; i < num_rows; ++i, rest /= 3) {
      const DType dtype = kDTypes[static_cast<std::size_t>(rest % 3)];
      const float weight = 0.3f * static_cast<float>(i + 1);
      rows.push_back(random_row(static_cast<std::uint64_t>(code * 10 + i)));
      std::vector<std::uint16_t>& half = halves[static_cast<std::size_t>(i)];
      for (float& x : rows.back()) {
        half.push_back(dtype == DType::kBF16 ? bf16_from_f32(x) : f16_from_f32(x));
        if (dtype == DType::kBF16) x = f32_from_bf16(half.back());
        if (dtype == DType::kF16) x = f32_from_f16(half.back());
      }
      for (std::size_t h = 0; h < kHidden; ++h) want[h] = std::fma(weight, rows.back()[h], want[h]);
    }
    for (int i = 0, rest = code; i < num_rows; ++i, rest /= 3) {
      const auto n = static_cast<std::size_t>(i);
      const DType dtype = kDTypes[static_cast<std::size_t>(rest % 3)];
      const void* row = dtype == DType::kF32 ? static_cast<const void*>(rows[n].data())
                                             : static_cast<const void*>(halves[n].data());
      partial.add(row, dtype, 0.3f * static_cast<float>(i + 1));
    }
    std::vector<float> sum(kHidden, -1.0f);
    partial.sum(sum.data(), DType::kF32);
    ASSERT_EQ(sum, want) << code;
    std::vector<std::uint16_t> rounded(kHidden);
    partial.sum(rounded.data(), DType::kBF16);
    for (std::size_t h = 0; h < kHidden; ++h) ASSERT_EQ(rounded[h], bf16_from_f32(want[h])) << code;
  }
}

// A copied row may change before the sum; stored and plain rows are added in one sum.
TEST(PartialSumTest, StoredRowsAreWidened) {
  const QuantScheme& scheme = schemes::kFp8Block;
  const std::vector<float> x = random_row(3);
  std::vector<std::byte> codes(row_bytes(scheme, kHidden));
  std::vector<float> scales(1);
  quantize_row(scheme, x.data(), DType::kF32, kHidden, codes.data(), scales.data());
  std::vector<float> wide(kHidden);
  dequantize_row(scheme, codes.data(), scales.data(), scheme.dtype, kHidden, wide.data());
  const std::vector<std::uint16_t> ones(kHidden, 0x3F80);

  PartialSum partial(kHidden);
  partial.clear();
  partial.add(ones.data(), DType::kBF16, 0.5f);
  partial.add_stored(scheme, codes.data(), scales.data(), 2.0f);
  partial.add_copy(scheme, codes.data(), scales.data(), -1.5f);
  codes.assign(codes.size(), std::byte{0});
  std::vector<float> sum(kHidden);
  partial.sum(sum.data(), DType::kF32);
  for (std::size_t h = 0; h < kHidden; ++h) {
    const float want = std::fma(-1.5f, wide[h], std::fma(2.0f, wide[h], 0.5f));
    ASSERT_EQ(sum[h], want) << h;
  }
}

}  // namespace
}  // namespace switchyard
