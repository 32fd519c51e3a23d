// SPDX-License-Identifier: Apache-2.0
//
// Loads checkpoints of every family, written by tests/support/synthetic_checkpoint.h, as ranks do,
// and recomputes their layer in double precision from what was loaded. Any error in names,
// transposes, scales or the router's settings shows in the output.

#include "io/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "support/synthetic_checkpoint.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Row `row` of matrix `m` of a stack [L, rows, columns], times x; e4m3 has scales [L, .., ..].
double row_times(const TensorView& stack, const TensorView& scale, std::int64_t m, std::int64_t row,
                 const std::vector<double>& x) {
  const std::int64_t rows = stack.shape(1);
  const std::int64_t columns = stack.shape(2);
  EXPECT_EQ(columns, static_cast<std::int64_t>(x.size()));
  double sum = 0;
  for (std::int64_t c = 0; c < columns; ++c) {
    double weight = element_of(stack, (m * rows + row) * columns + c);
    if (scale.has_value()) {
      weight *= element_of(scale, (m * scale.shape(1) + row / 128) * scale.shape(2) + c / 128);
    }
    sum += weight * x[static_cast<std::size_t>(c)];
  }
  return sum;
}

std::vector<double> mlp(const ExpertWeights& weights, std::int64_t expert,
                        const std::vector<double>& x) {
  std::vector<double> inner;
  for (std::int64_t i = 0; i < weights.gate.shape(1); ++i) {
    const double gate = row_times(weights.gate, weights.gate_scale, expert, i, x);
    inner.push_back(gate * sigmoid(gate) * row_times(weights.up, weights.up_scale, expert, i, x));
  }
  std::vector<double> y;
  for (std::int64_t h = 0; h < weights.down.shape(1); ++h) {
    y.push_back(row_times(weights.down, weights.down_scale, expert, h, inner));
  }
  return y;
}

struct Routed {
  std::vector<int> ids;
  std::vector<double> weights;
};

