// SPDX-License-Identifier: Apache-2.0
//
// router.cpp: scores, groups and the K best experts of each token. One pass over the experts keeps
// a sorted list of K candidates, which is cheap because K is small and most experts never enter the
// list.
//
// Source: Hugging Face DeepseekV2 (group_limited_greedy), DeepseekV3 (noaux_tc), Qwen2Moe, Mixtral,
// Phimoe (sparsemixer).
// Hugging Face gives experts of excluded groups the score 0, so that one of them can still win
// against negative biased scores. Here, as in vLLM's grouped_topk, they cannot be chosen.

#include "switchyard/router.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/require_device.h"
#include "moe/router/router_logits.h"
#include "quant/activation.h"
#include "quant/bits.h"

namespace switchyard {
namespace {

constexpr std::int32_t kMaxTopk = 64;

struct Candidate {
  float score;
  std::int32_t id;
};

// NaN ranks last. An equal score is not better, so the id that came first stays ahead.
bool is_better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The best `limit` candidates, best first.
class BestList {
 public:
  explicit BestList(std::int32_t limit) : limit_(static_cast<std::size_t>(limit)) {
    list_.reserve(limit_ + 1);
  }

  void clear() { list_.clear(); }

  void offer(Candidate candidate) {
    if (list_.size() == limit_ && !is_better(candidate.score, list_.back().score)) return;
    std::size_t place = list_.size();
    while (place > 0 && is_better(candidate.score, list_[place - 1].score)) --place;
    list_.insert(list_.begin() + static_cast<std::ptrdiff_t>(place), candidate);
    if (list_.size() > limit_) list_.pop_back();
  }

  std::span<const Candidate> best() const { return list_; }

 private:
  std::size_t limit_;
  std::vector<Candidate> list_;
};

void score_softmax(std::span<const float> logits, std::span<float> scores) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float x : logits) largest = std::max(largest, x);
  for (std::size_t e = 0; e < logits.size(); ++e) scores[e] = logits[e] - largest;
  exp_f32(scores.data(), static_cast<std::int64_t>(scores.size()), scores.data());
  float sum = 0.0f;
  for (const float score : scores) sum += score;
  for (float& score : scores) score /= sum;
}

void score_sigmoid(std::span<const float> logits, std::span<float> scores) {
  for (std::size_t e = 0; e < logits.size(); ++e) scores[e] = -logits[e];
  exp_f32(scores.data(), static_cast<std::int64_t>(scores.size()), scores.data());
  for (float& score : scores) score = 1.0f / (1.0f + score);
}

// Chooses experts token by token; the scratch is reused for all tokens of a call.
class Selector {
 public:
  Selector(const RouterConfig& config, std::span<const float> bias)
      : config_(config),
        bias_(bias),
        scores_(static_cast<std::size_t>(config.num_experts)),
        choice_(scores_.size()),
        best_experts_(config.num_topk),
        best_groups_(config.topk_groups),
        best_members_(config.group_selection == GroupSelection::kTop2Sum ? 2 : 1) {}

  // Fills `weights` and returns the chosen experts, best first.
  std::span<const Candidate> select(std::span<const float> given, std::span<float> weights) {
    const std::span<const float> logits = config_.bias_on_logits ? biased(given) : given;
    best_experts_.clear();
    if (config_.scoring == Scoring::kSparseMixer) {
      std::copy(logits.begin(), logits.end(), choice_.begin());
      offer_experts(0, config_.num_experts);
      weigh_near(logits, weights);
    } else {
      score(logits);
      if (config_.group_selection == GroupSelection::kNone) {
        offer_experts(0, config_.num_experts);
      } else {
        offer_groups();
      }
      const std::span<const Candidate> best = best_experts_.best();
      for (std::size_t k = 0; k < best.size(); ++k) weights[k] = score_of(best[k]);
    }
    finish(weights);
    return best_experts_.best();
  }

 private:
  float score_of(const Candidate& expert) const {
    return scores_[static_cast<std::size_t>(expert.id)];
  }

  std::span<const float> biased(std::span<const float> logits) {
    biased_.assign(logits.begin(), logits.end());
    for (std::size_t e = 0; e < bias_.size(); ++e) biased_[e] += bias_[e];
    return biased_;
  }

  // Sets scores, which weigh, and what the choice compares.
  void score(std::span<const float> logits) {
    const bool is_sigmoid = config_.scoring == Scoring::kSigmoid;
    const bool adds_bias = !bias_.empty() && !config_.bias_on_logits;
    (is_sigmoid ? score_sigmoid : score_softmax)(logits, scores_);
    const std::span<const float> compared = config_.bias_on_logits ? logits : scores_;
    std::copy(compared.begin(), compared.end(), choice_.begin());
    for (std::size_t e = 0; adds_bias && e < bias_.size(); ++e) choice_[e] += bias_[e];
  }

