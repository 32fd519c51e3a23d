// SPDX-License-Identifier: Apache-2.0
//
// route.cpp: who owns an expert and which experts a token wants, by full sorts.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/fail.h"
#include "quant/exp.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

// Best first: larger scores, then lower positions; NaN after everything.
std::vector<std::int32_t> ranking(const std::vector<float>& scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  return order;
}

std::vector<float> softmax(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float x : logits) largest = x > largest ? x : largest;
  std::vector<float> scores;
  float sum = 0.0f;
  for (const float x : logits) {
    scores.push_back(exp_f32(x - largest));
    sum += scores.back();
  }
  for (float& score : scores) score /= sum;
  return scores;
}

std::vector<float> sigmoids(std::span<const float> logits) {
  std::vector<float> scores;
  for (const float x : logits) scores.push_back(sigmoid(x));
  return scores;
}

// What the choice compares: scores with the bias, or the logits, which have it already.
std::vector<float> compared_values(const RouterConfig& config, const std::vector<float>& logits,
                                   const std::vector<float>& scores, std::span<const float> bias) {
  if (config.bias_on_logits) return logits;
  std::vector<float> choice = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
  return choice;
}

// Experts of the best groups; every expert without groups.
std::vector<bool> allowed_experts(const RouterConfig& config, const std::vector<float>& choice) {
  if (config.group_selection == GroupSelection::kNone)
    return std::vector<bool>(choice.size(), true);
  const auto group_size = static_cast<std::ptrdiff_t>(config.num_experts / config.num_groups);
  std::vector<float> group_scores;
  for (std::ptrdiff_t g = 0; g < config.num_groups; ++g) {
    const auto begin = choice.begin() + g * group_size;
    const std::vector<float> members(begin, begin + group_size);
    const std::vector<std::int32_t> order = ranking(members);
    float score = members[static_cast<std::size_t>(order[0])];
    if (config.group_selection == GroupSelection::kTop2Sum) {
      score += members[static_cast<std::size_t>(order[1])];
    }
    group_scores.push_back(score);
  }
  const std::vector<std::int32_t> groups = ranking(group_scores);
  std::vector<bool> allowed(choice.size(), false);
  for (std::int32_t i = 0; i < config.topk_groups; ++i) {
    const auto begin = allowed.begin() + groups[static_cast<std::size_t>(i)] * group_size;
    std::fill(begin, begin + group_size, true);
  }
  return allowed;
}

void finish_weights(const RouterConfig& config, std::span<float> weights) {
  if (config.norm_topk_prob) {
    float sum = 0.0f;
    for (const float weight : weights) sum += weight;
    if (config.group_selection == GroupSelection::kTop2Sum) sum += 1e-20f;
    for (float& weight : weights) weight /= sum < config.norm_min ? config.norm_min : sum;
  }
  for (float& weight : weights) {
    weight = round_to(DType::kF32, weight * config.routed_scaling_factor);
  }
}

// kSparseMixer: the best expert, then the best of the others, each weighted by a softmax without
// what is far from it and, for the second, without the first.
void mix_sparsely(const RouterConfig& config, const std::vector<float>& logits, Routing& routing,
                  std::int64_t t) {
  std::vector<float> left = logits;
  for (std::int32_t k = 0; k < 2; ++k) {
    const auto best = static_cast<std::size_t>(ranking(logits)[static_cast<std::size_t>(k)]);
    const float m = logits[best];
    std::vector<float> near = left;
    for (std::size_t e = 0; e < near.size(); ++e) {
      const float size = std::abs(logits[e]) < m ? m : std::abs(logits[e]);
      if ((m - logits[e]) / size > 2.0f * config.jitter) {
        near[e] = -std::numeric_limits<float>::infinity();
      }
    }
    routing.topk_ids(t, k) = static_cast<std::int32_t>(best);
    routing.topk_weights(t, k) = softmax(near)[best];
    left[best] = -std::numeric_limits<float>::infinity();
  }
  finish_weights(config, routing.topk_weights.row(t));
}

}  // namespace

