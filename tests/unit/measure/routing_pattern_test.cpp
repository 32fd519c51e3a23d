// SPDX-License-Identifier: Apache-2.0

#include "measure/routing_pattern.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "support/errors.h"
#include "support/temp_folder.h"

namespace switchyard::measure {
namespace {

using test::TempFolder;

std::vector<std::int32_t> ids_of(const std::string& text, int num_experts, int num_topk,
                                 std::int64_t num_tokens, std::int64_t iteration = 0,
                                 int rank = 0) {
  return RoutingPattern::parse(text, num_experts, num_topk).ids(1, iteration, rank, 2, num_tokens);
}

void expect_distinct(const std::vector<std::int32_t>& ids, int num_experts, int num_topk) {
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(num_topk)) {
    const auto* row = ids.data() + at;
    EXPECT_EQ(std::set<std::int32_t>(row, row + num_topk).size(),
              static_cast<std::size_t>(num_topk));
    EXPECT_TRUE(
        std::all_of(row, row + num_topk, [&](int id) { return id >= 0 && id < num_experts; }));
  }
}

std::vector<double> shares(const std::vector<std::int32_t>& ids, int num_experts) {
  std::vector<double> share(static_cast<std::size_t>(num_experts), 0.0);
  for (const std::int32_t id : ids) {
    share[static_cast<std::size_t>(id)] += 1.0 / static_cast<double>(ids.size());
  }
  return share;
}

TEST(RoutingPatternTest, ChoicesOfATokenAreDistinctExperts) {
  for (const char* text : {"uniform", "zipf:1.5"}) {
    for (const auto& [experts, topk] : {std::pair{8, 1}, {8, 8}, {7, 3}, {256, 8}}) {
      expect_distinct(ids_of(text, experts, topk, 50), experts, topk);
    }
  }
}

TEST(RoutingPatternTest, UniformChoicesAndSlotsAreAlike) {
  const auto ids = ids_of("uniform", 10, 4, 20'000);
  for (const double share : shares(ids, 10)) EXPECT_NEAR(share, 0.1, 0.003);
  std::vector<std::int32_t> first;
  for (std::size_t i = 0; i < ids.size(); i += 4) first.push_back(ids[i]);
  for (const double share : shares(first, 10)) EXPECT_NEAR(share, 0.1, 0.01);
}

TEST(RoutingPatternTest, ZipfFollowsItsLaw) {
  std::vector<double> share = shares(ids_of("zipf:1", 5, 1, 40'000), 5);
  std::sort(share.rbegin(), share.rend());
  const double sum = 1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4 + 1.0 / 5;
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(share[i], 1 / (sum * static_cast<double>(i + 1)), 0.01);
  }
  for (const double even : shares(ids_of("zipf:0", 5, 2, 20'000), 5)) EXPECT_NEAR(even, 0.2, 0.01);
}

TEST(RoutingPatternTest, HotSendsEveryTokenToExpertZero) {
  EXPECT_THAT(ids_of("hot", 8, 3, 2), ::testing::ElementsAre(0, -1, -1, 0, -1, -1));
}

TEST(RoutingPatternTest, IterationsAndRanksDifferAndRepeatThemselves) {
  const auto base = ids_of("uniform", 64, 4, 10, 5, 0);
  EXPECT_EQ(base, ids_of("uniform", 64, 4, 10, 5, 0));
  EXPECT_NE(base, ids_of("uniform", 64, 4, 10, 6, 0));
  EXPECT_NE(base, ids_of("uniform", 64, 4, 10, 5, 1));
  // A token's ids do not depend on how many tokens follow.
  const auto more = ids_of("uniform", 64, 4, 20, 5, 0);
  EXPECT_TRUE(std::equal(base.begin(), base.end(), more.begin()));
}

TEST(RoutingPatternTest, TraceTakesLayersByTurnsAndRowsInARow) {
  const TempFolder folder;
  const std::vector<std::int32_t> a{0, 1, 2, 3, 4, 5};  // 3 rows
  const std::vector<std::int64_t> b{7, -1};             // 1 row
  const NamedTensor tensors[] = {{"layers.0.topk_ids", TensorView::of(a.data(), {3, 2})},
                                 {"layers.1.topk_ids", TensorView::of(b.data(), {1, 2})}};
  write_safetensors(folder.file("t"), tensors);
  const auto pattern = RoutingPattern::parse("trace:" + folder.file("t"), 8, 2);
  using ::testing::ElementsAre;
  EXPECT_THAT(pattern.ids(1, 0, 0, 2, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(pattern.ids(1, 0, 1, 2, 2), ElementsAre(4, 5, 0, 1));
  EXPECT_THAT(pattern.ids(1, 1, 1, 2, 2), ElementsAre(7, -1, 7, -1));
  EXPECT_THAT(pattern.ids(1, 2, 0, 2, 2), ElementsAre(2, 3, 4, 5));
}

TEST(RoutingPatternTest, RefusalsSayWhatIsWanted) {
  const TempFolder folder;
  const std::vector<std::int32_t> ids{0, 8};
  const NamedTensor tensors[] = {{"topk_ids", TensorView::of(ids.data(), {1, 2})}};
  write_safetensors(folder.file("t"), tensors);
  const auto parse = [](const std::string& text, int experts, int topk) {
    return [=] { RoutingPattern::parse(text, experts, topk); };
  };
  test::expect_error(Errc::kMalformedFile,
                     "topk_ids[0, 1] is 8, but the workload has experts 0 to 7",
                     parse("trace:" + folder.file("t"), 8, 2));
  test::expect_error(Errc::kMalformedFile, "want i32 or i64 [N, 3]",
                     parse("trace:" + folder.file("t"), 9, 3));
  test::expect_invalid("number A from 0 to 10", parse("zipf:-1", 8, 2));
  test::expect_invalid("number A from 0 to 10", parse("zipf:nan", 8, 2));
  test::expect_invalid("uniform, zipf:A, hot or trace", parse("cold", 8, 2));
  test::expect_invalid("3 choices among 2 experts", parse("uniform", 2, 3));
}

}  // namespace
}  // namespace switchyard::measure
