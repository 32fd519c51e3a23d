// SPDX-License-Identifier: Apache-2.0

#include "cpu/weigh_reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "switchyard/error.h"

#include "core/random.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "support/errors.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows of any of the three dtypes, stored as bytes.
struct Row {
  DType dtype;
  std::vector<std::byte> bytes;

  Row(DType type, std::int64_t hidden) : dtype(type), bytes(element_bytes() * size(hidden)) {}

  static std::size_t size(std::int64_t hidden) { return static_cast<std::size_t>(hidden); }
  std::size_t element_bytes() const { return dtype == DType::kF32 ? 4 : 2; }

  void set(std::int64_t h, float x) {
    const std::uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(x) : f16_from_f32(x);
    const void* from = dtype == DType::kF32 ? static_cast<const void*>(&x) : &half;
    std::memcpy(bytes.data() + size(h) * element_bytes(), from, element_bytes());
  }
  float get(std::int64_t h) const {
    float x = 0;
    std::uint16_t half = 0;
    void* to = dtype == DType::kF32 ? static_cast<void*>(&x) : &half;
    std::memcpy(to, bytes.data() + size(h) * element_bytes(), element_bytes());
    if (dtype == DType::kF32) return x;
    return dtype == DType::kBF16 ? f32_from_bf16(half) : f32_from_f16(half);
  }
};

// Magnitudes over the whole range of the formats, subnormals, zeros of both signs, Inf and NaN.
float awkward_value(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t bits = random_bits(seed, i);
  switch (bits % 37) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return bits % 5 == 0 ? kInf : 65504.0f;
    case 3: return bits % 5 == 0 ? std::numeric_limits<float>::quiet_NaN() : -3e38f;
    case 4: return 0x1p-24f * static_cast<float>(bits >> 60);
    case 5: return 0x1p-140f * static_cast<float>(bits >> 58);
    default: return static_cast<float>(random_normal(seed + 1, i));
  }
}

std::vector<Row> awkward_rows(DType dtype, int count, std::int64_t hidden) {
  std::vector<Row> rows(static_cast<std::size_t>(count), Row(dtype, hidden));
  std::uint64_t i = 0;
  for (Row& row : rows) {
    for (std::int64_t h = 0; h < hidden; ++h) row.set(h, awkward_value(11, i++));
  }
  return rows;
}

Row expected_sum(const std::vector<Row>& rows, const float* weights, std::int64_t hidden,
                 DType out_dtype) {
  Row out(out_dtype, hidden);
  for (std::int64_t h = 0; h < hidden; ++h) {
    float acc = 0.0f;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      acc = weights == nullptr ? acc + rows[i].get(h) : std::fma(weights[i], rows[i].get(h), acc);
    }
    out.set(h, std::isnan(acc) ? std::numeric_limits<float>::quiet_NaN() : acc);
  }
  return out;
}

Row reduced(const std::vector<Row>& rows, const float* weights, std::int64_t hidden,
            DType out_dtype, DType row_dtype) {
  std::vector<const void*> pointers;
  for (const Row& row : rows) pointers.push_back(row.bytes.data());
  Row out(out_dtype, hidden);
  weigh_reduce_row(pointers.data(), row_dtype, weights, static_cast<int>(rows.size()), hidden,
                   out.bytes.data(), out_dtype);
  return out;
}

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

TEST(WeighReduceTest, KnownAnswers) {
  std::vector<Row> rows(2, Row(DType::kF32, 3));
  rows[0].set(0, 1.0f);
  rows[1].set(0, 2.0f);
  // f32 loses 2^-24 beside 1, but the second row's product is not rounded before the sum.
  rows[0].set(1, 1.0f);
  rows[1].set(1, 0x1.000002p+0f);
  rows[0].set(2, -0.0f);
  rows[1].set(2, -0.0f);
  const float weights[] = {-1.0f, 0x1.000002p+0f};
  const Row plain = reduced(rows, nullptr, 3, DType::kF32, DType::kF32);
  EXPECT_EQ(plain.get(0), 3.0f);
  EXPECT_FALSE(std::signbit(plain.get(2)));
  const Row weighed = reduced(rows, weights, 3, DType::kF32, DType::kF32);
  EXPECT_EQ(weighed.get(1), 0x1.000001p-22f);  // 2^-22 + 2^-46: from the unrounded square
}

