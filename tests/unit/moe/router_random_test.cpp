// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/router.h"

#include "conformance/random_batch.h"
#include "reference/reference.h"
#include "support/tiny_moe.h"
#include "unit/moe/run_router.h"

namespace switchyard {
namespace {

using reference::Routing;
using reference::Table;
using namespace test;

// Scores, choice and weights in double precision, by scanning K times for the best.
struct BruteForce {
  std::vector<int> ids;
  std::vector<double> weights;
  double least_gap = 1e300;  // between any two biased scores or group scores that were compared

  BruteForce(const RouterConfig& config, std::span<const float> logits,
             const std::vector<float>& bias) {
    const auto num_experts = static_cast<std::size_t>(config.num_experts);
    std::vector<double> scores(num_experts);
    double sum = 0.0;
    for (std::size_t e = 0; e < num_experts; ++e) {
      const double x = std::exp(static_cast<double>(logits[e]));
      scores[e] = config.scoring == Scoring::kSoftmax ? x : x / (1.0 + x);
      sum += x;
    }
    std::vector<double> choice = scores;
    for (std::size_t e = 0; e < num_experts; ++e) {
      if (config.scoring == Scoring::kSoftmax) choice[e] = scores[e] /= sum;
      if (!bias.empty()) choice[e] += static_cast<double>(bias[e]);
    }
    mask_groups(config, choice);
    double total = 0.0;
    for (const int e : pick_best(choice, config.num_topk)) {
      ids.push_back(e);
      weights.push_back(scores[static_cast<std::size_t>(e)]);
      total += weights.back();
    }
    for (double& weight : weights) {
      weight *=
          static_cast<double>(config.routed_scaling_factor) / (config.norm_topk_prob ? total : 1.0);
    }
  }

  std::vector<int> pick_best(std::vector<double> values, int count) {
    std::vector<int> best;
    for (int k = 0; k < count; ++k) {
      const auto top = std::max_element(values.begin(), values.end());
      const double value = *top;
      best.push_back(static_cast<int>(top - values.begin()));
      *top = -1e300;
      const double next = *std::max_element(values.begin(), values.end());
      least_gap = std::min(least_gap, value - next);
    }
    return best;
  }

  void mask_groups(const RouterConfig& config, std::vector<double>& choice) {
    if (config.group_selection == GroupSelection::kNone) return;
    const int size = config.num_experts / config.num_groups;
    std::vector<double> group_scores;
    for (int g = 0; g < config.num_groups; ++g) {
      std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(members[0] +
                             (config.group_selection == GroupSelection::kTop2Sum ? members[1] : 0));
    }
    const std::vector<int> kept = pick_best(group_scores, config.topk_groups);
    for (int e = 0; e < config.num_experts; ++e) {
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) {
        choice[static_cast<std::size_t>(e)] = -1e200;
      }
    }
  }
};

struct Sizes {
  std::int32_t num_experts, num_topk, num_groups, topk_groups;
};

void compare(const RouterConfig& config, const Table<float>& logits, const std::vector<float>& bias,
             int* num_compared) {
  const Routing got = run_router(config, logits, bias);
  const Routing oracle = reference::select_experts(config, logits, bias);
  ASSERT_EQ(got.topk_ids, oracle.topk_ids);
  ASSERT_EQ(conformance::bits_of_table(got.topk_weights),
            conformance::bits_of_table(oracle.topk_weights));
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const BruteForce want(config, logits.row(t), bias);
    if (want.least_gap < 1e-6) continue;  // f32 may decide otherwise
    ++*num_compared;
    for (std::int64_t k = 0; k < config.num_topk; ++k) {
      const auto i = static_cast<std::size_t>(k);
      ASSERT_EQ(got.topk_ids(t, k), want.ids[i]);
      ASSERT_NEAR(got.topk_weights(t, k), want.weights[i], 1e-5 * std::abs(want.weights[i]) + 1e-9);
    }
  }
}