  // kSparseMixer: the softmax of a choice leaves out those before it and what is far from it.
  void weigh_near(std::span<const float> logits, std::span<float> weights) {
    constexpr float kLeftOut = -std::numeric_limits<float>::infinity();
    const std::span<const Candidate> best = best_experts_.best();
    for (std::size_t k = 0; k < best.size(); ++k) {
      const float largest = best[k].score;
      for (std::size_t e = 0; e < logits.size(); ++e) {
        const float x = logits[e];
        const bool is_far = (largest - x) / std::max(std::abs(x), largest) > 2.0f * config_.jitter;
        choice_[e] = is_far ? kLeftOut : x;
      }
      for (const Candidate& earlier : best.first(k)) {
        choice_[static_cast<std::size_t>(earlier.id)] = kLeftOut;
      }
      score_softmax(choice_, scores_);
      weights[k] = score_of(best[k]);
    }
  }

  void offer_experts(std::int32_t begin, std::int32_t end) {
    for (std::int32_t e = begin; e < end; ++e) {
      best_experts_.offer({choice_[static_cast<std::size_t>(e)], e});
    }
  }

  void offer_groups() {
    const std::int32_t group_size = config_.num_experts / config_.num_groups;
    best_groups_.clear();
    for (std::int32_t g = 0; g < config_.num_groups; ++g) {
      best_members_.clear();
      for (std::int32_t e = g * group_size; e < (g + 1) * group_size; ++e) {
        best_members_.offer({choice_[static_cast<std::size_t>(e)], e});
      }
      const std::span<const Candidate> members = best_members_.best();
      const float second = members.size() > 1 ? members[1].score : 0.0f;
      best_groups_.offer({members[0].score + second, g});
    }
    // Offer ids in ascending order, so that ties between experts of two groups go to the lower id.
    is_chosen_.assign(static_cast<std::size_t>(config_.num_groups), false);
    for (const Candidate& group : best_groups_.best()) {
      is_chosen_[static_cast<std::size_t>(group.id)] = true;
    }
    for (std::int32_t g = 0; g < config_.num_groups; ++g) {
      if (is_chosen_[static_cast<std::size_t>(g)]) {
        offer_experts(g * group_size, (g + 1) * group_size);
      }
    }
  }

  // Normalization adds the weights in the order of the list.
  void finish(std::span<float> weights) const {
    if (config_.norm_topk_prob) {
      float sum = 0.0f;
      for (const float weight : weights) sum += weight;
      if (config_.group_selection == GroupSelection::kTop2Sum) sum += 1e-20f;
      if (sum < config_.norm_min) sum = config_.norm_min;
      for (float& weight : weights) weight /= sum;
    }
    for (float& weight : weights) weight = canonical_f32(weight * config_.routed_scaling_factor);
  }

  const RouterConfig& config_;
  std::span<const float> bias_;
  std::vector<float> biased_;
  std::vector<float> scores_;
  std::vector<float> choice_;
  std::vector<bool> is_chosen_;
  BestList best_experts_;
  BestList best_groups_;
  BestList best_members_;
};

void check_groups(const RouterConfig& config) {
  if (config.group_selection == GroupSelection::kNone) return;
  require(config.num_groups >= 1 && config.num_experts % config.num_groups == 0,
          Errc::kInvalidArgument, "select_experts: num_groups is {}, must divide the {} experts",
          config.num_groups, config.num_experts);
  require(config.topk_groups >= 1 && config.topk_groups <= config.num_groups,
          Errc::kInvalidArgument, "select_experts: topk_groups is {}, must be 1 to num_groups {}",
          config.topk_groups, config.num_groups);
  const std::int32_t group_size = config.num_experts / config.num_groups;
  require(config.num_topk <= std::int64_t{config.topk_groups} * group_size, Errc::kInvalidArgument,
          "select_experts: num_topk is {}, but {} groups of {} experts stay", config.num_topk,
          config.topk_groups, group_size);
  require(config.group_selection != GroupSelection::kTop2Sum || group_size >= 2,
          Errc::kInvalidArgument,
          "select_experts: groups of {} expert, must be at least 2 for the sum of two", group_size);
}

void check_config(const RouterConfig& config) {
  require(config.num_experts >= 1, Errc::kInvalidArgument,
          "select_experts: num_experts is {}, must be at least 1", config.num_experts);
  const std::int32_t most = std::min(kMaxTopk, config.num_experts);
  require(config.num_topk >= 1 && config.num_topk <= most, Errc::kInvalidArgument,
          "select_experts: num_topk is {}, must be 1 to {} with {} experts", config.num_topk, most,
          config.num_experts);
  require(std::isfinite(config.routed_scaling_factor), Errc::kInvalidArgument,
          "select_experts: routed_scaling_factor is {}, must be a finite number",
          config.routed_scaling_factor);
  require(std::isfinite(config.norm_min) && config.norm_min >= 0.0f, Errc::kInvalidArgument,
          "select_experts: norm_min is {}, must be a number from 0", config.norm_min);
  check_groups(config);
}

