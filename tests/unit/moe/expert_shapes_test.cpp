// SPDX-License-Identifier: Apache-2.0

#include "switchyard/expert_shapes.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "expert_problem.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

ExpertRanges ranges_of(const std::vector<std::int32_t>& m_indices, std::int32_t num_experts,
                       std::int64_t tile_rows) {
  return expert_ranges_from_m_indices(
      TensorView::of(m_indices.data(), {static_cast<std::int64_t>(m_indices.size())}), num_experts,
      tile_rows);
}

TEST(ExpertRangesTest, CountsOfTheMaskedLayout) {
  const std::int32_t counts[] = {3, 0, 8};
  const ExpertRanges ranges = expert_ranges_from_counts(counts, 8);
  EXPECT_THAT(ranges.first_row, ElementsAre(0, 8, 16));
  EXPECT_THAT(ranges.num_rows, ElementsAre(3, 0, 8));
  test::expect_invalid("expert 2 has 8 rows, want from 0 to the capacity, 7",
                       [&] { expert_ranges_from_counts(counts, 7); });
}

// Tiles of 4: expert 2 has a full tile and 2 rows; a skipped tile and expert 0 follow.
TEST(ExpertRangesTest, MIndicesOfTheContiguousLayout) {
  const ExpertRanges ranges =
      ranges_of({2, 2, 2, 2, 2, 2, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1}, 3, 4);
  EXPECT_THAT(ranges.first_row, ElementsAre(12, 0, 0));
  EXPECT_THAT(ranges.num_rows, ElementsAre(1, 0, 6));
  // Padding may also name its owner, and the last tile may be partial.
  EXPECT_THAT(ranges_of({1, 1, 1, 1, 0, 0}, 2, 4).num_rows, ElementsAre(2, 4));
  EXPECT_THAT(ranges_of({}, 2, 128).num_rows, ElementsAre(0, 0));
}

TEST(ExpertRangesTest, BadMIndicesAreNamed) {
  const auto expect_refusal = [](const std::vector<std::int32_t>& m_indices, const char* phrase) {
    SCOPED_TRACE(phrase);
    test::expect_invalid(phrase, [&] { ranges_of(m_indices, 2, 4); });
  };
  expect_refusal({0, 0, 2, 0}, "m_indices[2] is 2, want below 2 experts");
  expect_refusal({0, 0, 1, 1}, "m_indices[2] is 1, but the tile from row 0 belongs to expert 0");
  expect_refusal({0, -1, 0, 0}, "m_indices[2] is 0 after padding");
  expect_refusal({0, 0, 0, 0, 1, 1, 1, 1, 0}, "expert 0 has rows 0 to 3 and goes on at row 8");
  expect_refusal({0, 0, 0, -1, 0}, "expert 0 has rows 0 to 2 and goes on at row 4");
  const std::int64_t wide[] = {0};
  test::expect_invalid("m_indices is i64 [1], want i32 [M]",
                       [&] { expert_ranges_from_m_indices(TensorView::of(wide, {1}), 2); });
}

// The same rows through exact experts, given by counts and by m_indices.
TEST(ExpertRangesTest, ContiguousTilesComputeWhatTheirRangesDo) {
  test::Problem problem(24, 10, {126, 14, 126});  // two rows of padding each, so tiles of 16
  std::vector<std::int32_t> m_indices(static_cast<std::size_t>(problem.total_rows), -1);
  for (std::size_t e = 0; e < 3; ++e) {
    std::fill_n(m_indices.begin() + problem.first_row[e], problem.num_rows[e],
                static_cast<std::int32_t>(e));
  }
  const ExpertRanges ranges = ranges_of(m_indices, 3, 16);
  EXPECT_EQ(ranges.first_row, problem.first_row);
  EXPECT_EQ(ranges.num_rows, problem.num_rows);
  const auto expected = test::oracle_experts(problem);
  problem.first_row = ranges.first_row;
  problem.num_rows = ranges.num_rows;
  EXPECT_EQ(test::run_experts(*make_exact_experts(problem.weights()), problem), expected);
}

