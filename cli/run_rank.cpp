// SPDX-License-Identifier: Apache-2.0

#include "run_rank.h"

#include <algorithm>

#include "switchyard/router.h"

#include "core/clock.h"
#include "global_scale.h"
#include "group_hosts.h"
#include "io/checkpoint.h"
#include "io/moe_layer.h"
#include "measure/gather.h"
#include "plan/expert_ownership.h"
#include "progress.h"
#include "run_layer.h"

namespace switchyard::cli {
namespace {

constexpr std::size_t kMaxSamples = 1000;  // a long run keeps the newest samples

// Medians over repeats, in bounded memory.
class StageSamples {
 public:
  void add(const std::array<std::int64_t, kNumStages>& sample) {
    if (samples_.size() < kMaxSamples) {
      samples_.push_back(sample);
    } else {
      samples_[next_++ % kMaxSamples] = sample;
    }
  }

  std::array<std::int64_t, kNumStages> medians() const {
    std::array<std::int64_t, kNumStages> result{};
    // The first call maps pages and loads code, so it counts only when it is the only one.
    const std::size_t skip = samples_.size() > 1 ? 1 : 0;
    for (std::size_t stage = 0; stage < kNumStages; ++stage) {
      std::vector<std::int64_t> values;
      for (std::size_t i = skip; i < samples_.size(); ++i) values.push_back(samples_[i][stage]);
      std::sort(values.begin(), values.end());
      result[stage] = values[values.size() / 2];
    }
    return result;
  }

 private:
  std::vector<std::array<std::int64_t, kNumStages>> samples_;
  std::size_t next_ = 0;
};

// Everything one rank needs to run the layer, in order of construction.
class LayerRun {
 public:
  LayerRun(const Group& group, const RunOptions& options)
      : group_(group),
        options_(options),
        config_(read_model_config(options.model)),
        first_token_(split_tokens(options.split, count_tokens(options, config_), group.size())) {
    const auto r = static_cast<std::size_t>(group.rank());
    input_ = load_run_input(options, config_, first_token_[r], first_token_[r + 1]);
    const Checkpoint checkpoint(options.model);
    const int owners = options.prepare == "local" ? 1 : group.size();
    const int rank = options.prepare == "local" ? 0 : group.rank();
    ownership_ = {config_.num_experts(), owners};
    first_expert_ = ownership_.first(rank);
    weights_ =
        load_moe_layer(checkpoint, config_, options.layer, first_expert_, ownership_.count(rank));
    make_layer(rank);
    output_ = Tensor(run_config_.dtype(), {num_tokens(), std::int64_t{config_.hidden}});
  }

  RankResult run();

 private:
  void make_layer(int rank);
  std::int64_t route();
  std::int64_t num_tokens() const { return input_.hidden.shape(0); }
  float magnitude() const;

  Group group_;
  RunOptions options_;
  ModelConfig config_;
  std::vector<std::int64_t> first_token_;
  RunInput input_;
  ExpertOwnership ownership_;
  int first_expert_ = 0;
  MoeLayerWeights weights_;
  RunConfig run_config_;
  std::unique_ptr<LayerTarget> layer_;
  Tensor output_;
  Tensor routed_ids_;
  Tensor routed_weights_;
  PrepareArguments arguments_;
  RankResult result_;
};

void LayerRun::make_layer(int rank) {
  std::int64_t max_tokens = 0;
  for (std::size_t r = 1; r < first_token_.size(); ++r) {
    max_tokens = std::max(max_tokens, first_token_[r] - first_token_[r - 1]);
  }
  const float largest = wants_magnitude(options_) ? magnitude() : 0.0f;
  run_config_ = make_run_config(options_, config_, largest, max_tokens);
  const LayerSetup setup{group_, options_, config_, weights_, run_config_, ownership_, rank};
  layer_ = options_.device == "cuda" ? make_cuda_layer(setup) : make_cpu_layer(setup);
}

// Of all ranks' tokens.
float LayerRun::magnitude() const {
  return static_cast<float>(
      measure::max_over_ranks(group_, {largest_finite(input_.hidden)}).front());
}

// Sets ids and weights of this rank's tokens, from the file or the router. Returns nanoseconds.
std::int64_t LayerRun::route() {
  const std::int64_t start = now_ns();
  arguments_.hidden = input_.hidden;
  arguments_.apply_router_weight_on_input = config_.weighs_input;
  arguments_.topk_ids = input_.topk_ids;
  arguments_.topk_weights = input_.topk_weights;
  if (!input_.topk_ids.view().has_value()) {
    const Tensor logits(DType::kF32, {num_tokens(), std::int64_t{config_.num_experts()}});
    router_logits(arguments_.hidden, weights_.router_gate, logits);
    routed_ids_ = Tensor(DType::kI32, {num_tokens(), std::int64_t{config_.num_topk()}});
    routed_weights_ = Tensor(DType::kF32, {num_tokens(), std::int64_t{config_.num_topk()}});
    select_experts(config_.router, logits, weights_.router_bias, routed_ids_, routed_weights_);
    arguments_.topk_ids = routed_ids_;
    arguments_.topk_weights = routed_weights_;
  }
  return now_ns() - start;
}

RankResult LayerRun::run() {
  StageSamples samples;
  Progress progress("run", options_.repeat, group_.rank() == 0 && options_.json != "-");
  for (std::int64_t i = 0; i < options_.repeat; ++i) {
    const bool is_last = i + 1 == options_.repeat;
    const std::int64_t route_ns = route();
    auto sample = layer_->apply(arguments_, output_, is_last ? &result_ : nullptr);
    sample[0] = route_ns;
    samples.add(sample);
    progress.update(i + 1);
  }
  result_.stage_ns = samples.medians();
  if (options_.prepare != "local") {
    result_.host_crossings = count_host_crossings(
        arguments_.topk_ids, ownership_, hosts_of(group_, "run", options_.hosts), group_.rank());
  }
  result_.config = config_;
  result_.layer = weights_.layer;
  result_.run_config = run_config_;
  result_.input_source = input_.source;
  result_.has_routing = input_.topk_ids.view().has_value();
  result_.first_token = first_token_;
  result_.output = std::move(output_);
  const bool is_routed = !result_.has_routing;
  result_.topk_ids = is_routed ? std::move(routed_ids_) : std::move(input_.topk_ids);
  result_.topk_weights = is_routed ? std::move(routed_weights_) : std::move(input_.topk_weights);
  return std::move(result_);
}

}  // namespace

RankResult run_layer(const Group& group, const RunOptions& options) {
  return LayerRun(group, options).run();
}

}  // namespace switchyard::cli