TEST(WeighReduceTest, NoRowsGivePositiveZero) {
  const Row out = reduced({}, nullptr, 5, DType::kBF16, DType::kBF16);
  for (std::int64_t h = 0; h < 5; ++h) EXPECT_EQ(std::signbit(out.get(h)), false);
}

TEST(WeighReduceTest, EqualsTheScalarChainOnEveryTarget) {
  std::vector<float> weights;
  for (std::uint64_t i = 0; i < 9; ++i) weights.push_back(awkward_value(5, 100 + i));
  for (const DType row_dtype : kDTypes) {
    for (const std::int64_t hidden : {1, 7, 16, 33, 128, 257, 2049}) {
      for (const int count : {1, 2, 9}) {
        const std::vector<Row> rows = awkward_rows(row_dtype, count, hidden);
        for (const DType out_dtype : kDTypes) {
          for (const float* weigh :
               {static_cast<const float*>(nullptr), std::as_const(weights).data()}) {
            const Row expected = expected_sum(rows, weigh, hidden, out_dtype);
            test::for_each_target([&] {
              ASSERT_EQ(reduced(rows, weigh, hidden, out_dtype, row_dtype).bytes, expected.bytes)
                  << name_of(row_dtype) << " to " << name_of(out_dtype) << ", " << count << " of "
                  << hidden << (weigh == nullptr ? ", plain" : ", weighed");
            });
          }
        }
      }
    }
  }
}

TEST(WeighReduceTest, NestedSumEqualsTheSumOfTheRoundedRow) {
  const std::vector<float> weights = {0.5f, -1.25f, 3.0f, 0.1f};
  for (const std::int64_t hidden : {64, 192, 7168}) {
    for (const int num_inner : {0, 1, 4}) {
      for (const int at : {0, 1, 2}) {
        std::vector<Row> rows = awkward_rows(DType::kBF16, 3 + num_inner, hidden);
        const std::vector<Row> inner_rows(rows.begin() + 3, rows.end());
        rows.resize(3, Row(DType::kBF16, hidden));
        std::vector<Row> flat = rows;
        flat[static_cast<std::size_t>(at)] =
            reduced(inner_rows, weights.data(), hidden, DType::kBF16, DType::kBF16);
        const Row expected = expected_sum(flat, nullptr, hidden, DType::kBF16);
        std::vector<const void*> pointers;
        for (const Row& row : rows) pointers.push_back(row.bytes.data());
        pointers[static_cast<std::size_t>(at)] = nullptr;
        std::vector<const void*> inner_pointers;
        for (const Row& row : inner_rows) inner_pointers.push_back(row.bytes.data());
        const InnerSum inner = {at, inner_pointers.data(), weights.data(), num_inner};
        int num_done = 0;
        test::for_each_target([&] {
          Row out(DType::kBF16, hidden);
          if (!weigh_reduce_nested(pointers.data(), nullptr, 3, inner, hidden,
                                   reinterpret_cast<std::uint16_t*>(out.bytes.data()))) {
            return;
          }
          ++num_done;
          ASSERT_EQ(out.bytes, expected.bytes) << hidden << ", " << num_inner << " at " << at;
        });
        EXPECT_GT(num_done, 0) << "no target has vectors";
      }
    }
  }
}

TEST(WeighReduceTest, NestedSumOfOtherSizesIsLeftToTheCaller) {
  Row row(DType::kBF16, 65);
  const Row before = row;
  EXPECT_FALSE(weigh_reduce_nested(nullptr, nullptr, 0, {}, 65,
                                   reinterpret_cast<std::uint16_t*>(row.bytes.data())));
  EXPECT_EQ(row.bytes, before.bytes);
}

TEST(WeighReduceTest, EveryF16CodeIsWidenedExactly) {
  Row row(DType::kF16, 65536);
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    std::memcpy(row.bytes.data() + 2 * code, &half, 2);
  }
  const Row expected = expected_sum({row}, nullptr, 65536, DType::kF32);
  test::for_each_target([&] {
    ASSERT_EQ(reduced({row}, nullptr, 65536, DType::kF32, DType::kF16).bytes, expected.bytes);
  });
}

TEST(WeighReduceTest, OtherDtypesAreRefused) {
  Row row(DType::kF32, 4);
  const void* rows[] = {row.bytes.data()};
  test::expect_invalid("rows are e4m3", [&] {
    weigh_reduce_row(rows, DType::kE4M3, nullptr, 1, 4, row.bytes.data(), DType::kF32);
  });
}

}  // namespace
}  // namespace switchyard
