// SPDX-License-Identifier: Apache-2.0

#include "switchyard/weight_and_reduce.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "quant/bf16.h"
#include "reference/reference.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using reference::Table;
using test::expect_invalid;
using ::testing::ElementsAre;

Tensor bf16_tensor(const Table<float>& table, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(DType::kBF16, shape);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    tensor.as<std::uint16_t>()[i] = bf16_from_f32(table.data[i]);
  }
  return tensor;
}

Table<float> table_of(const Tensor& tensor, std::int64_t rows, std::int64_t cols) {
  Table<float> table(rows, cols);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = f32_from_bf16(tensor.as<std::uint16_t>()[i]);
  }
  return table;
}

template <typename T>
TensorView view(const Table<T>& table) {
  return TensorView::of(table.data.data(), {table.rows, table.cols});
}

TEST(WeightAndReduceTest, DelegateIsAnErrorAndIsReplacedByTheFallback) {
  const WeightAndReduce policy;
  expect_invalid("the policy is delegate", [&] { (void)weight_and_reduce(policy, {}); });
  EXPECT_EQ(policy.or_else(WeightAndReduce::naive_batched(3)), WeightAndReduce::naive_batched(3));
  EXPECT_EQ(WeightAndReduce::no_op().or_else(WeightAndReduce::contiguous()),
            WeightAndReduce::no_op());
  EXPECT_STREQ(name_of(WeightAndReduceKind::kNaiveBatched), "naive_batched");
}

TEST(WeightAndReduceTest, NoOpReturnsTheRowsOrCopiesThem) {
  const Tensor rows = bf16_tensor({2, 3, {1, 2, 3, 4, 5, 6}}, {2, 3});
  WeightAndReduceArguments arguments;
  arguments.expert_output = rows;
  const WeightAndReduce policy = WeightAndReduce::no_op();
  EXPECT_EQ(weight_and_reduce(policy, arguments).data(), rows.data());
  EXPECT_EQ(weight_and_reduce(policy, arguments, rows).data(), rows.data());
  const Tensor out(DType::kBF16, {2, 3});
  EXPECT_EQ(weight_and_reduce(policy, arguments, out).data(), out.data());
  EXPECT_EQ(table_of(out, 2, 3), table_of(rows, 2, 3));
  const Tensor small(DType::kBF16, {1, 3});
  expect_invalid("output is bf16 [1, 3]",
                 [&] { (void)weight_and_reduce(policy, arguments, small); });
}

// From 128 to 255 bf16 holds integers only: 129 * 1.5 = 193.5 becomes 194 in place, and 131 * 1.5 =
// 196.5 becomes 196, to which 0.25 adds nothing, where a single rounding would give 197.
TEST(WeightAndReduceTest, ContiguousRoundsTheProductInPlaceThenTheSum) {
  const Tensor rows = bf16_tensor(
      {
          2,
          2,
          {129, -1, 0.5f, 1},
      },
      {1, 2, 2});
  const Table<float> weights(1, 2, {1.5f, 1.0f});
  const Table<std::int32_t> ids(1, 2, {4, 7});
  WeightAndReduceArguments arguments{rows, view(weights), view(ids)};
  const Tensor out(DType::kBF16, {1, 2});
  weight_and_reduce(WeightAndReduce::contiguous(), arguments, out);
  EXPECT_THAT(table_of(rows, 2, 2).data, ElementsAre(194.0f, -1.5f, 0.5f, 1.0f));
  EXPECT_THAT(table_of(out, 1, 2).data, ElementsAre(194.0f, -0.5f));

  const Tensor other = bf16_tensor({2, 1, {131, 0.25f}}, {2, 1});
  const Tensor sum(DType::kBF16, {1, 1});
  arguments.expert_output = other;
  weight_and_reduce(WeightAndReduce::contiguous(), arguments, sum);
  EXPECT_EQ(table_of(sum, 1, 1).data[0], 196.0f);  // 196.75 rounded once would be 197
}

// Rows of dropped choices hold NaN, which must neither reach the sum nor be touched.
TEST(WeightAndReduceTest, PaddingIsLeftOut) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor rows = bf16_tensor({4, 1, {1, nan, nan, nan}}, {2, 2, 1});
  const Table<float> weights(2, 2, 2.0f);
  const Table<std::int32_t> ids(2, 2, {3, 1, -1, 0});
  const std::vector<std::int32_t> map = {-1, -1, -1, 5};
  const Tensor out(DType::kBF16, {2, 1});
  weight_and_reduce(WeightAndReduce::contiguous(true),
                    {rows, view(weights), view(ids), TensorView::of(map.data(), {4})}, out);
  EXPECT_THAT(table_of(out, 2, 1).data, ElementsAre(2.0f, 0.0f));
  weight_and_reduce(WeightAndReduce::contiguous(), {rows, view(weights), view(ids)}, out);
  EXPECT_TRUE(std::isnan(table_of(out, 2, 1).data[1]));
}

TEST(WeightAndReduceTest, NegativeZeroStaysInPlace) {
  const Tensor rows = bf16_tensor(Table<float>(1, 1, -0.0f), {1, 1});
  const Table<float> weights(1, 1, 1.0f);
  const Table<std::int32_t> ids(1, 1, 0);
  const Tensor out(DType::kBF16, {1, 1});
  weight_and_reduce(WeightAndReduce::contiguous(), {rows, view(weights), view(ids)}, out);
  EXPECT_EQ(rows.as<std::uint16_t>()[0], 0x8000);
  EXPECT_EQ(out.as<std::uint16_t>()[0], 0);
}

TEST(WeightAndReduceTest, WrongArgumentsAreErrors) {
  const Tensor rows(DType::kBF16, {2, 1, 4});
  const Tensor out(DType::kBF16, {2, 4});
  const Table<float> weights(2, 1);
  const Table<std::int32_t> ids(2, 1, 0);
  const auto expect = [&](const std::string& phrase, const WeightAndReduce& policy,
                          const WeightAndReduceArguments& arguments, const TensorView& to) {
    expect_invalid(phrase, [&] { (void)weight_and_reduce(policy, arguments, to); });
  };
  const WeightAndReduce contiguous = WeightAndReduce::contiguous();
  const WeightAndReduce batched = WeightAndReduce::naive_batched(0);
  const WeightAndReduceArguments good{rows, view(weights), view(ids)};
  expect("output is absent", contiguous, good, {});
  expect("topk_weights is absent, must be f32 [2, 1]", contiguous, {rows, {}, view(ids)}, out);
  expect("topk_ids is absent", contiguous, {rows, view(weights), {}}, out);
  expect("expert_output is absent", contiguous, {{}, view(weights), view(ids)}, out);
  const Tensor codes(DType::kE4M3, {2, 1, 4});
  expect("expert_output is e4m3", contiguous, {codes, view(weights), view(ids)}, out);
  expect("more than 1 tokens", batched, good, out);
  expect("rank is -1", WeightAndReduce::naive_batched(-1), good, out);
  const TensorView flat(rows.data(), DType::kBF16, {1, 4});
  expect("must be [2, 1, 4]", contiguous, {flat, view(weights), view(ids)}, out);
  const std::vector<std::int32_t> map;
  expect("expert_map has 0 entries", WeightAndReduce::contiguous(true),
         {rows, view(weights), view(ids), TensorView::of(map.data(), {0})}, out);
}

}  // namespace
}  // namespace switchyard
