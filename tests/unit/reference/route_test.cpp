// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "reference/reference.h"
#include "support/errors.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

TEST(ReferenceOwnershipTest, FirstRanksTakeTheRemainder) {
  // 10 experts over 4 ranks: 3, 3, 2, 2.
  EXPECT_EQ(num_local_experts(10, 4, 1), 3);
  EXPECT_EQ(num_local_experts(10, 4, 2), 2);
  EXPECT_EQ(first_expert(10, 4, 2), 6);
  EXPECT_EQ(first_expert(10, 4, 3), 8);
  EXPECT_EQ(owner_of(10, 4, 5), 1);
  EXPECT_EQ(owner_of(10, 4, 6), 2);
  EXPECT_EQ(owner_of(10, 4, 9), 3);
  // More ranks than experts: the last ranks hold none.
  EXPECT_EQ(num_local_experts(3, 5, 4), 0);
  EXPECT_EQ(owner_of(3, 5, 2), 2);
}

TEST(ReferenceRouterTest, LogitIsOneFusedChain) {
  // (1 + 2^-13) squared is 1 + 2^-12 + 2^-26; only a fused step keeps the last term for the
  // following subtraction.
  const float x = 1.0f + 0x1p-13f;
  const Table<float> hidden(1, 2, std::vector<float>{-(1.0f + 0x1p-12f), x});
  const Table<float> gate(1, 2, std::vector<float>{1.0f, x});
  EXPECT_EQ(router_logits(hidden, gate)(0, 0), 0x1p-26f);
}

TEST(ReferenceRouterTest, TiesGoToTheLowerIdAndNanRanksLast) {
  RouterConfig config;
  config.num_experts = 5;
  config.num_topk = 5;
  config.scoring = Scoring::kSigmoid;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Table<float> logits(1, 5, std::vector<float>{nan, 0.0f, 2.0f, 0.0f, 2.0f});
  const Routing routing = select_experts(config, logits, {});
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(2, 4, 1, 3, 0));
  EXPECT_EQ(routing.topk_weights(0, 2), 0.5f);
  EXPECT_TRUE(std::isnan(routing.topk_weights(0, 4)));
}

TEST(ReferenceRouterTest, SoftmaxOfEqualLogitsIsUniform) {
  RouterConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  const Table<float> logits(1, 4, 3.0f);
  EXPECT_THAT(select_experts(config, logits, {}).topk_weights.data, ElementsAre(0.25f, 0.25f));
  config.norm_topk_prob = true;
  config.routed_scaling_factor = 2.5f;
  EXPECT_THAT(select_experts(config, logits, {}).topk_weights.data, ElementsAre(1.25f, 1.25f));
}

TEST(ReferenceRouterTest, LostGroupsCannotWin) {
  // Groups {0, 1} and {2, 3}. By best expert the first wins (bias 3), by the sum of two the second
  // (1.5 + 1.5 against 3 - 3).
  RouterConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 2;
  config.topk_groups = 1;
  const Table<float> logits(1, 4, 0.0f);
  const std::vector<float> bias{2.5f, -3.5f, 1.0f, 1.0f};
  config.group_selection = GroupSelection::kMax;
  EXPECT_THAT(select_experts(config, logits, bias).topk_ids.data, ElementsAre(0, 1));
  config.group_selection = GroupSelection::kTop2Sum;
  EXPECT_THAT(select_experts(config, logits, bias).topk_ids.data, ElementsAre(2, 3));
  // Weights come from scores without bias.
  EXPECT_THAT(select_experts(config, logits, bias).topk_weights.data, ElementsAre(0.5f, 0.5f));
}

TEST(ReferenceBatchTest, RefusesIdsPastTheEndAndUnequalShapes) {
  Batch batch{4, {{Table<float>(1, 2), Table<std::int32_t>(1, 1, 4), Table<float>(1, 1)}}};
  test::expect_invalid("topk_ids has 4, but experts are 0 to 3", [&] { check_batch(batch); });
  batch.ranks[0].topk_ids(0, 0) = 3;
  EXPECT_NO_THROW(check_batch(batch));
  batch.ranks.push_back({Table<float>(0, 3), Table<std::int32_t>(0, 1), Table<float>(0, 1)});
  EXPECT_THROW(check_batch(batch), Error);
}

}  // namespace
}  // namespace switchyard::reference