// PhiMoE's routing chooses two, by the logits alone.
void check_sparse_mixer(const RouterConfig& config, bool has_bias) {
  if (config.scoring != Scoring::kSparseMixer) return;
  require(config.num_topk == 2 && config.group_selection == GroupSelection::kNone && !has_bias,
          Errc::kInvalidArgument,
          "select_experts: scoring is sparse_mixer with num_topk {}{}{}, must be 2 without a bias "
          "and groups",
          config.num_topk, has_bias ? ", a bias" : "",
          config.group_selection == GroupSelection::kNone ? "" : ", groups");
  require(std::isfinite(config.jitter) && config.jitter >= 0.0f, Errc::kInvalidArgument,
          "select_experts: jitter is {}, must be a number from 0", config.jitter);
}

void check_matrix(const char* function, const char* name, const TensorView& view, bool is_dtype_ok,
                  const char* dtypes, std::int64_t rows, std::int64_t cols) {
  const bool is_shape_ok = view.num_dims() == 2 && view.shape(0) == rows && view.shape(1) == cols &&
                           view.is_contiguous() &&
                           (view.num_elements() == 0 || view.data() != nullptr);
  require(is_dtype_ok && is_shape_ok, Errc::kInvalidArgument,
          "{}: {} is {}, must be {} [{}, {}], contiguous", function, name, view.describe(), dtypes,
          rows, cols);
}

void check_select(const RouterConfig& config, const TensorView& logits, const TensorView& bias,
                  const TensorView& topk_ids, const TensorView& topk_weights) {
  constexpr const char* kName = "select_experts";
  check_config(config);
  check_sparse_mixer(config, bias.has_value());
  const std::int64_t num_tokens = logits.num_dims() == 2 ? logits.shape(0) : 0;
  check_matrix(kName, "logits", logits, logits.dtype() == DType::kF32, "f32", num_tokens,
               config.num_experts);
  if (bias.has_value()) {
    require(bias.dtype() == DType::kF32 && bias.num_dims() == 1 &&
                bias.shape(0) == config.num_experts && bias.is_contiguous() &&
                bias.data() != nullptr,
            Errc::kInvalidArgument, "select_experts: bias is {}, must be f32 [{}], contiguous",
            bias.describe(), config.num_experts);
  }
  check_matrix(kName, "topk_ids", topk_ids,
               topk_ids.dtype() == DType::kI32 || topk_ids.dtype() == DType::kI64, "i32 or i64",
               num_tokens, config.num_topk);
  check_matrix(kName, "topk_weights", topk_weights, topk_weights.dtype() == DType::kF32, "f32",
               num_tokens, config.num_topk);
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

void router_logits(const TensorView& hidden, const TensorView& gate, const TensorView& logits) {
  require_host("router_logits", {{"hidden", hidden}, {"gate", gate}, {"logits", logits}});
  require(hidden.num_dims() == 2 && is_float(hidden.dtype()) && has_contiguous_rows(hidden) &&
              (hidden.num_elements() == 0 || hidden.data() != nullptr),
          Errc::kInvalidArgument,
          "router_logits: hidden is {}, must be bf16, f16 or f32 [T, H], rows contiguous",
          hidden.describe());
  const std::int64_t num_experts = gate.num_dims() == 2 ? gate.shape(0) : 0;
  check_matrix("router_logits", "gate", gate, is_float(gate.dtype()), "bf16, f16 or f32",
               num_experts, hidden.shape(1));
  check_matrix("router_logits", "logits", logits, logits.dtype() == DType::kF32, "f32",
               hidden.shape(0), num_experts);
  compute_router_logits(hidden, gate, logits.as<float>());
}

void select_experts(const RouterConfig& config, const TensorView& logits, const TensorView& bias,
                    const TensorView& topk_ids, const TensorView& topk_weights) {
  require_host(
      "select_experts",
      {{"logits", logits}, {"bias", bias}, {"topk_ids", topk_ids}, {"topk_weights", topk_weights}});
  check_select(config, logits, bias, topk_ids, topk_weights);
  const auto num_experts = static_cast<std::size_t>(config.num_experts);
  const auto num_topk = static_cast<std::size_t>(config.num_topk);
  const std::span<const float> biases(bias.as<const float>(), bias.has_value() ? num_experts : 0);
  Selector selector(config, biases);
  for (std::size_t t = 0; t < static_cast<std::size_t>(logits.shape(0)); ++t) {
    const std::span<const Candidate> chosen =
        selector.select({logits.as<const float>() + t * num_experts, num_experts},
                        {topk_weights.as<float>() + t * num_topk, num_topk});
    for (std::size_t k = 0; k < num_topk; ++k) {
      if (topk_ids.dtype() == DType::kI32) {
        topk_ids.as<std::int32_t>()[t * num_topk + k] = chosen[k].id;
      } else {
        topk_ids.as<std::int64_t>()[t * num_topk + k] = chosen[k].id;
      }
    }
  }
}

}  // namespace switchyard
