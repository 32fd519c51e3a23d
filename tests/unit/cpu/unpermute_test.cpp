// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/permute.h"

#include "core/random.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "reference/permute.h"
#include "support/errors.h"
#include "support/random_batch.h"

namespace switchyard {
namespace {

using reference::AlignedRows;
using reference::Table;
using test::expect_error;
using ::testing::ElementsAre;

float get(const TensorView& tensor, std::int64_t i) {
  switch (tensor.dtype()) {
    case DType::kF32: return tensor.as<float>()[i];
    case DType::kBF16: return f32_from_bf16(tensor.as<std::uint16_t>()[i]);
    default: return f32_from_f16(tensor.as<std::uint16_t>()[i]);
  }
}

Tensor tensor_of(const Table<float>& table, DType dtype) {
  Tensor tensor(dtype, {table.rows, table.cols});
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    const float x = table.data[i];
    switch (dtype) {
      case DType::kF32: tensor.as<float>()[i] = x; break;
      case DType::kBF16: tensor.as<std::uint16_t>()[i] = bf16_from_f32(x); break;
      default: tensor.as<std::uint16_t>()[i] = f16_from_f32(x); break;
    }
  }
  return tensor;
}

Table<float> table_of(const TensorView& tensor) {
  Table<float> table(tensor.shape(0), tensor.shape(1));
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = get(tensor, static_cast<std::int64_t>(i));
  }
  return table;
}

test::BatchShape shape_of(std::int32_t num_experts, std::int32_t num_topk, std::int64_t hidden) {
  return {.num_experts = num_experts,
          .num_topk = num_topk,
          .hidden = hidden,
          .none_share = 0.1,
          .has_duplicates = true};
}

Table<std::int64_t> wide(const Table<std::int32_t>& ids) {
  return {ids.rows, ids.cols, {ids.data.begin(), ids.data.end()}};
}

template <typename T>
TensorView view(const Table<T>& table) {
  return TensorView::of(table.data.data(), {table.rows, table.cols});
}

// 1 + 2^-8 lies halfway between two bf16 values: the sum is rounded once, to the even one.
TEST(UnpermuteTest, KnownAnswer) {
  const std::vector<float> rows = {1.0f, -1.0f, 0x1p-8f, 4.0f, 0x1p-8f, 8.0f};
  const std::vector<std::int32_t> ids = {0, 2, 1, -1, -1, -1};
  const std::vector<std::int32_t> inv_perm = {0, 1, 2, 77, 77, 77};  // 77 is never read
  const std::vector<float> weights = {1.0f, 1.0f, 0.5f, 9.0f, 9.0f, 9.0f};
  const Tensor out(DType::kBF16, {3, 2});
  std::fill_n(out.as<std::uint16_t>(), 6, std::uint16_t{0x7FC0});
  ep_gather(TensorView::of(rows.data(), {3, 2}), TensorView::of(ids.data(), {3, 2}),
            TensorView::of(weights.data(), {3, 2}), TensorView::of(inv_perm.data(), {3, 2}), {},
            out);
  EXPECT_THAT(table_of(out).data, ElementsAre(1.0f, 3.0f, 0x1p-9f, 4.0f, 0.0f, 0.0f));
}

TEST(UnpermuteTest, MapDropsExpertsOfOtherRanks) {
  const std::vector<float> rows = {3.0f};
  const std::vector<std::int64_t> ids = {5, 4};
  const std::vector<std::int32_t> map = {-1, -1, -1, -1, 0, -1};
  const std::vector<std::int32_t> inv_perm = {std::numeric_limits<std::int32_t>::min(), 0};
  const Tensor out(DType::kF32, {1, 1});
  ep_gather(TensorView::of(rows.data(), {1, 1}), TensorView::of(ids.data(), {1, 2}), {},
            TensorView::of(inv_perm.data(), {1, 2}), TensorView::of(map.data(), {6}), out);
  EXPECT_EQ(out.as<float>()[0], 3.0f);
}

TEST(UnpermuteTest, EqualsTheOracleBitForBit) {
  for (const std::int64_t num_tokens : {0, 1, 33}) {
    for (const std::int64_t hidden : {1, 1001, 2048}) {
      const reference::RankInput input =
          test::random_tokens(shape_of(16, 6, hidden), num_tokens, 23);
      const AlignedRows want = reference::permute(wide(input.topk_ids), {}, 16, 8);
      const auto num_rows = static_cast<std::int64_t>(want.rows.size());
      const Table<float> rows = test::random_table(num_rows, hidden, 29);
      const PermutePlan plan = plan_permute(view(input.topk_ids), 16, {.alignment = 8});
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const Tensor expert_output = tensor_of(rows, dtype);
        for (const DType out_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
          const Tensor out(out_dtype, {num_tokens, hidden});
          unpermute_and_reduce(expert_output, plan, view(input.topk_weights), out);
          const Table<float> sums = reference::unpermute_and_reduce(want, table_of(expert_output),
                                                                    input.topk_weights, out_dtype);
          ASSERT_EQ(test::bits_of_table(table_of(out)), test::bits_of_table(sums))
              << num_tokens << " x " << hidden << " " << name_of(dtype) << " "
              << name_of(out_dtype);
        }
      }
    }
  }
}

