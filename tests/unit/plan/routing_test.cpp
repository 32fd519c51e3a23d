// SPDX-License-Identifier: Apache-2.0
//
// Owners of experts, choices that are dropped, and the order of ranks in a send plan. Where rows go
// in each layout is compared with the oracle in instruments/conformance.

#include "plan/routing.h"

#include <gmock/gmock.h>

#include "core/bytes.h"
#include "core/random.h"
#include "plan/overflow.h"
#include "support/errors.h"

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

// 6 experts: none | 0 1 2 3 | none | 4 5
TEST(ExpertOwnershipTest, RanksMayHoldAnyNumberOfExpertsOrNone) {
  const std::vector<int> first{0, 0, 4, 4, 6};
  const ExpertOwnership ownership{6, 4, false, first.data()};
  std::vector<int> owners;
  std::vector<int> locals;
  for (int e = 0; e < 6; ++e) {
    owners.push_back(ownership.owner(e));
    locals.push_back(ownership.local_index(e));
  }
  EXPECT_THAT(owners, ElementsAre(1, 1, 1, 1, 3, 3));
  EXPECT_THAT(locals, ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT((std::vector<int>{ownership.count(0), ownership.count(1), ownership.count(2),
                                ownership.count(3)}),
              ElementsAre(0, 4, 0, 2));
  EXPECT_EQ(ownership.max_count(), 4);
  EXPECT_EQ(ownership.largest_rank(), 1);
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
};

// Of rank 0's tokens only token 0 names an expert of rank 0, of rank 1's none.
TEST_F(ReceivePlanTest, ListsOfTokensGiveThePlanOfAllIds) {
  const std::vector<std::int32_t> tokens{0};
  const std::vector<std::uint32_t> counts0{1, 0, 2, 1};
  const std::vector<std::uint32_t> counts1{0, 0, 1, 0};
  std::vector<RankRouting> lists{{2, ids0.data(), nullptr, true, 1, tokens.data(), counts0.data()},
                                 {1, nullptr, nullptr, true, 0, nullptr, counts1.data()}};
  const ReceiveShape shape{Layout::kExpanded, 1, 0, 0};
  const ReceivePlan all = build(shape, 0);
  ReceivePlan plan;
  plan.build(0, ownership, 2, shape, lists);
  EXPECT_EQ(plan.expert_load, all.expert_load);
  EXPECT_EQ(plan.num_rows, all.num_rows);
  EXPECT_EQ(plan.first_arrival, all.first_arrival);
  ASSERT_EQ(plan.arrivals.size(), 1u);
  EXPECT_EQ(plan.arrivals[0].token, 0);
  EXPECT_EQ(plan.placements[0].k, 1);
  EXPECT_EQ(lists[0].entry(0, 0), 0);
  EXPECT_EQ(table[0].entry(0, 1), 1);
}

TEST_F(ReceivePlanTest, ListsThatCannotBeTrueAreRefused) {
  const ReceiveShape shape{Layout::kExpanded, 1, 0, 0};
  const auto refused = [&](std::vector<std::int32_t> tokens, std::vector<std::uint32_t> counts,
                           const std::string& phrase) {
    const auto num_listed = static_cast<std::int64_t>(tokens.size());
    const std::vector<RankRouting> lists{
        {2, ids0.data(), nullptr, true, num_listed, tokens.data(), counts.data()},
        {1, ids1.data(), nullptr}};
    ReceivePlan plan;
    test::expect_error(Errc::kInternal, phrase, [&] { plan.build(1, ownership, 2, shape, lists); });
  };
  refused({0, 2}, {1, 0, 2, 1}, "rank 0 lists token 2 of 2");
  refused({1, 0}, {1, 0, 2, 1}, "rank 0 lists token 0 of 2 after 1");
  refused({0, 1}, {1, 0, 1, 1}, "2 rows for expert 2 are announced, ids name 3");
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

}  // namespace
}  // namespace switchyard
