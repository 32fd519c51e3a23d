// SPDX-License-Identifier: Apache-2.0

#include "switchyard/router.h"

#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "conformance/random_batch.h"
#include "reference/reference.h"
#include "unit/moe/run_router.h"

namespace switchyard {
namespace {

using reference::Routing;
using reference::Table;
using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Table<float> one_token(std::vector<float> logits) {
  const auto num_experts = static_cast<std::int64_t>(logits.size());
  return Table<float>(1, num_experts, std::move(logits));
}

TEST(RouterTest, SoftmaxByHand) {
  // Logits 0, ln 2, ln 4: scores 1/7, 2/7, 4/7.
  const Table<float> logits = one_token({0.0f, 0.6931472f, 1.3862944f});
  RouterConfig config = config_of(3, 2, Scoring::kSoftmax);
  Routing routing = run_router(config, logits, {});
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(2, 1));
  EXPECT_NEAR(routing.topk_weights(0, 0), 4.0 / 7, 1e-6);
  EXPECT_NEAR(routing.topk_weights(0, 1), 2.0 / 7, 1e-6);
  config.norm_topk_prob = true;
  config.routed_scaling_factor = 3.0f;
  routing = run_router(config, logits, {});
  EXPECT_NEAR(routing.topk_weights(0, 0), 2.0, 1e-6);
  EXPECT_NEAR(routing.topk_weights(0, 1), 1.0, 1e-6);
}

TEST(RouterTest, BiasChangesTheChoiceButNotTheWeights) {
  const Table<float> logits = one_token({2.0f, 0.0f, -2.0f});
  const Routing routing = run_router(config_of(3, 2, Scoring::kSigmoid), logits, {0, 0, 5});
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(2, 0));
  EXPECT_NEAR(routing.topk_weights(0, 0), 0.1192029, 1e-6);
  EXPECT_NEAR(routing.topk_weights(0, 1), 0.8807971, 1e-6);
}

TEST(RouterTest, GroupsByTheirBestAndByTheSumOfTwo) {
  // Scores sigmoid(0) = 1/2 plus bias, in groups of 3: {3, 0, 0}, {2, 2, 1}, {1, 1, 1}.
  const Table<float> logits(1, 9, 0.0f);
  const std::vector<float> bias{2.5f, -.5f, -.5f, 1.5f, 1.5f, .5f, .5f, .5f, .5f};
  RouterConfig config = config_of(9, 3, Scoring::kSigmoid);
  config.num_groups = 3;
  config.topk_groups = 1;
  EXPECT_THAT(run_router(config, logits, bias).topk_ids.data, ElementsAre(0, 3, 4));
  config.group_selection = GroupSelection::kMax;
  EXPECT_THAT(run_router(config, logits, bias).topk_ids.data, ElementsAre(0, 1, 2));
  config.group_selection = GroupSelection::kTop2Sum;
  EXPECT_THAT(run_router(config, logits, bias).topk_ids.data, ElementsAre(3, 4, 5));
  config.topk_groups = 2;
  EXPECT_THAT(run_router(config, logits, bias).topk_ids.data, ElementsAre(0, 3, 4));
}

TEST(RouterTest, ExpertsOfLostGroupsLoseAgainstNegativeScores) {
  // All biased scores are below 0, the value that Hugging Face assigns to dropped groups.
  RouterConfig config = config_of(4, 2, Scoring::kSigmoid);
  config.group_selection = GroupSelection::kTop2Sum;
  config.num_groups = 2;
  config.topk_groups = 1;
  const Table<float> logits(1, 4, 0.0f);
  EXPECT_THAT(run_router(config, logits, {-9, -9, -5, -7}).topk_ids.data, ElementsAre(2, 3));
}

TEST(RouterTest, TiesGoToTheLowerId) {
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
    const Table<float> logits = one_token({1, 3, 2, 3, 2, 3});
    EXPECT_THAT(run_router(config_of(6, 5, scoring), logits, {}).topk_ids.data,
                ElementsAre(1, 3, 5, 2, 4));
    // -0 and +0 are equal.
    EXPECT_THAT(run_router(config_of(2, 2, scoring), one_token({-0.0f, 0.0f}), {}).topk_ids.data,
                ElementsAre(0, 1));
  }
  // Groups tie too, and an expert of a group that was chosen second still wins by its lower id.
  RouterConfig config = config_of(6, 2, Scoring::kSigmoid);
  config.group_selection = GroupSelection::kMax;
  config.num_groups = 3;
  config.topk_groups = 2;
  EXPECT_THAT(run_router(config, Table<float>(1, 6, 1.0f), {}).topk_ids.data, ElementsAre(0, 1));
  EXPECT_THAT(run_router(config, one_token({0, 5, 4, 4, 5, 4}), {}).topk_ids.data,
              ElementsAre(1, 4));
}