// RouterConfig as router.h defines it, in double.
Routed route(const RouterConfig& config, const std::vector<double>& logits,
             const std::vector<double>& bias) {
  const auto count = static_cast<std::size_t>(config.num_experts);
  std::vector<double> scores(count);
  const double total = std::accumulate(logits.begin(), logits.end(), 0.0,
                                       [](double sum, double x) { return sum + std::exp(x); });
  for (std::size_t e = 0; e < count; ++e) {
    scores[e] =
        config.scoring == Scoring::kSigmoid ? sigmoid(logits[e]) : std::exp(logits[e]) / total;
  }
  std::vector<double> biased = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) biased[e] += bias[e];
  const std::size_t group_size = count / static_cast<std::size_t>(config.num_groups);
  std::vector<std::pair<double, std::size_t>> groups;
  for (std::size_t first = 0; first < count; first += group_size) {
    std::vector<double> part(biased.begin() + static_cast<std::ptrdiff_t>(first),
                             biased.begin() + static_cast<std::ptrdiff_t>(first + group_size));
    std::sort(part.begin(), part.end(), std::greater<>());
    groups.emplace_back(
        -(config.group_selection == GroupSelection::kTop2Sum ? part[0] + part[1] : part[0]), first);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, std::size_t>> candidates;
  const bool limited = config.group_selection != GroupSelection::kNone;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (limited && g >= static_cast<std::size_t>(config.topk_groups)) break;
    for (std::size_t e = groups[g].second; e < groups[g].second + group_size; ++e) {
      candidates.emplace_back(-biased[e], e);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.resize(static_cast<std::size_t>(config.num_topk));
  Routed routed;
  double sum = 0;
  for (const auto& candidate : candidates) sum += scores[candidate.second];
  for (const auto& candidate : candidates) {
    routed.ids.push_back(static_cast<int>(candidate.second));
    routed.weights.push_back(scores[candidate.second] / (config.norm_topk_prob ? sum : 1.0) *
                             double{config.routed_scaling_factor});
  }
  return routed;
}

std::vector<double> token_of(const SyntheticCheckpoint& made, int t) {
  std::vector<double> x;
  const TensorView states(made.hidden_states.data(), DType::kBF16, {made.num_tokens, made.hidden});
  for (int h = 0; h < made.hidden; ++h) x.push_back(element_of(states, t * made.hidden + h));
  return x;
}

Routed route_token(const ModelConfig& config, const MoeLayerWeights& weights,
                   const std::vector<double>& x) {
  const TensorView& gate = weights.router_gate.view();
  const TensorView stack(gate.data(), gate.dtype(), {1, gate.shape(0), gate.shape(1)});
  std::vector<double> logits;
  for (int e = 0; e < config.num_experts(); ++e) {
    logits.push_back(row_times(stack, TensorView(), 0, e, x));
  }
  std::vector<double> bias;
  const TensorView& stored = weights.router_bias.view();
  for (std::int64_t e = 0; e < stored.num_elements(); ++e) bias.push_back(element_of(stored, e));
  return route(config.router, logits, bias);
}

std::vector<double> shared_of(const MoeLayerWeights& weights, const std::vector<double>& x) {
  if (!weights.shared.has_value()) return std::vector<double>(x.size(), 0.0);
  std::vector<double> y = mlp(weights.shared.view(), 0, x);
  const TensorView& gate = weights.shared_gate.view();
  if (gate.has_value()) {
    const TensorView stack(gate.data(), gate.dtype(), {1, 1, gate.shape(1)});
    const double factor = sigmoid(row_times(stack, TensorView(), 0, 0, x));
    for (double& value : y) value *= factor;
  }
  return y;
}

void expect_rows_near(const std::vector<double>& got, const std::vector<double>& all, int t) {
  const std::size_t hidden = got.size();
  for (std::size_t h = 0; h < hidden; ++h) {
    const double want = all[static_cast<std::size_t>(t) * hidden + h];
    ASSERT_NEAR(got[h], want, 1e-9 * (1.0 + std::abs(want))) << "token " << t << ", element " << h;
  }
}

// Two ranks of uneven size: each rank computes the experts that it loaded; the sum is the layer.
void check_layer(const SyntheticCheckpoint& made, std::int32_t first_of_rank_1) {
  const ModelConfig config = read_model_config(made.folder);
  const Checkpoint checkpoint(made.folder);
  ASSERT_EQ(config.num_experts(), made.num_experts);
  ASSERT_EQ(first_moe_layer(checkpoint, config), made.layer);
  const MoeLayerWeights ranks[] = {load_moe_layer(checkpoint, config, -1, 0, first_of_rank_1),
                                   load_moe_layer(checkpoint, config, made.layer, first_of_rank_1,
                                                  made.num_experts - first_of_rank_1)};
  for (int t = 0; t < made.num_tokens; ++t) {
    const std::vector<double> x = token_of(made, t);
    const Routed routed = route_token(config, ranks[0], x);
    std::vector<double> sum(x.size(), 0.0);
    for (std::size_t k = 0; k < routed.ids.size(); ++k) {
      const auto at = static_cast<std::size_t>(t * made.num_topk) + k;
      ASSERT_EQ(routed.ids[k], made.topk_ids[at]) << "token " << t << ", choice " << k;
      ASSERT_NEAR(routed.weights[k], made.topk_weights[at], 1e-9);
      const bool on_rank_1 = routed.ids[k] >= first_of_rank_1;
      const auto y = mlp(ranks[on_rank_1 ? 1 : 0].experts.view(),
                         routed.ids[k] - (on_rank_1 ? first_of_rank_1 : 0), x);
      for (std::size_t h = 0; h < y.size(); ++h) sum[h] += routed.weights[k] * y[h];
    }
    expect_rows_near(sum, made.routed_output, t);
    expect_rows_near(shared_of(ranks[1], x), made.shared_output, t);
  }
}

TEST(MoeLayerTest, EveryFamilyGivesItsIndependentlyComputedOutput) {
  const struct {
    SyntheticOptions options;
    std::int32_t first_of_rank_1;
  } cases[] = {
      {{.family = SyntheticFamily::kTinyMoe}, 3},
      {{.family = SyntheticFamily::kTinyMoe, .dtype = DType::kF32}, 7},
      {{.family = SyntheticFamily::kMixtral}, 1},
      {{.family = SyntheticFamily::kMixtral, .dtype = DType::kF16, .num_shards = 2}, 2},
      {{.family = SyntheticFamily::kQwen2Moe}, 4},
      {{.family = SyntheticFamily::kQwen3Moe, .num_shards = 3}, 5},
      {{.family = SyntheticFamily::kQwen3Moe, .dtype = DType::kE4M3}, 5},
      {{.family = SyntheticFamily::kDeepSeekV2, .num_shards = 2}, 6},
      {{.family = SyntheticFamily::kDeepSeekV2, .norm_topk_prob = 1}, 6},
      {{.family = SyntheticFamily::kDeepSeekV3, .num_tokens = 5}, 0},
      {{.family = SyntheticFamily::kDeepSeekV3,
        .dtype = DType::kE4M3,
        .num_shards = 2,
        .num_tokens = 5},
       4},
      {{.family = SyntheticFamily::kDeepSeekV3, .num_tokens = 3, .norm_topk_prob = 0}, 5},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(name_of(c.options.family)) + " " + name_of(c.options.dtype));
    const TempFolder folder;
    check_layer(write_synthetic_checkpoint(folder.path(), c.options), c.first_of_rank_1);
  }
}

