// SPDX-License-Identifier: Apache-2.0

#include "measure/routing_pattern.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>

#include "io/safetensors.h"
#include "plan/host_crossings.h"
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
  expect_distinct(ids_of("limited:8:4", 256, 8, 50), 256, 8);
  expect_distinct(ids_of("limited:4:2", 16, 8, 50), 16, 8);
}

// Eight choices among four groups of 32 leave out a group now and then, and all groups are alike.
TEST(RoutingPatternTest, LimitedChoicesStayInFewGroups) {
  const auto ids = ids_of("limited:8:4", 256, 8, 4000);
  std::size_t most = 0;
  for (std::size_t at = 0; at < ids.size(); at += 8) {
    std::set<std::int32_t> groups;
    for (std::size_t k = 0; k < 8; ++k) groups.insert(ids[at + k] / 32);
    most = std::max(most, groups.size());
  }
  EXPECT_EQ(most, 4u);
  std::vector<double> group_share(8, 0.0);
  const std::vector<double> share = shares(ids, 256);
  for (std::size_t e = 0; e < 256; ++e) group_share[e / 32] += share[e];
  for (const double each : group_share) EXPECT_NEAR(each, 0.125, 0.01);
  EXPECT_EQ(RoutingPattern::parse("limited:8:4", 256, 8).num_groups(), 8);
  for (const char* text : {"limited:", "limited:8", "limited:7:2", "limited:8:0", "limited:8:9",
                           "limited:256:7", "limited:8:4x"}) {
    test::expect_invalid("must be limited:G:M with a divisor G of 256 experts",
                         [&] { (void)ids_of(text, 256, 8, 1); });
  }
}

TEST(RoutingPatternTest, UniformChoicesAndSlotsAreAlike) {
  const auto ids = ids_of("uniform", 10, 4, 20'000);
  for (const double share : shares(ids, 10)) EXPECT_NEAR(share, 0.1, 0.003);
  std::vector<std::int32_t> first;
  for (std::size_t i = 0; i < ids.size(); i += 4) first.push_back(ids[i]);
  for (const double share : shares(first, 10)) EXPECT_NEAR(share, 0.1, 0.01);
}

double crossings_per_token(const std::string& text, int num_hosts) {
  constexpr std::int64_t kTokens = 20'000;
  const std::vector<std::int32_t> ids = ids_of(text, 256, 8, kTokens);
  const std::int64_t rows =
      count_host_crossings(TensorView::of(ids.data(), {kTokens, 8}), ExpertOwnership{256, 8},
                           even_host_map(8, num_hosts), 0);
  return static_cast<double>(rows) / kTokens;
}

// Other hosts times the chance that one has an expert of a token: 1 - C(256 - n, 8) / C(256, 8) for
// n experts on a host; limited, the mean of 1 - C(128 - 32 g, 8) / C(128, 8) over the g of its
// groups that are chosen.
TEST(RoutingPatternTest, LimitedRoutingCutsRowsBetweenHosts) {
  EXPECT_NEAR(crossings_per_token("uniform", 8), 4.633, 0.03);
  EXPECT_NEAR(crossings_per_token("limited:8:4", 8), 3.175, 0.03);
  EXPECT_NEAR(crossings_per_token("uniform", 4), 2.711, 0.02);
  EXPECT_NEAR(crossings_per_token("limited:8:4", 4), 2.196, 0.02);
  EXPECT_NEAR(crossings_per_token("uniform", 2), 0.997, 0.005);
  EXPECT_NEAR(crossings_per_token("limited:8:4", 2), 0.963, 0.005);
  EXPECT_EQ(crossings_per_token("uniform", 1), 0);
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
  test::expect_error(Errc::kMalformedFile, "must be i32 or i64 [N, 3]",
                     parse("trace:" + folder.file("t"), 9, 3));
  test::expect_invalid("number A from 0 to 10", parse("zipf:-1", 8, 2));
  test::expect_invalid("number A from 0 to 10", parse("zipf:nan", 8, 2));
  test::expect_invalid("uniform, zipf:A, hot, limited:G:M or trace", parse("cold", 8, 2));
  test::expect_invalid("3 choices among 2 experts", parse("uniform", 2, 3));
}

}  // namespace
}  // namespace switchyard::measure
