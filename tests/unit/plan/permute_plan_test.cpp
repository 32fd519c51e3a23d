// SPDX-License-Identifier: Apache-2.0
//
// Counts, sizes and plans: the integer part of the permute.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/permute.h"

#include "reference/permute.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using reference::Table;
using test::expect_error;
using test::expect_invalid;
using ::testing::ElementsAre;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TensorView view(const Table<std::int64_t>& ids) {
  return TensorView::of(ids.data.data(), {ids.rows, ids.cols});
}

std::vector<std::int32_t> values(const Tensor& tensor) {
  return {tensor.as<std::int32_t>(), tensor.as<std::int32_t>() + tensor.view().num_elements()};
}

std::vector<std::int32_t> counts(const TensorView& ids, std::int64_t num_local,
                                 const TensorView& map = {}) {
  const Tensor out(DType::kI32, {num_local});
  count_expert_num_tokens(ids, out, map);
  return values(out);
}

// Three experts, alignment 4. Expert 0: (0, 0), (2, 1). Expert 1: none. Expert 2: five choices.
const Table<std::int64_t> kIds(4, 2, {0, 2, 2, -1, 2, 0, 2, 2});

TEST(PermutePlanTest, KnownAnswer) {
  const PermutePlan plan = plan_permute(view(kIds), 3, {.alignment = 4});
  EXPECT_THAT(plan.expert_num_tokens, ElementsAre(2, 0, 5));
  EXPECT_THAT(plan.first_row, ElementsAre(0, 4, 4));
  EXPECT_EQ(plan.num_rows(), 12);
  EXPECT_THAT(values(plan.inv_perm), ElementsAre(0, 4, 5, -1, 6, 1, 7, 8));
  EXPECT_THAT(values(plan.m_indices), ElementsAre(0, 0, -1, -1, 2, 2, 2, 2, 2, -1, -1, -1));
}

TEST(PermutePlanTest, OwnerPaddingFillsTilesAndLeavesZeroBehind) {
  const PermuteOptions options{.alignment = 4, .compat_padding = CompatPadding::kOwner};
  const PermutePlan exact = plan_permute(view(kIds), 3, options);
  EXPECT_THAT(values(exact.m_indices), ElementsAre(0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2));
  const PermutePlan larger = plan_permute(view(kIds), 3, options, 15);
  EXPECT_THAT(values(larger.m_indices), ElementsAre(0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0));
  const PermutePlan without = plan_permute(view(kIds), 3, {.alignment = 4}, 13);
  EXPECT_EQ(values(without.m_indices).back(), -1);
}

// vLLM's padding test: two tokens, one expert each, tiles of 128.
TEST(PermutePlanTest, TwoTokensInTwoTilesLeavePadding) {
  const PermutePlan plan = plan_permute(view(Table<std::int64_t>(2, 1, {0, 1})), 2);
  EXPECT_EQ(plan.num_rows(), 256);
  EXPECT_THAT(values(plan.inv_perm), ElementsAre(0, 128));
  const std::vector<std::int32_t> rows = values(plan.m_indices);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), -1), 254);
}