TEST(RouterTest, NanRanksLastAndStaysCanonical) {
  const Table<float> logits = one_token({-kNan, -kInf, 1.0f, kInf});
  const Routing routing = run_router(config_of(4, 4, Scoring::kSigmoid), logits, {});
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(conformance::bits_of_table(routing.topk_weights),
              ElementsAre(0x3F800000u, ::testing::_, 0u, 0x7FC00000u));
  // Softmax spreads NaN over all scores, as its formula does.
  const Routing softmax = run_router(config_of(4, 2, Scoring::kSoftmax), logits, {});
  EXPECT_THAT(softmax.topk_ids.data, ElementsAre(0, 1));
  EXPECT_THAT(conformance::bits_of_table(softmax.topk_weights),
              ElementsAre(0x7FC00000u, 0x7FC00000u));
  const Routing dead = run_router(config_of(3, 3, Scoring::kSoftmax), one_token({1, -kInf, 1}), {});
  EXPECT_THAT(dead.topk_ids.data, ElementsAre(0, 2, 1));
  EXPECT_THAT(dead.topk_weights.data, ElementsAre(0.5f, 0.5f, 0.0f));
}

TEST(RouterTest, NormOfAZeroSum) {
  RouterConfig config = config_of(4, 2, Scoring::kSigmoid);
  config.norm_topk_prob = true;
  const Table<float> logits(1, 4, -kInf);
  EXPECT_THAT(conformance::bits_of_table(run_router(config, logits, {}).topk_weights),
              ElementsAre(0x7FC00000u, 0x7FC00000u));
  config.group_selection = GroupSelection::kTop2Sum;
  config.num_groups = 2;
  config.topk_groups = 1;
  EXPECT_THAT(run_router(config, logits, {}).topk_weights.data, ElementsAre(0.0f, 0.0f));
}

TEST(RouterTest, BiasOnLogitsCountsInTheWeights) {
  // Logits 0, ln 2, ln 4 once the bias is added: scores 1/7, 2/7, 4/7.
  RouterConfig config = config_of(3, 2, Scoring::kSoftmax);
  config.bias_on_logits = true;
  const std::vector<float> bias{1.0f, 0.6931472f, -0.6137056f};
  const Table<float> logits = one_token({-1.0f, 0.0f, 2.0f});
  Routing routing = run_router(config, logits, bias);
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(2, 1));
  EXPECT_NEAR(routing.topk_weights(0, 0), 4.0 / 7, 1e-6);
  EXPECT_NEAR(routing.topk_weights(0, 1), 2.0 / 7, 1e-6);
  EXPECT_NEAR(run_router(config, logits, {}).topk_weights(0, 0), 0.8437947, 1e-6);
}

TEST(RouterTest, NormDividesByNoLessThanItsMinimum) {
  RouterConfig config = config_of(2, 1, Scoring::kSoftmax);
  config.norm_topk_prob = true;
  config.norm_min = 0.8f;
  const Table<float> logits(1, 2, 0.0f);
  EXPECT_THAT(run_router(config, logits, {}).topk_weights.data, ElementsAre(0.625f));
  config.norm_min = 0.25f;
  EXPECT_THAT(run_router(config, logits, {}).topk_weights.data, ElementsAre(1.0f));
}

TEST(RouterTest, ByLogitsTheChoiceTellsApartScoresThatRoundToOne) {
  const Table<float> logits = one_token({20.0f, 40.0f, 30.0f});
  RouterConfig config = config_of(3, 2, Scoring::kSigmoid);
  EXPECT_THAT(run_router(config, logits, {}).topk_ids.data, ElementsAre(0, 1));
  config.bias_on_logits = true;
  const Routing routing = run_router(config, logits, {});
  EXPECT_THAT(routing.topk_ids.data, ElementsAre(1, 2));
  EXPECT_THAT(routing.topk_weights.data, ElementsAre(1.0f, 1.0f));
}

// What transformers' sparsemixer returns at inference.
TEST(RouterTest, SparseMixerLeavesOutWhatIsFar) {
  struct Answer {
    std::vector<float> logits;
    float jitter, first, second;
  };
  const Answer answers[] = {
      {{1.0f, 0.99f, 0.5f, -3.0f}, 0.01f, 0.502499998f, 1.0f},
      {{1.0f, 0.995f, 0.985f, 0.97f}, 0.01f, 0.335556448f, 0.502499998f},
      {{-1.0f, -1.01f, -2.0f, -1.015f}, 0.01f, 0.336116165f, 0.501249969f},
      {{0.0f, 0.0f, -0.001f, -5.0f}, 0.01f, 0.5f, 1.0f},
      {{2.0f, 1.0f, 0.5f, 0.25f}, 0.3f, 0.731058598f, 0.622459352f},
      {{1.0f, 1.0f, 1.0f, 0.5f}, 0.0f, 0.333333343f, 0.5f},
  };
  RouterConfig config = config_of(4, 2, Scoring::kSparseMixer);
  for (const Answer& answer : answers) {
    config.jitter = answer.jitter;
    const Routing routing = run_router(config, one_token(answer.logits), {});
    EXPECT_THAT(routing.topk_ids.data, ElementsAre(0, 1));
    EXPECT_NEAR(routing.topk_weights(0, 0), answer.first, 1e-7);
    EXPECT_NEAR(routing.topk_weights(0, 1), answer.second, 1e-7);
  }
}

