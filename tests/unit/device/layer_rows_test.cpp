// SPDX-License-Identifier: Apache-2.0
//
// The small steps of prepare, finalize and the modular kernel on CPUs, by known answers. tests/cuda
// compares the GPU's with these.

#include "device/layer_rows.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>

#include "plan/permute_views.h"
#include "quant/bf16.h"
#include "quant/exp.h"
#include "support/elements.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using test::view_of;
using ::testing::ElementsAre;

std::vector<std::uint16_t> bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float x : values) bits.push_back(bf16_from_f32(x));
  return bits;
}

TensorView rows_of(const std::vector<std::uint16_t>& bits,
                   std::initializer_list<std::int64_t> shape) {
  return TensorView(bits.data(), DType::kBF16, shape);
}

struct Ids {
  std::vector<std::int32_t> from{0, 2, -1, 1};
  std::vector<std::int64_t> to{77, 77, 77, 77};

  cuda::RenameIdsArgs args() const {
    cuda::RenameIdsArgs args;
    args.from = id_table("test", TensorView::of(from.data(), {2, 2}));
    args.to = id_table("test", TensorView::of(to.data(), {2, 2}));
    args.num_ids = 3;
    args.none = -5;
    args.invalid = -6;
    return args;
  }
};

TEST(RenameIdsTest, ByTable) {
  Ids ids;
  const std::vector<std::int32_t> table{30, 31, 32};
  cuda::RenameIdsArgs args = ids.args();
  args.table = table.data();
  switchyard::rename_ids(args, Stream::host());
  EXPECT_THAT(ids.to, ElementsAre(30, 32, -5, 31));
  for (const std::int32_t unknown : {3, -2}) {
    ids.from[3] = unknown;
    expect_invalid("topk_ids[3] is " + std::to_string(unknown) + ", must be -1 or an expert from 0",
                   [&] { switchyard::rename_ids(args, Stream::host()); });
  }
}

TEST(RenameIdsTest, ByOffset) {
  Ids ids;
  ids.from = {0, 2, -1, 3};  // 3 is not an id: no error without a table
  cuda::RenameIdsArgs args = ids.args();
  args.offset = 100;
  switchyard::rename_ids(args, Stream::host());
  EXPECT_THAT(ids.to, ElementsAre(100, 102, -5, -6));
}

// Rows from *num_rows on hold no token: whatever their ids are, they become `none`.
TEST(RenameIdsTest, RowsWithoutATokenHaveNoIdsAndNoWeights) {
  Ids ids;
  ids.from = {0, 2, 99, 1};
  std::vector<float> weights{1, 2, 3, 4};
  const std::int32_t num_rows = 1;
  cuda::RenameIdsArgs args = ids.args();
  args.num_rows = &num_rows;
  args.weights = weights.data();
  switchyard::rename_ids(args, Stream::host());
  EXPECT_THAT(ids.to, ElementsAre(0, 2, -5, -5));
  EXPECT_THAT(weights, ElementsAre(1, 2, 0, 0));
}