TEST(RouterRandomTest, AgreesWithOracleAndBruteForce) {
  const Sizes sizes[] = {{1, 1, 1, 1},     {2, 1, 1, 1},    {7, 3, 7, 4},   {31, 16, 1, 1},
                         {64, 6, 8, 3},    {160, 6, 8, 3},  {256, 8, 8, 4}, {293, 11, 1, 1},
                         {300, 16, 15, 7}, {128, 64, 4, 2}, {12, 12, 4, 4}, {10, 4, 5, 2}};
  int num_compared = 0;
  std::uint64_t seed = 0;
  for (const Sizes& s : sizes) {
    for (int variant = 0; variant < 24; ++variant) {
      RouterConfig config =
          config_of(s.num_experts, s.num_topk, variant % 2 ? Scoring::kSigmoid : Scoring::kSoftmax);
      config.norm_topk_prob = variant / 2 % 2 != 0;
      config.routed_scaling_factor = variant % 3 == 0 ? 2.5f : 1.0f;
      config.num_groups = s.num_groups;
      config.topk_groups = s.topk_groups;
      config.group_selection = static_cast<GroupSelection>(variant / 4 % 3);
      const bool has_pairs = s.num_experts / s.num_groups >= 2;
      if (config.group_selection == GroupSelection::kTop2Sum && !has_pairs) continue;
      if (s.num_topk > s.topk_groups * (s.num_experts / s.num_groups)) continue;
      const Table<float> logits = conformance::random_table(9, s.num_experts, ++seed);
      std::vector<float> bias;
      if (variant >= 12) bias = conformance::random_table(1, s.num_experts, ++seed, 0.3f).data;
      ASSERT_NO_FATAL_FAILURE(compare(config, logits, bias, &num_compared))
          << "E " << s.num_experts << " K " << s.num_topk << " variant " << variant;
    }
  }
  EXPECT_GT(num_compared, 500);
}

// Of what BruteForce does not know.
TEST(RouterRandomTest, OtherRoutersAgreeWithTheOracle) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    RouterConfig config = config_of(33, 2, static_cast<Scoring>(seed % 3));
    const bool is_sparse = config.scoring == Scoring::kSparseMixer;
    config.num_topk = is_sparse ? 2 : 5;
    config.jitter = 0.05f * static_cast<float>(seed % 4);
    config.norm_topk_prob = seed % 2 == 0;
    config.norm_min = seed % 4 == 0 ? 0.3f : 0.0f;
    config.bias_on_logits = seed % 5 == 0;
    const Table<float> logits =
        conformance::random_table(20, 33, seed, seed % 7 == 0 ? 30.0f : 1.0f);
    std::vector<float> bias;
    if (!is_sparse) bias = conformance::random_table(1, 33, seed + 100, 0.3f).data;
    const Routing got = run_router(config, logits, bias);
    const Routing oracle = reference::select_experts(config, logits, bias);
    ASSERT_EQ(got.topk_ids, oracle.topk_ids) << seed;
    ASSERT_EQ(conformance::bits_of_table(got.topk_weights),
              conformance::bits_of_table(oracle.topk_weights))
        << seed;
  }
}

TEST(RouterRandomTest, TinyMoeRoutesAsTrained) {
  const auto model = test::open_tiny_moe("model.safetensors");
  const auto file = test::open_tiny_moe("activations.safetensors");
  const TensorView hidden = file->tensor("hidden_states");
  const Tensor logits(DType::kF32, {hidden.shape(0), 32});
  router_logits(hidden, model->tensor("model.layers.2.mlp.gate.weight"), logits);
  const Tensor ids(DType::kI32, {hidden.shape(0), 4});
  const Tensor weights(DType::kF32, {hidden.shape(0), 4});
  select_experts(test::tiny_moe_router(), logits, {}, ids, weights);
  const Table<std::int32_t> want_ids = test::load_ids(*file, "topk_ids");
  const Table<float> want_weights = test::load_table(*file, "topk_weights");
  for (std::size_t i = 0; i < want_ids.data.size(); ++i) {
    ASSERT_EQ(ids.as<std::int32_t>()[i], want_ids.data[i]) << "slot " << i;
    ASSERT_NEAR(weights.as<float>()[i], want_weights.data[i], 1e-3) << "slot " << i;
  }
}

}  // namespace
}  // namespace switchyard