TEST(MoeProblemSizeTest, ReadsTheSizesOfBothFormats) {
  const TensorView w1(nullptr, DType::kBF16, {4, 256, 64});
  const TensorView w2(nullptr, DType::kBF16, {4, 64, 128});
  const TensorView ids(nullptr, DType::kI32, {10, 6});
  const MoeProblemSize flat{4, 10, 256, 64, 6};
  EXPECT_EQ(moe_problem_size(TensorView(nullptr, DType::kBF16, {10, 64}), w1, w2, ids), flat);
  const MoeProblemSize batched{4, 77, 256, 64, 6};
  EXPECT_EQ(moe_problem_size(TensorView(nullptr, DType::kBF16, {4, 77, 64}), w1, w2, ids), batched);
  const auto expect_refusal = [&](const TensorView& a1, const TensorView& second,
                                  const char* phrase) {
    SCOPED_TRACE(phrase);
    test::expect_invalid(phrase, [&] { moe_problem_size(a1, w1, second, ids); });
  };
  const TensorView good(nullptr, DType::kBF16, {10, 64});
  expect_refusal(TensorView(nullptr, DType::kBF16, {11, 64}), w2, "a1 is bf16 [11, 64], want [10");
  expect_refusal(TensorView(nullptr, DType::kBF16, {5, 77, 64}), w2, "or [4, M, H]");
  expect_refusal(TensorView(nullptr, DType::kBF16, {10, 32}), w2, "want hidden 32");
  expect_refusal({}, w2, "a1 is absent");
  expect_refusal(good, TensorView(nullptr, DType::kBF16, {4, 64, 100}), "want 256 inputs, or half");
  expect_refusal(good, TensorView(nullptr, DType::kBF16, {5, 64, 128}), "equal experts");
}

TEST(ExpertWorkspaceShapesTest, FollowTheTable) {
  ExpertWorkspaceSizes sizes;
  sizes.num_experts = 8;
  sizes.hidden = 100;
  sizes.outputs = 256;
  sizes.max_tokens = 16;
  sizes.num_dispatchers = 4;
  sizes.num_rows = 30;
  sizes.num_permuted_rows = 1024;
  const auto batched = expert_workspace_shapes(ExpertWorkspaceKind::kBatched, sizes);
  EXPECT_THAT(batched.workspace13, ElementsAre(8, 64, 256));
  EXPECT_THAT(batched.workspace2, ElementsAre(8, 64, 128));
  EXPECT_THAT(batched.output, ElementsAre(8, 64, 100));
  EXPECT_EQ(batched.shared_elements(), 8 * 64 * 256);
  const auto naive = expert_workspace_shapes(ExpertWorkspaceKind::kNaiveBatched, sizes);
  EXPECT_THAT(naive.workspace13, ElementsAre(8, 64, 100));
  EXPECT_THAT(naive.workspace2, ElementsAre(64, 256));
  EXPECT_EQ(naive.output, naive.workspace13);
  const auto contiguous = expert_workspace_shapes(ExpertWorkspaceKind::kContiguous, sizes);
  EXPECT_THAT(contiguous.workspace13, ElementsAre(1024, 128));
  EXPECT_THAT(contiguous.workspace2, ElementsAre(1024, 256));
  EXPECT_THAT(contiguous.output, ElementsAre(30, 100));
  sizes.is_gated = false;
  EXPECT_THAT(expert_workspace_shapes(ExpertWorkspaceKind::kBatched, sizes).workspace2,
              ElementsAre(8, 64, 256));
  EXPECT_THAT(expert_workspace_shapes(ExpertWorkspaceKind::kContiguous, sizes).workspace13,
              ElementsAre(1024, 256));
}

TEST(ExpertWorkspaceShapesTest, HostileSizesAreRefused) {
  const auto expect_refusal = [](const ExpertWorkspaceSizes& sizes, const char* phrase) {
    SCOPED_TRACE(phrase);
    test::expect_invalid(phrase,
                         [&] { expert_workspace_shapes(ExpertWorkspaceKind::kBatched, sizes); });
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  expect_refusal({.hidden = -1}, "hidden is -1, want at least 0");
  expect_refusal({.outputs = 7}, "outputs is 7, want an even number");
  expect_refusal({.max_tokens = kHuge, .num_dispatchers = 2}, "overflows");
  expect_refusal(
      {.num_experts = 1024, .hidden = 7168, .max_tokens = 1LL << 31, .num_dispatchers = 1024},
      "overflows");
}

}  // namespace
}  // namespace switchyard
