// SPDX-License-Identifier: Apache-2.0

#include "cpu/gemm.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/tensor.h"

#include "core/bytes.h"
#include "core/random.h"
#include "cpu/weights.h"
#include "quant/scalar.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

Tensor random_weights(DType dtype, std::int64_t experts, std::int64_t n, std::int64_t k,
                      std::uint64_t seed) {
  Tensor tensor(dtype, {experts, n, k});
  for (std::int64_t i = 0; i < experts * n * k; ++i) {
    const double x = random_normal(seed, static_cast<std::uint64_t>(i));
    scalar::store(tensor.data(), dtype, i, static_cast<float>(x));
  }
  return tensor;
}

float weight_at(const Tensor& tensor, std::int64_t expert, std::int64_t n, std::int64_t k) {
  const std::int64_t row = expert * tensor.shape(1) + n;
  return scalar::load(tensor.data(), tensor.dtype(), row * tensor.shape(2) + k);
}

// Rows of x and y with a stride larger than their length; the gaps must not change.
struct Rows {
  std::int64_t count;
  std::int64_t stride;
  std::vector<float> data;

  Rows(std::int64_t rows, std::int64_t row_stride, float fill)
      : count(rows), stride(row_stride), data(static_cast<std::size_t>(rows * row_stride), fill) {}
  float& at(std::int64_t r, std::int64_t c) {
    return data[static_cast<std::size_t>(r * stride + c)];
  }
};

Rows multiply(Rows& x, const PackedMatrix& w) {
  Rows y(x.count, w.num_panels * kPanel + 3, -7.0f);
  std::vector<float> scratch(static_cast<std::size_t>(gemm_scratch_floats(x.count, w.depth)));
  gemm(x.data.data(), x.stride, x.count, w, y.data.data(), y.stride, scratch.data());
  return y;
}

void expect_chain(const std::array<Tensor, 2>& tensors, std::int64_t expert, Rows& x, Rows& y) {
  const std::int64_t depth = tensors[0].shape(2);
  std::int64_t first_column = 0;
  for (const Tensor& tensor : tensors) {
    for (std::int64_t r = 0; r < x.count; ++r) {
      for (std::int64_t n = 0; n < tensor.shape(1); ++n) {
        float acc = 0.0f;
        for (std::int64_t k = 0; k < depth; ++k) {
          acc = std::fma(x.at(r, k), weight_at(tensor, expert, n, k), acc);
        }
        ASSERT_EQ(y.at(r, first_column + n), acc) << "row " << r << ", output " << n;
      }
    }
    first_column += align_up(tensor.shape(1), kPanel);
  }
  for (std::int64_t r = 0; r < x.count; ++r) {
    for (std::int64_t c = first_column; c < y.stride; ++c) ASSERT_EQ(y.at(r, c), -7.0f);
  }
}

TEST(GemmTest, EachOutputIsOneChainOnEveryTarget) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t depth : {1, 255, 256, 257, 600}) {
      const std::array<Tensor, 2> tensors = {random_weights(dtype, 2, 33, depth, 1),
                                             random_weights(dtype, 2, 5, depth, 2)};
      const PackedWeights packed(std::array<WeightTensor, 2>{{{tensors[0], {}}, {tensors[1], {}}}});
      ASSERT_EQ(packed.num_columns(), 96);  // 33 columns use two panels, 5 use one
      for (const std::int64_t count : {1, 2, 6, 12, 13, 24, 25, 37}) {
        Rows x(count, depth + 2, 0.0f);
        for (std::size_t i = 0; i < x.data.size(); ++i) {
          x.data[i] = static_cast<float>(random_normal(9, i));
        }
        test::for_each_target([&] {
          Rows y = multiply(x, packed.expert(1));
          expect_chain(tensors, 1, x, y);
        });
      }
    }
  }
}

// 1 + 2^-24 twice: in ascending order each sum rounds to even; in any other it is 1 + 2^-23.
TEST(GemmTest, OrderIsAscending) {
  const float weights[] = {1.0f, 0x1p-24f, 0x1p-24f};
  const PackedWeights packed(
      std::array<WeightTensor, 1>{{{TensorView::of(weights, {1, 1, 3}), {}}}});
  Rows x(1, 3, 1.0f);
  test::for_each_target([&] { EXPECT_EQ(multiply(x, packed.expert(0)).at(0, 0), 1.0f); });
}

TEST(GemmTest, NoRowsIsNoWork) {
  const float weights[] = {1.0f};
  const PackedWeights packed(
      std::array<WeightTensor, 1>{{{TensorView::of(weights, {1, 1, 1}), {}}}});
  gemm(nullptr, 1, 0, packed.expert(0), nullptr, 32, nullptr);
}

TEST(WeightsTest, BF16StaysNarrowAndAllElseIsWidened) {
  const Tensor narrow = random_weights(DType::kBF16, 3, 40, 10, 1);
  const Tensor wide = random_weights(DType::kF16, 3, 40, 10, 1);
  EXPECT_EQ(PackedWeights(std::array<WeightTensor, 1>{{{narrow, {}}}}).size_bytes(),
            3U * 64 * 10 * 2);
  EXPECT_EQ(PackedWeights(std::array<WeightTensor, 1>{{{wide, {}}}}).size_bytes(),
            3U * 64 * 10 * 4);
}

// Element (129, 130) lies in block (1, 1) of 128 x 128.
TEST(WeightsTest, E4M3IsScaledByItsBlock) {
  const Tensor values(DType::kE4M3, {1, 130, 131});
  std::memset(values.data(), 0x38, 130 * 131);  // all 1.0
  const float scales[] = {2.0f, 3.0f, 5.0f, 7.0f};
  WeightReader reader({values, TensorView::of(scales, {1, 2, 2})});
  std::vector<float> row(131);
  reader.read(0, 127, row.data());
  EXPECT_EQ(row[127], 2.0f);
  EXPECT_EQ(row[128], 3.0f);
  reader.read(0, 129, row.data());
  EXPECT_EQ(row[0], 5.0f);
  EXPECT_EQ(row[130], 7.0f);
}

}  // namespace
}  // namespace switchyard