// Round trip with identity experts over the sizes of vLLM's test_moe_permute_unpermute: every rank
// gathers its part, and the parts add up to the token times the sum of its weights.
TEST(UnpermuteTest, ThereAndBackOverRanks) {
  for (const std::int32_t num_ranks : {1, 4, 16}) {
    const reference::RankInput input = test::random_tokens(shape_of(64, 8, 256), 33, 31);
    const Tensor x = tensor_of(input.tokens, DType::kBF16);
    Table<float> total(33, 256);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      std::vector<std::int32_t> map(64, -1);
      const std::int32_t num_local = 64 / num_ranks;
      for (std::int32_t e = 0; e < num_local; ++e) {
        map[static_cast<std::size_t>(rank * num_local + e)] = e;
      }
      const TensorView map_view = TensorView::of(map.data(), {64});
      const Permuted permuted =
          permute(x, {}, view(input.topk_ids), num_local, {.expert_map = map_view});
      const Tensor by_ids(DType::kF32, {33, 256});
      ep_gather(permuted.x, view(input.topk_ids), view(input.topk_weights), permuted.plan.inv_perm,
                map_view, by_ids);
      const Tensor by_plan(DType::kF32, {33, 256});
      unpermute_and_reduce(permuted.x, permuted.plan, view(input.topk_weights), by_plan);
      ASSERT_EQ(table_of(by_ids), table_of(by_plan));
      for (std::size_t i = 0; i < total.data.size(); ++i) total.data[i] += by_ids.as<float>()[i];
    }
    for (std::int64_t t = 0; t < 33; ++t) {
      double weight = 0;
      for (std::int64_t k = 0; k < 8; ++k) {
        if (input.topk_ids(t, k) >= 0) weight += static_cast<double>(input.topk_weights(t, k));
      }
      for (std::int64_t h = 0; h < 256; ++h) {
        const double want = weight * static_cast<double>(input.tokens(t, h));
        ASSERT_NEAR(static_cast<double>(total(t, h)), want, 1e-5 * (1 + std::abs(want)));
      }
    }
  }
}

TEST(UnpermuteTest, StridedRowsAndOutput) {
  const std::vector<float> rows = {1, 2, 0, 3, 4, 0};
  const std::vector<std::int32_t> inv_perm = {1, 0};
  const Tensor memory(DType::kF32, {2, 4});
  const TensorView out(memory.data(), DType::kF32, {2, 2}, {4, 1});
  const TensorView places = TensorView::of(inv_perm.data(), {2, 1});
  ep_gather(TensorView(rows.data(), DType::kF32, {2, 2}, {3, 1}), places, {}, places, {}, out);
  const float* got = memory.as<float>();
  EXPECT_THAT(std::vector<float>(got, got + 8), ElementsAre(3, 4, 0, 0, 1, 2, 0, 0));
}

TEST(UnpermuteTest, WrongArgumentsAreErrors) {
  const Tensor rows(DType::kBF16, {4, 8});
  const Tensor weights(DType::kF32, {2, 1});
  const Tensor out(DType::kBF16, {2, 8});
  const std::vector<std::int32_t> ids = {0, 0};
  std::vector<std::int32_t> inv_perm = {3, 4};
  const TensorView ids_view = TensorView::of(ids.data(), {2, 1});
  const TensorView places = TensorView::of(inv_perm.data(), {2, 1});
  const auto gather = [&](const TensorView& from, const TensorView& w, const TensorView& to) {
    return [&, from, w, to] { ep_gather(from, ids_view, w, places, {}, to); };
  };
  expect_error(Errc::kInvalidArgument, "inv_perm[1, 0] is 4, but expert_output has 4 rows",
               gather(rows, weights, out));
  inv_perm[1] = -1;
  expect_error(Errc::kInvalidArgument, "inv_perm[1, 0] is -1", gather(rows, weights, out));
  inv_perm[1] = 0;
  expect_error(Errc::kInvalidArgument, "expert_output is absent", gather({}, weights, out));
  expect_error(Errc::kInvalidArgument, "topk_weights is bf16 [4, 8], want f32 [2, 1]",
               gather(rows, rows, out));
  expect_error(Errc::kInvalidArgument, "output is bf16 [4, 8]", gather(rows, weights, rows));
  const TensorView codes(rows.data(), DType::kE4M3, {4, 8});
  expect_error(Errc::kInvalidArgument, "expert_output is e4m3", gather(codes, weights, out));
}

}  // namespace
}  // namespace switchyard
