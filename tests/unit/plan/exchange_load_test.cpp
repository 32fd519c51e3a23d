// SPDX-License-Identifier: Apache-2.0

#include "plan/exchange_load.h"

#include <gmock/gmock.h>

#include "switchyard/layout.h"

#include "core/random.h"
#include "plan/host_crossings.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

constexpr auto kPerExpert = static_cast<std::size_t>(Reduce::kPerExpert);
constexpr auto kPerRank = static_cast<std::size_t>(Reduce::kPerRank);
constexpr auto kPerHost = static_cast<std::size_t>(Reduce::kPerHost);

// Two experts per rank: 0 and 1 on rank 0, ..., 6 and 7 on rank 3.
constexpr ExpertOwnership kExperts{8, 4};

std::vector<RankLoad> count(int source, const std::vector<std::int32_t>& ids, std::int32_t num_topk,
                            const std::vector<int>& hosts) {
  std::vector<RankLoad> loads(4);
  add_load(source, ids, num_topk, kExperts, HostMap(hosts), loads);
  return loads;
}

TEST(ExchangeLoadTest, InsideOneHostATokenGoesOnceToEachRank) {
  // Experts 0 and 1 are the source's, 2 and 3 of rank 1, 6 of rank 3.
  const std::vector<RankLoad> loads = count(0, {0, 2, 3, 6}, 4, {0, 0, 0, 0});
  EXPECT_EQ(loads[0].tokens, 1);
  EXPECT_EQ(loads[0].leaving, 1);
  EXPECT_EQ(loads[0].arrivals, 1);
  EXPECT_EQ(loads[1].arrivals, 1);
  EXPECT_EQ(loads[1].placed, 2);
  EXPECT_EQ(loads[0].dispatch, (LinkRows{2, 0, 0, 0}));
  EXPECT_EQ(loads[1].dispatch, (LinkRows{0, 1, 0, 0}));
  EXPECT_EQ(loads[2].dispatch, LinkRows{});
  EXPECT_EQ(loads[1].combine[kPerRank], (LinkRows{1, 0, 0, 0}));
  EXPECT_EQ(loads[1].combine[kPerExpert], (LinkRows{2, 0, 0, 0}));
  EXPECT_EQ(loads[0].combine[kPerExpert], (LinkRows{0, 3, 0, 0}));
  EXPECT_EQ(loads[0].partials[kPerRank], 3);
  EXPECT_EQ(loads[0].partials[kPerExpert], 4);
}

// Ranks 0 and 1 on one host, 2 and 3 on the other. Rank 3 passes on what rank 1 sends there.
TEST(ExchangeLoadTest, BetweenHostsATokenCrossesOnceAndIsPassedOn) {
  const std::vector<RankLoad> loads = count(1, {4, 6, 7, 2}, 4, {0, 0, 1, 1});
  EXPECT_EQ(loads[1].dispatch, (LinkRows{0, 0, 1, 0}));
  EXPECT_EQ(loads[3].dispatch, (LinkRows{1, 0, 0, 1}));
  EXPECT_EQ(loads[2].dispatch, (LinkRows{0, 1, 0, 0}));
  EXPECT_EQ(loads[3].passed_on, 1);
  // Rank 2 returns one row to rank 3, which returns its own and that one, or their sum.
  EXPECT_EQ(loads[2].combine[kPerRank], (LinkRows{1, 0, 0, 0}));
  EXPECT_EQ(loads[3].combine[kPerRank], (LinkRows{0, 1, 2, 0}));
  EXPECT_EQ(loads[3].combine[kPerExpert], (LinkRows{0, 1, 3, 0}));
  EXPECT_EQ(loads[3].combine[kPerHost], (LinkRows{0, 1, 1, 0}));
  EXPECT_EQ(loads[1].combine[kPerHost], (LinkRows{0, 0, 0, 1}));
  EXPECT_EQ(loads[1].partials[kPerHost], 2);  // its own, and the other host's sum
  EXPECT_EQ(loads[1].partials[kPerRank], 3);
}

TEST(ExchangeLoadTest, TokensWithoutExpertsGoNowhere) {
  const std::vector<RankLoad> loads = count(2, {-1, -1, 4, -1}, 2, {0, 0, 1, 1});
  EXPECT_EQ(loads[2].tokens, 1);
  EXPECT_EQ(loads[2].leaving, 0);
  EXPECT_EQ(loads[2].arrivals, 1);
  EXPECT_EQ(loads[2].dispatch, LinkRows{});
}

// What leaves arrives, and crossings are those that count_host_crossings finds.
TEST(ExchangeLoadTest, SumsAgreeOnHostsOfAnySize) {
  constexpr int kTopk = 3;
  constexpr std::int64_t kTokens = 50;
  const std::vector<int> hosts{0, 0, 0, 7};
  const HostMap map(hosts);
  std::vector<RankLoad> loads(4);
  std::int64_t crossings = 0;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < kTokens * kTopk; ++i) {
      const std::uint64_t bits = random_bits(static_cast<std::uint64_t>(rank), i);
      ids.push_back(static_cast<std::int32_t>(bits % 9) - 1);
    }
    add_load(rank, ids, kTopk, kExperts, map, loads);
    crossings += count_host_crossings(TensorView::of(ids.data(), {kTokens, kTopk}), kExperts,
                                      {0, 0, 0, 7}, rank);
  }
  LinkRows dispatch;
  std::int64_t placed = 0;
  std::int64_t summed = 0;
  for (const RankLoad& load : loads) {
    dispatch.inside_out += load.dispatch.inside_out;
    dispatch.inside_in += load.dispatch.inside_in;
    dispatch.across_out += load.dispatch.across_out;
    dispatch.across_in += load.dispatch.across_in;
    placed += load.placed;
    summed += load.partials[kPerExpert];
  }
  EXPECT_GT(dispatch.across_out, 0);
  EXPECT_EQ(dispatch.across_out, crossings);
  EXPECT_EQ(dispatch.across_out, dispatch.across_in);
  EXPECT_EQ(dispatch.inside_out, dispatch.inside_in);
  EXPECT_EQ(placed, summed);
}

TEST(ExchangeLoadTest, AnIdOutsideOfTheGroupIsNamed) {
  expect_invalid("an id of rank 1 is 8, must be from 0 to 7", [] {
    (void)count(1, {0, 8}, 2, {0, 0, 0, 0});
  });
}

}  // namespace
}  // namespace switchyard
