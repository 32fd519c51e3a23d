// SPDX-License-Identifier: Apache-2.0

#include "plan/routing.h"

#include <algorithm>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/bytes.h"
#include "core/random.h"
#include "plan/overflow.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

TEST(ExpertOwnershipTest, SplitsUnevenlyWithTheFirstRanksLarger) {
  // 9 experts on 4 ranks: 0 1 2 | 3 4 | 5 6 | 7 8
  constexpr ExpertOwnership kOwnership{9, 4};
  EXPECT_THAT((std::vector<int>{kOwnership.count(0), kOwnership.count(1), kOwnership.count(3)}),
              ElementsAre(3, 2, 2));
  EXPECT_EQ(kOwnership.first(1), 3);
  EXPECT_EQ(kOwnership.owner(2), 0);
  EXPECT_EQ(kOwnership.owner(3), 1);
  EXPECT_EQ(kOwnership.local_index(8), 1);
}

TEST(ExpertOwnershipTest, EveryExpertHasOneOwner) {
  for (const int num_experts : {1, 2, 7, 32, 61, 65535}) {
    for (const int num_ranks : {1, 2, 3, 7, 8, 64}) {
      const ExpertOwnership ownership{num_experts, num_ranks};
      int next = 0;
      for (int r = 0; r < num_ranks; ++r) {
        ASSERT_EQ(ownership.first(r), next);
        for (int i = 0; i < ownership.count(r); ++i) {
          ASSERT_EQ(ownership.owner(next), r);
          ASSERT_EQ(ownership.local_index(next), i);
          ++next;
        }
      }
      ASSERT_EQ(next, num_experts);
    }
  }
}

// Two ranks, two experts each (0 1 | 2 3). Rank 0: tokens {2,0} {3,2}; rank 1: token {2,-1}.
class ReceivePlanTest : public ::testing::Test {
 protected:
  const std::vector<std::uint16_t> ids0{2, 0, 3, 2};
  const std::vector<std::uint16_t> ids1{2, kNoExpert};
  const std::vector<float> weights0{0.5f, 0.25f, 0.75f, 0.125f};
  const std::vector<float> weights1{1.5f, 0.0f};
  const ExpertOwnership ownership{4, 2};
  const std::vector<RankRouting> table{{2, ids0.data(), weights0.data()},
                                       {1, ids1.data(), weights1.data()}};

  ReceivePlan build(const ReceiveShape& shape, int rank = 1) const {
    ReceivePlan plan;
    plan.build(rank, ownership, 2, shape, table);
    return plan;
  }
  static std::vector<std::int64_t> rows(const ReceivePlan& plan) {
    std::vector<std::int64_t> result;
    for (const Placement& p : plan.placements) result.push_back(p.row);
    return result;
  }
};

TEST_F(ReceivePlanTest, ExpandedOrdersRowsByExpertSourceToken) {
  const ReceivePlan plan = build({Layout::kExpanded, 4, 0, 0});
  // Expert 2: (0, token 0), (0, token 1), (1, token 0) in rows 0 1 2; expert 3 starts at row 4.
  EXPECT_THAT(plan.num_rows, ElementsAre(3, 1));
  EXPECT_THAT(plan.first_row, ElementsAre(0, 4));
  EXPECT_EQ(plan.num_buffer_rows, 8);
  EXPECT_THAT(rows(plan), ElementsAre(0, 4, 1, 2));
  EXPECT_THAT(plan.expert_load, ElementsAre(1, 0, 3, 1));
  EXPECT_THAT(plan.first_arrival, ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.placements[2].k, 1);
}

TEST_F(ReceivePlanTest, BatchedStartsExpertsAtMultiplesOfTheCapacity) {
  const ReceivePlan plan = build({Layout::kBatched, 1, 10, 0});
  EXPECT_THAT(plan.first_row, ElementsAre(0, 10));
  EXPECT_THAT(rows(plan), ElementsAre(0, 10, 1, 2));
  EXPECT_EQ(plan.num_buffer_rows, 20);
}