std::int32_t num_local_experts(std::int32_t num_experts, int num_ranks, int rank) {
  return num_experts / num_ranks + (rank < num_experts % num_ranks ? 1 : 0);
}

std::int32_t first_expert(std::int32_t num_experts, int num_ranks, int rank) {
  std::int32_t first = 0;
  for (int r = 0; r < rank; ++r) first += num_local_experts(num_experts, num_ranks, r);
  return first;
}

int owner_of(std::int32_t num_experts, int num_ranks, std::int32_t expert) {
  int rank = 0;
  while (expert >= first_expert(num_experts, num_ranks, rank + 1)) ++rank;
  return rank;
}

std::int32_t Batch::num_local_experts(int rank) const {
  if (experts_per_rank.empty()) {
    return reference::num_local_experts(num_experts, num_ranks(), rank);
  }
  return experts_per_rank[static_cast<std::size_t>(rank)];
}

std::int32_t Batch::first_expert(int rank) const {
  std::int32_t first = 0;
  for (int r = 0; r < rank; ++r) first += num_local_experts(r);
  return first;
}

int Batch::owner_of(std::int32_t expert) const {
  int rank = 0;
  while (expert >= first_expert(rank + 1)) ++rank;
  return rank;
}

void check_batch(const Batch& batch) {
  require(!batch.ranks.empty(), Errc::kInvalidArgument, "reference: no ranks, at least 1");
  for (const RankInput& input : batch.ranks) {
    const std::int64_t num_tokens = input.num_tokens();
    require(input.tokens.cols == batch.hidden() && input.topk_ids.cols == batch.num_topk() &&
                input.topk_weights.cols == batch.num_topk() && input.topk_ids.rows == num_tokens &&
                input.topk_weights.rows == num_tokens,
            Errc::kInvalidArgument,
            "reference: tables of a rank differ in T, or of ranks in H or K");
    for (const std::int32_t id : input.topk_ids.data) {
      require(id >= -1 && id < batch.num_experts, Errc::kInvalidArgument,
              "reference: topk_ids has {}, but experts are 0 to {}", id, batch.num_experts - 1);
    }
  }
}

Table<float> router_logits(const Table<float>& hidden, const Table<float>& gate) {
  Table<float> logits(hidden.rows, gate.rows);
  for (std::int64_t t = 0; t < hidden.rows; ++t) {
    for (std::int64_t e = 0; e < gate.rows; ++e) {
      float sum = 0.0f;
      for (std::int64_t h = 0; h < hidden.cols; ++h) {
        sum = std::fma(hidden(t, h), gate(e, h), sum);
      }
      logits(t, e) = round_to(DType::kF32, sum);
    }
  }
  return logits;
}

Routing select_experts(const RouterConfig& config, const Table<float>& logits,
                       std::span<const float> bias) {
  Routing routing{Table<std::int32_t>(logits.rows, config.num_topk),
                  Table<float>(logits.rows, config.num_topk)};
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    std::vector<float> values(logits.row(t).begin(), logits.row(t).end());
    if (config.scoring == Scoring::kSparseMixer) {
      mix_sparsely(config, values, routing, t);
      continue;
    }
    if (config.bias_on_logits) {
      for (std::size_t e = 0; e < bias.size(); ++e) values[e] += bias[e];
    }
    const std::vector<float> scores =
        config.scoring == Scoring::kSoftmax ? softmax(values) : sigmoids(values);
    const std::vector<float> choice = compared_values(config, values, scores, bias);
    const std::vector<bool> allowed = allowed_experts(config, choice);
    std::int32_t k = 0;
    for (const std::int32_t e : ranking(choice)) {
      if (k == config.num_topk) break;
      if (!allowed[static_cast<std::size_t>(e)]) continue;
      routing.topk_ids(t, k) = e;
      routing.topk_weights(t, k++) = scores[static_cast<std::size_t>(e)];
    }
    finish_weights(config, routing.topk_weights.row(t));
  }
  return routing;
}

}  // namespace switchyard::reference