TEST(PermutePlanTest, NoChoiceAtAll) {
  const PermutePlan plan = plan_permute(view(Table<std::int64_t>(3, 2, -1)), 4);
  EXPECT_EQ(plan.num_rows(), 0);
  EXPECT_THAT(plan.expert_num_tokens, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(values(plan.inv_perm), ElementsAre(-1, -1, -1, -1, -1, -1));
}

TEST(PermutePlanTest, StridedAndNarrowIdsArePlannedAlike) {
  const std::vector<std::int32_t> columns = {0, 2, 2, 2, 9, 2, -1, 0, 2, 9};  // [K, T + 1]
  const TensorView ids(columns.data(), DType::kI32, {4, 2}, {1, 5});
  const PermutePlan plan = plan_permute(ids, 3, {.alignment = 4});
  EXPECT_THAT(values(plan.inv_perm), ElementsAre(0, 4, 5, -1, 6, 1, 7, 8));
}

TEST(CountExpertTokensTest, IdsOfNobodyAreNotCounted) {
  const std::vector<std::int32_t> ids = {0, 1, 7, -1, -9, 1};
  EXPECT_THAT(counts(TensorView::of(ids.data(), {2, 3, 1}), 2), ElementsAre(1, 2));
}

TEST(CountExpertTokensTest, WrongArgumentsAreErrors) {
  const std::vector<std::int32_t> ids = {0, 5};
  const TensorView ids_view = TensorView::of(ids.data(), {2});
  std::vector<std::int32_t> out(2, 7);
  const TensorView out_view = TensorView::of(out.data(), {2});
  expect_invalid("topk_ids[1, 0] is 5, but expert_map has 2 entries",
                 [&] { count_expert_num_tokens(ids_view, out_view, ids_view); });
  EXPECT_THAT(out, ElementsAre(7, 7));
  const TensorView hostile(out.data(), DType::kI32, {std::int64_t{1} << 40});
  expect_invalid("num_local_experts is 1099511627776",
                 [&] { count_expert_num_tokens(ids_view, hostile); });
  const TensorView strided(ids.data(), DType::kI32, {1}, {-4});
  count_expert_num_tokens(strided, out_view);  // the stride of a single element is ignored
  EXPECT_THAT(out, ElementsAre(1, 0));
  const std::vector<float> floats(2);
  expect_invalid("expert_num_tokens is f32 [2]",
                 [&] { count_expert_num_tokens(ids_view, TensorView::of(floats.data(), {2})); });
}

TEST(ApplyExpertMapTest, NegativeIdsStay) {
  std::vector<std::int64_t> ids = {0, -1, 3, -7, 2};
  const std::vector<std::int32_t> map = {-1, -1, 0, 1};
  const TensorView both = TensorView::of(ids.data(), {5});
  apply_expert_map(both, TensorView::of(map.data(), {4}), both);
  EXPECT_THAT(ids, ElementsAre(-1, -1, 1, -7, 0));
  ids[0] = 4;
  expect_invalid("topk_ids[0, 0] is 4, but expert_map has 4 entries",
                 [&] { apply_expert_map(both, TensorView::of(map.data(), {4}), both); });
  expect_invalid("expert_map is absent", [&] { apply_expert_map(both, {}, both); });
}

TEST(AlignedSizeTest, KnownAnswers) {
  const std::vector<std::int32_t> known = {0, 1, 128, 129};
  const TensorView tokens = TensorView::of(known.data(), {4});
  EXPECT_EQ(expert_num_tokens_round_up_and_sum(tokens), 0 + 128 + 128 + 256);
  EXPECT_EQ(expert_num_tokens_round_up_and_sum(tokens, 10), 0 + 10 + 130 + 130);
  EXPECT_EQ(compute_aligned_m(129, 2, 4, 128, tokens), 512);
  // Unknown counts: up(258 + min(258, 4) * 127, 128); few ids reach few experts.
  EXPECT_EQ(compute_aligned_m(129, 2, 4), 768);  // 766, rounded up
  EXPECT_EQ(compute_aligned_m(1, 2, 256), 256);
  EXPECT_EQ(compute_aligned_m(0, 8, 256), 0);
  EXPECT_EQ(deep_gemm_block_shape(), (BlockShape{128, 128}));
}

TEST(AlignedSizeTest, HostileSizesAreErrors) {
  const std::vector<std::int32_t> negative = {1, -1};
  const TensorView tokens = TensorView::of(negative.data(), {2});
  expect_invalid("a count is -1", [&] { (void)expert_num_tokens_round_up_and_sum(tokens); });
  expect_invalid("alignment is 0", [&] { (void)expert_num_tokens_round_up_and_sum(tokens, 0); });
  expect_invalid("alignment is -128", [] { (void)compute_aligned_m(1, 1, 1, -128); });
  expect_invalid("none may be negative", [] { (void)compute_aligned_m(-1, 1, 1); });
  expect_invalid("overflows", [] { (void)compute_aligned_m(kHuge, 2, 1); });
  expect_invalid("overflows", [] { (void)compute_aligned_m(kHuge, 1, 1); });
  expect_invalid("overflows", [] { (void)compute_aligned_m(4, 1, 4, kHuge); });
  expect_invalid("deep_gemm_block_shape: alignment is 0", [] { (void)deep_gemm_block_shape(0); });
}

TEST(PermutePlanTest, WrongArgumentsAreErrors) {
  const auto plan = [](const TensorView& ids, std::int32_t num_local,
                       const PermuteOptions& options = {}, std::int64_t max_rows = -1) {
    return [=] { (void)plan_permute(ids, num_local, options, max_rows); };
  };
  const TensorView ids = view(kIds);
  expect_invalid("topk_ids[0, 1] is 2, which is local expert 2", plan(ids, 2));
  expect_invalid("num_local_experts is -1", plan(ids, -1));
  expect_invalid("num_local_experts is 2147483647, must be from 0 to 65535",
                 plan(ids, std::numeric_limits<std::int32_t>::max()));
  expect_invalid("alignment is 0", plan(ids, 3, {.alignment = 0}));
  expect_invalid("overflows", plan(ids, 3, {.alignment = kHuge}));
  expect_invalid("32-bit indices", plan(ids, 3, {.alignment = 1 << 30}));
  expect_error(Errc::kWorkspaceTooSmall, "has 11 rows, needs 12",
               plan(ids, 3, {.alignment = 4}, 11));
  expect_invalid("topk_ids is absent", plan({}, 3));

  const std::vector<float> floats(8);
  expect_invalid("must be i32 or i64 [T, K]", plan(TensorView::of(floats.data(), {4, 2}), 3));
  const std::vector<std::int32_t> map = {0, 1};
  expect_invalid("topk_ids[0, 1] is 2, but expert_map has 2 entries",
                 plan(ids, 3, {.expert_map = TensorView::of(map.data(), {2})}));
  const std::vector<std::int32_t> wrong = {2, 0, 4};
  expect_invalid("expert_num_tokens[2] is 4, but topk_ids name this expert 5",
                 plan(ids, 3, {.expert_num_tokens = TensorView::of(wrong.data(), {3})}));
}

}  // namespace
}  // namespace switchyard