TEST_F(ReceivePlanTest, CompactAndByRankPlaceATokenOnce) {
  const ReceivePlan compact = build({Layout::kCompact, 1, 0, 0});
  EXPECT_THAT(rows(compact), ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(compact.num_buffer_rows, 3);
  const ReceivePlan by_rank = build({Layout::kByRank, 1, 0, 5});
  EXPECT_THAT(rows(by_rank), ElementsAre(0, 1, 1, 5));
  EXPECT_EQ(by_rank.num_buffer_rows, 10);
  EXPECT_THAT(by_rank.num_rows, ElementsAre(3, 1));
}

TEST_F(ReceivePlanTest, AllGatherPlacesEveryToken) {
  const ReceivePlan plan = build({Layout::kAllGather, 1, 0, 5}, 0);
  ASSERT_EQ(plan.arrivals.size(), 3u);
  EXPECT_EQ(plan.num_buffer_rows, 3);
  EXPECT_EQ(plan.arrivals[1].count, 0);  // rank 0's token {3, 2} names no expert of rank 0
  EXPECT_EQ(plan.arrivals[2].row, 2);
  EXPECT_THAT(plan.num_rows, ElementsAre(1, 0));
}

TEST_F(ReceivePlanTest, WorstCaseRowsDoNotDependOnTheRouting) {
  EXPECT_EQ(build({Layout::kExpanded, 4, 0, 5, true}).num_buffer_rows, 2 * 5 * 2 + 2 * 3);
  EXPECT_EQ(build({Layout::kCompact, 1, 0, 5, true}).num_buffer_rows, 10);
}

// Expert 2 is chosen by (0, token 0) with 0.5, (0, token 1) with 0.125, (1, token 0) with 1.5.
TEST_F(ReceivePlanTest, OverflowDropsTheLowestWeights) {
  const ReceivePlan plan = build({Layout::kExpanded, 1, 0, 0});
  EXPECT_EQ(find_overflow(plan.expert_load, 3), -1);
  EXPECT_EQ(find_overflow(plan.expert_load, 2), 2);
  std::vector<RankRouting> kept = table;
  std::vector<std::vector<std::uint16_t>> ids;
  drop_overflow(2, 1, plan.expert_load, kept, ids);
  EXPECT_THAT(ids[0], ElementsAre(kNoExpert, 0, 3, kNoExpert));
  EXPECT_TRUE(ids[1].empty());
  EXPECT_EQ(kept[1].topk_ids, ids1.data());
}

TEST_F(ReceivePlanTest, OverflowTiesGoToTheEarlierToken) {
  std::vector<RankRouting> unweighted{{2, ids0.data(), nullptr}, {1, ids1.data(), nullptr}};
  const ReceivePlan plan = build({Layout::kExpanded, 1, 0, 0});
  std::vector<std::vector<std::uint16_t>> ids;
  drop_overflow(2, 2, plan.expert_load, unweighted, ids);
  EXPECT_TRUE(ids[0].empty());
  EXPECT_THAT(ids[1], ElementsAre(kNoExpert, kNoExpert));
}

TEST_F(ReceivePlanTest, SendPlanOrdersRanksByTheirHighestChoice) {
  SendPlan plan;
  plan.build(ownership, 2, Layout::kExpanded, table[0]);
  EXPECT_THAT(plan.num_tokens_to, ElementsAre(1, 2));
  ASSERT_EQ(plan.ranks_of(0).size(), 2u);
  EXPECT_EQ(plan.ranks_of(0)[0].rank, 1);  // expert 2 is choice 0
  EXPECT_EQ(plan.ranks_of(0)[1].rank, 0);  // expert 0 is choice 1
  ASSERT_EQ(plan.ranks_of(1).size(), 1u);
  EXPECT_EQ(plan.ranks_of(1)[0].highest_k, 1);
  plan.build(ownership, 2, Layout::kAllGather, table[0]);
  EXPECT_EQ(plan.ranks_of(0)[0].rank, 0);
  plan.build(ownership, 0, Layout::kAllGather, {2, nullptr, nullptr});
  EXPECT_THAT(plan.num_tokens_to, ElementsAre(2, 2));
}

// Every rank holds experts 0 to 3 and serves every token, also one that names none.
TEST_F(ReceivePlanTest, SlicedExpertsAreOnEveryRank) {
  const ExpertOwnership sliced{4, 2, true};
  EXPECT_EQ(sliced.first(1), 0);
  EXPECT_EQ(sliced.count(1), 4);
  ReceivePlan receive;
  ReceiveShape shape;
  shape.layout = Layout::kAllGather;
  receive.build(1, sliced, 2, shape, table);
  EXPECT_THAT(receive.num_rows, ElementsAre(1, 0, 3, 1));
  EXPECT_EQ(receive.num_buffer_rows, 3);
  const std::vector<std::uint16_t> none{kNoExpert, kNoExpert};
  SendPlan send;
  send.build(sliced, 2, Layout::kAllGather, {1, none.data(), nullptr});
  EXPECT_THAT(send.num_tokens_to, ElementsAre(1, 1));
  ASSERT_EQ(send.ranks_of(0).size(), 2u);
  EXPECT_EQ(send.ranks_of(0)[0].rank, 0);
  EXPECT_EQ(send.ranks_of(0)[1].rank, 1);
  EXPECT_EQ(send.ranks_of(0)[1].highest_k, -1);
}

// Random tables over odd sizes: rows are a permutation in the promised order, and all ranks
// together send what they receive.
TEST(RoutingPropertyTest, PlansAreConsistent) {
  std::uint64_t counter = 0;
  for (const int num_ranks : {1, 2, 3, 7}) {
    for (const int num_experts : {1, 5, 16}) {
      for (const int num_topk : {1, 2, 9}) {
        const ExpertOwnership ownership{num_experts, num_ranks};
        std::vector<std::vector<std::uint16_t>> ids(static_cast<std::size_t>(num_ranks));
        std::vector<RankRouting> table;
        for (auto& list : ids) {
          const auto tokens = static_cast<std::int64_t>(random_bits(1, counter++) % 12);
          for (std::int64_t i = 0; i < tokens * num_topk; ++i) {
            const std::uint64_t value =
                random_bits(2, counter++) % static_cast<std::uint64_t>(num_experts + 1);
            list.push_back(value == 0 ? kNoExpert : static_cast<std::uint16_t>(value - 1));
          }
          table.push_back({tokens, list.data(), nullptr});
        }
        std::size_t sent = 0;
        for (const RankRouting& own : table) {
          SendPlan plan;
          plan.build(ownership, num_topk, Layout::kExpanded, own);
          for (const std::int64_t tokens : plan.num_tokens_to) {
            sent += static_cast<std::size_t>(tokens);
          }
        }
        std::size_t arrived = 0;
        for (int rank = 0; rank < num_ranks; ++rank) {
          ReceivePlan plan;
          plan.build(rank, ownership, num_topk, {Layout::kExpanded, 3, 0, 0}, table);
          arrived += plan.arrivals.size();
          std::vector<std::tuple<std::int64_t, int, int, int, int>> order;
          for (const Arrival& a : plan.arrivals) {
            for (int i = 0; i < a.count; ++i) {
              const Placement& p = plan.placements[static_cast<std::size_t>(a.first + i)];
              order.emplace_back(p.row, p.expert, a.source, a.token, p.k);
            }
          }
          std::sort(order.begin(), order.end());
          // In row order, the keys (expert, source, token, k) ascend strictly.
          for (std::size_t i = 1; i < order.size(); ++i) {
            const auto key = [](const auto& x) {
              return std::tuple(std::get<1>(x), std::get<2>(x), std::get<3>(x), std::get<4>(x));
            };
            ASSERT_LT(key(order[i - 1]), key(order[i]));
            ASSERT_LT(std::get<0>(order[i - 1]), std::get<0>(order[i]));
          }
          const std::int64_t max_rows =
              max_buffer_rows(rank, ownership, num_topk, {Layout::kExpanded, 3, 0, 12});
          EXPECT_LE(align_up<std::int64_t>(plan.num_buffer_rows, 1), max_rows);
        }
        EXPECT_EQ(sent, arrived);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