// The numbers can be checked by eye: e^x is 1, 4, 2, 3, so softmax is a tenth of that.
TEST(MoeLayerTest, RouterSettingsByHand) {
  const std::vector<double> logits = {std::log(1.0), std::log(4.0), std::log(2.0), std::log(3.0)};
  const std::string sizes = R"("hidden_size": 8, "moe_intermediate_size": 8, "intermediate_size": 8,
 "num_experts_per_tok": 2, "num_hidden_layers": 1, "first_k_dense_replace": 0,
 "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "n_group": 2, "topk_group": 1, )";
  const auto routed = [&](const std::string& keys, const std::vector<double>& bias = {}) {
    return route(parse_model_config("{" + sizes + keys + "}", "f").router, logits, bias);
  };
  const auto expect = [](const Routed& got, int id0, int id1, double weight0, double weight1) {
    EXPECT_THAT(got.ids, ::testing::ElementsAre(id0, id1));
    EXPECT_NEAR(got.weights[0], weight0, 1e-12);
    EXPECT_NEAR(got.weights[1], weight1, 1e-12);
  };
  expect(routed(R"("model_type": "mixtral")"), 1, 3, 4.0 / 7, 3.0 / 7);
  expect(routed(R"("model_type": "qwen2_moe")"), 1, 3, 0.4, 0.3);
  expect(routed(R"("model_type": "qwen3_moe", "norm_topk_prob": true)"), 1, 3, 4.0 / 7, 3.0 / 7);
  expect(routed(R"("model_type": "deepseek_v2", "routed_scaling_factor": 16)"), 1, 3, 6.4, 4.8);
  // Group 0 has the best expert (expert 1); both groups have the same sum (1 + 4 = 2 + 3 of 10).
  expect(routed(R"("model_type": "deepseek_v2", "topk_method": "group_limited_greedy")"), 1, 0, 0.4,
         0.1);
  // sigmoid(log x) = x / (1 + x): 1/2, 4/5, 2/3, 3/4; groups sum to 1.3 and 1.41667.
  const double sum = 2.0 / 3 + 3.0 / 4;
  expect(routed(R"("model_type": "deepseek_v3")"), 3, 2, 2.5 * 0.75 / sum, 2.5 * 2.0 / 3 / sum);
  // The bias changes the choice, but not the weights.
  expect(routed(R"("model_type": "deepseek_v3", "norm_topk_prob": false)", {0.5, 0, 0, 0}), 0, 1,
         2.5 * 0.5, 2.5 * 0.8);
}

TEST(MoeLayerTest, LoadsTinyMoe) {
  const std::string folder = SWITCHYARD_DATA_DIR "/tiny-moe";
  const ModelConfig config = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  const auto activations = SafetensorsFile::open(folder + "/activations.safetensors");
  const MoeLayerWeights weights = load_moe_layer(checkpoint, config, -1, 0, 32);
  EXPECT_EQ(weights.layer, 2);
  EXPECT_EQ(weights.experts.gate.view().describe(), "bf16 [32, 128, 256]");
  EXPECT_EQ(weights.experts.down.view().describe(), "bf16 [32, 256, 128]");
  EXPECT_EQ(weights.shared.up.view().describe(), "bf16 [1, 256, 256]");
  EXPECT_FALSE(weights.experts.gate_scale.view().has_value());
  EXPECT_FALSE(weights.router_bias.view().has_value());
  for (const std::int64_t t : {0, 1, 511, 1023}) {
    std::vector<double> x;
    for (int h = 0; h < 256; ++h)
      x.push_back(element_of(activations->tensor("hidden_states"), t * 256 + h));
    const Routed routed = route_token(config, weights, x);
    std::vector<double> sum(256, 0.0);
    for (std::size_t k = 0; k < 4; ++k) {
      const std::int64_t at = t * 4 + static_cast<std::int64_t>(k);
      EXPECT_EQ(routed.ids[k], activations->tensor("topk_ids").as<std::int32_t>()[at]);
      EXPECT_NEAR(routed.weights[k], element_of(activations->tensor("topk_weights"), at), 1e-6);
      const auto y = mlp(weights.experts.view(), routed.ids[k], x);
      for (std::size_t h = 0; h < 256; ++h) sum[h] += routed.weights[k] * y[h];
    }
    const std::vector<double> shared = shared_of(weights, x);
    for (int h = 0; h < 256; ++h) {
      const auto at = static_cast<std::size_t>(h);
      const double routed_want = element_of(activations->tensor("routed_output"), t * 256 + h);
      const double shared_want = element_of(activations->tensor("shared_output"), t * 256 + h);
      ASSERT_NEAR(sum[at], routed_want, 1e-5 * (1 + std::abs(routed_want)));
      ASSERT_NEAR(shared[at], shared_want, 1e-6 * (1 + std::abs(shared_want)));
    }
  }
}

}  // namespace
}  // namespace switchyard