// Three experts of 2, 0 and 1 rows, aligned to 4, in a buffer of 10: expert 7 is the first.
TEST(MarkRowsTest, GapsBelongToTheirExpert) {
  const std::vector<std::int32_t> num_rows{2, 0, 1};
  const std::vector<std::int64_t> first_row{0, 4, 4};
  std::vector<std::int64_t> ids(10, 77);
  std::vector<float> weights(10, 1.0f);
  std::vector<std::int32_t> aligned(3, 77);
  std::int32_t end = 77;
  cuda::MarkRowsArgs args;
  args.num_rows = num_rows.data();
  args.first_row = first_row.data();
  args.num_local = 3;
  args.first_expert = 7;
  args.alignment = 4;
  args.m = 10;
  args.ids = ids.data();
  args.weights = weights.data();
  args.aligned_counts = aligned.data();
  args.end = &end;
  switchyard::mark_rows(args, Stream::host());
  EXPECT_THAT(ids, ElementsAre(7, 7, 7, 7, 9, 9, 9, 9, -1, -1));
  EXPECT_THAT(weights, ElementsAre(1, 1, 0, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(aligned, ElementsAre(4, 0, 4));
  EXPECT_EQ(end, 8);

  args.weights = nullptr;  // they may be absent
  args.num_local = 0;
  switchyard::mark_rows(args, Stream::host());
  EXPECT_THAT(ids, ::testing::Each(-1));
  EXPECT_EQ(end, 0);
}

// In bf16 the weight is 1 + 2^-7, and 1.75 times that is 225.75 / 128; with the f32 weight it would
// be 224.9 / 128.
TEST(WeighRowsTest, WeightsAreRoundedToTheTypeOfTheRowsFirst) {
  const float weight = 1.0f + 0x1p-8f + 0x1p-12f;
  const std::vector<std::uint16_t> from = bf16({1.75f});
  const Tensor to(DType::kBF16, {1, 1});
  weigh_rows(rows_of(from, {1, 1}), view_of(std::vector{weight}), to, Stream::host());
  EXPECT_EQ(f32_from_bf16(to.as<std::uint16_t>()[0]), 226.0f / 128.0f);
}

TEST(WeighRowsTest, ProductsAreRoundedOnce) {
  const std::vector<std::uint16_t> from = bf16({1, 2, 3, 3, 5, 6});
  const std::vector<float> weights{0.5f, 1.0f + 0x1p-7f};  // 3 * weight is a tie: to even
  const Tensor to(DType::kBF16, {2, 3});
  weigh_rows(rows_of(from, {2, 3}), view_of(weights), to, Stream::host());
  EXPECT_EQ(std::vector<std::uint16_t>(to.as<std::uint16_t>(), to.as<std::uint16_t>() + 6),
            bf16({0.5f, 1, 1.5f, 3 * weights[1], 5 * weights[1], 6 * weights[1]}));
  EXPECT_EQ(f32_from_bf16(to.as<std::uint16_t>()[3]), 3.03125f);

  const std::vector<float> wide{1, 2, 3};
  const std::vector<float> third{1.0f / 3.0f};
  const Tensor exact(DType::kF32, {1, 3});
  weigh_rows(TensorView::of(wide.data(), {1, 3}), view_of(third), exact, Stream::host());
  EXPECT_THAT(test::elements<float>(exact), ElementsAre(third[0], 2 * third[0], 3 * third[0]));
}

TEST(CopyTensorTest, CopiesBytes) {
  const std::vector<float> from{1, 2, 3};
  const Tensor to(DType::kF32, {3});
  copy_tensor(view_of(from), to, Stream::host());
  EXPECT_THAT(test::elements<float>(to), ElementsAre(1, 2, 3));
  copy_tensor(TensorView(nullptr, DType::kF32, {0}), TensorView(nullptr, DType::kF32, {0}),
              Stream::host());
}

// Rank of experts 1 and 2 of 4; row m of choice k is 10 m + k + 1 in both elements.
TEST(SumChoicesTest, OnlyLocalChoicesCount) {
  const std::vector<std::uint16_t> rows = bf16({1, 1, 2, 2, 3, 3,        //
                                                11, 11, 12, 12, 13, 13,  //
                                                21, 21, 22, 22, 23, 23});
  const std::vector<std::int32_t> ids{1, 0,  2,  //
                                      3, -1, 2,  //
                                      0, 3,  -1};
  const std::vector<std::int32_t> map{-1, 0, 1, -1, -1};
  const std::vector<float> weights{2, 100, 3, 100, 100, 0.5f, 100, 100, 100};
  const TensorView choices = rows_of(rows, {3, 3, 2});
  const TensorView topk_ids = TensorView::of(ids.data(), {3, 3});
  const Tensor sums(DType::kBF16, {3, 2});
  sum_choices(choices, topk_ids, TensorView::of(weights.data(), {3, 3}), view_of(map), sums,
              Stream::host());
  EXPECT_EQ(std::vector<std::uint16_t>(sums.as<std::uint16_t>(), sums.as<std::uint16_t>() + 6),
            bf16({11, 11, 6.5f, 6.5f, 0, 0}));
  sum_choices(choices, topk_ids, {}, view_of(map), sums, Stream::host());
  EXPECT_EQ(std::vector<std::uint16_t>(sums.as<std::uint16_t>(), sums.as<std::uint16_t>() + 6),
            bf16({4, 4, 13, 13, 0, 0}));
}

TEST(GateRowsTest, RowsAreMultipliedByTheSigmoidOfTheProduct) {
  const std::vector<float> hidden{1, 2, -3, 1};
  const std::vector<float> gate{0.5f, 0.25f};
  const std::vector<std::uint16_t> given = bf16({4, 8, -4, 16});
  const Tensor rows(DType::kBF16, {2, 2});
  copy_tensor(rows_of(given, {2, 2}), rows, Stream::host());
  const Tensor weights(DType::kF32, {2});
  gate_rows(TensorView::of(hidden.data(), {2, 2}), view_of(gate), weights, rows, Stream::host());
  const float logits[] = {1.0f, -1.25f};
  for (std::size_t i = 0; i < 4; ++i) {
    const float scale = sigmoid(logits[i / 2]);
    EXPECT_EQ(rows.as<std::uint16_t>()[i], bf16_from_f32(f32_from_bf16(given[i]) * scale)) << i;
    EXPECT_NEAR(f32_from_bf16(rows.as<std::uint16_t>()[i]),
                f32_from_bf16(given[i]) / (1.0f + std::exp(-logits[i / 2])), 0.03);
  }
}

}  // namespace
}  // namespace switchyard