TEST(RouterTest, WritesWideIds) {
  const Table<float> logits = one_token({0, 2, 1});
  std::vector<std::int64_t> ids(2);
  std::vector<float> weights(2);
  select_experts(config_of(3, 2, Scoring::kSoftmax), TensorView::of(logits.data.data(), {1, 3}), {},
                 TensorView::of(ids.data(), {1, 2}), TensorView::of(weights.data(), {1, 2}));
  EXPECT_THAT(ids, ElementsAre(1, 2));
  EXPECT_TRUE(
      run_router(config_of(3, 2, Scoring::kSoftmax), Table<float>(0, 3), {}).topk_ids.data.empty());
}

std::string message_of(const RouterConfig& config, const TensorView& logits, const TensorView& bias,
                       const TensorView& ids, const TensorView& weights) {
  try {
    select_experts(config, logits, bias, ids, weights);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(RouterTest, ImpossibleConfigsAreNamed) {
  const auto refuse = [](auto change) {
    RouterConfig config = config_of(12, 4, Scoring::kSoftmax);
    config.group_selection = GroupSelection::kTop2Sum;
    config.num_groups = 4;
    config.topk_groups = 2;
    change(config);
    return message_of(config, Tensor(DType::kF32, {1, 12}), {}, Tensor(DType::kI32, {1, 4}),
                      Tensor(DType::kF32, {1, 4}));
  };
  EXPECT_EQ(refuse([](RouterConfig&) {}), "accepted");
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_experts = 0; }), HasSubstr("num_experts is 0"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_topk = 13; }),
              HasSubstr("num_topk is 13, must be 1"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_topk = 0; }), HasSubstr("num_topk is 0"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_groups = 5; }),
              HasSubstr("num_groups is 5, must divide the 12 experts"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_groups = 0; }), HasSubstr("num_groups is 0"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.topk_groups = 5; }), HasSubstr("topk_groups is 5"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.topk_groups = 1; }),
              HasSubstr("num_topk is 4, but 1 groups of 3 experts stay"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.num_groups = c.topk_groups = 12; }),
              HasSubstr("groups of 1 expert, must be at least 2"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.routed_scaling_factor = kNan; }),
              HasSubstr("routed_scaling_factor is nan"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.norm_min = -1.0f; }),
              HasSubstr("norm_min is -1, must be a number from 0"));
  EXPECT_THAT(refuse([](RouterConfig& c) { c.scoring = Scoring::kSparseMixer; }),
              HasSubstr("scoring is sparse_mixer with num_topk 4, groups, must be 2 without"));
  EXPECT_THAT(refuse([](RouterConfig& c) {
                c = config_of(12, 4, Scoring::kSparseMixer);
                c.jitter = kNan;
              }),
              HasSubstr("scoring is sparse_mixer with num_topk 4, must be 2"));
}

TEST(RouterTest, WrongTensorsAreNamed) {
  const RouterConfig config = config_of(5, 2, Scoring::kSoftmax);
  const Tensor logits(DType::kF32, {3, 5});
  const Tensor ids(DType::kI32, {3, 2});
  const Tensor weights(DType::kF32, {3, 2});
  EXPECT_EQ(message_of(config, logits, {}, ids, weights), "accepted");
  EXPECT_THAT(message_of(config, Tensor(DType::kF32, {3, 6}), {}, ids, weights),
              HasSubstr("logits is f32 [3, 6], must be f32 [3, 5]"));
  EXPECT_THAT(message_of(config, {}, {}, ids, weights), HasSubstr("logits is absent"));
  EXPECT_THAT(message_of(config, logits, Tensor(DType::kF32, {4}), ids, weights),
              HasSubstr("bias is f32 [4], must be f32 [5]"));
  EXPECT_THAT(message_of(config, logits, {}, Tensor(DType::kI8, {3, 2}), weights),
              HasSubstr("topk_ids is i8 [3, 2], must be i32 or i64 [3, 2]"));
  EXPECT_THAT(message_of(config, logits, {}, ids, Tensor(DType::kF32, {2, 2})),
              HasSubstr("topk_weights is f32 [2, 2], must be f32 [3, 2]"));
}

}  // namespace
}  // namespace switchyard
