// SPDX-License-Identifier: Apache-2.0

#include "io/model_rules.h"

#include <algorithm>

#include <fmt/format.h>

namespace switchyard {
namespace {

// What the readers of json.h return for a key without a value: `none` for null.
template <typename T>
T absent_or_none(const JsonObject& object, const char* key, T absent, T none) {
  return object.has_key(key) ? none : absent;
}

bool read_norm(const JsonObject& object, const ModelConfig& config) {
  const FamilyDefaults& defaults = config.family->defaults;
  if (!defaults.reads_norm) return defaults.norm_topk_prob;
  constexpr const char* kKey = "norm_topk_prob";
  return object.boolean_or(kKey, absent_or_none(object, kKey, defaults.norm_topk_prob, false));
}

Scoring read_scoring(const JsonObject& object, Scoring absent) {
  if (!object.has("scoring_func")) return absent;
  const std::string name = object.text_or("scoring_func", "");
  if (name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  object.refuse("scoring_func", "\"softmax\" or \"sigmoid\"");
}

float read_scaling_factor(const JsonObject& object, double absent) {
  constexpr const char* kKey = "routed_scaling_factor";
  const double factor = object.number_or(kKey, absent_or_none(object, kKey, absent, 1.0));
  if (!(factor >= 1e-6 && factor <= 1e6)) object.refuse(kKey, "a number from 1e-6 to 1e6");
  return static_cast<float>(factor);
}

std::int32_t read_group_count(const JsonObject& object, const char* key, std::int32_t absent) {
  return absent == 0 ? object.integer(key, 1, kMaxModelExperts)
                     : object.integer_or(key, absent, 1, kMaxModelExperts);
}

void read_groups(const JsonObject& object, ModelConfig& config) {
  const FamilyDefaults& defaults = config.family->defaults;
  const std::string method = defaults.reads_method
                                 ? object.text_or("topk_method", defaults.topk_method)
                                 : defaults.topk_method;
  RouterConfig& router = config.router;
  if (method == "greedy") return;
  if (method == "group_limited_greedy") {
    router.group_selection = GroupSelection::kMax;
  } else if (method == "noaux_tc") {
    router.group_selection = GroupSelection::kTop2Sum;
    config.has_router_bias = true;
  } else {
    object.refuse("topk_method", "\"greedy\", \"group_limited_greedy\" or \"noaux_tc\"");
  }
  const bool has_default = defaults.num_groups != 0;
  if (has_default && (object.is_null("n_group") || object.is_null("topk_group"))) return;
  router.num_groups = read_group_count(object, "n_group", defaults.num_groups);
  router.topk_groups = read_group_count(object, "topk_group", defaults.topk_groups);
}

// Empty when the key is absent.
std::vector<std::int32_t> read_layer_list(const JsonObject& object, const char* key) {
  std::vector<std::int32_t> layers;
  if (!object.has(key)) return layers;
  const nlohmann::json& list = object.value(key);
  if (!list.is_array()) object.refuse(key, "an array of layers");
  for (const nlohmann::json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= kMaxModelLayers) {
      object.refuse(key, fmt::format("whole numbers from 0, not {}", describe_json(layer)));
    }
    layers.push_back(layer.get<std::int32_t>());
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

float read_number(const JsonObject& object, const char* key, double absent, double min,
                  double max) {
  object.refuse_null(key);
  const double number = object.number_or(key, absent);
  if (!(number >= min && number <= max)) {
    object.refuse(key, fmt::format("a number from {} to {}", min, max));
  }
  return static_cast<float>(number);
}

void set_shared(const JsonObject& object, const char* key, std::int32_t num_shared,
                ModelConfig& config) {
  const std::int64_t total = std::int64_t{num_shared} * config.moe_intermediate;
  if (total > kMaxModelSize) {
    object.refuse(key, fmt::format("at most {} elements in all shared experts", kMaxModelSize));
  }
  config.shared_intermediate = static_cast<std::int32_t>(total);
}

}  // namespace

void read_deepseek_routing(const JsonObject& object, ModelConfig& config) {
  const FamilyDefaults& defaults = config.family->defaults;
  config.router.scoring =
      defaults.reads_method ? read_scoring(object, defaults.scoring) : defaults.scoring;
  config.router.norm_topk_prob = read_norm(object, config);
  config.router.routed_scaling_factor = read_scaling_factor(object, defaults.routed_scaling_factor);
  read_groups(object, config);
}

void read_deepseek_v2_routing(const JsonObject& object, ModelConfig& config) {
  read_deepseek_routing(object, config);
  // A single expert is scaled, not normalized.
  RouterConfig& router = config.router;
  router.norm_topk_prob = router.norm_topk_prob && router.num_topk > 1;
  if (router.norm_topk_prob) router.routed_scaling_factor = 1.0f;
}

void read_softmax_routing(const JsonObject& object, ModelConfig& config) {
  config.router.norm_topk_prob = read_norm(object, config);
}

void read_biased_logits_routing(const JsonObject& object, ModelConfig& config) {
  read_softmax_routing(object, config);
  config.has_router_bias = true;
  config.router.bias_on_logits = true;
}

void read_ernie_routing(const JsonObject& object, ModelConfig& config) {
  read_softmax_routing(object, config);
  config.has_router_bias = true;
  config.router.norm_min = read_number(object, "moe_norm_min", 1e-12, 0.0, 1e6);
}

void read_llama4_routing(const JsonObject& object, ModelConfig& config) {
  config.router.scoring = Scoring::kSigmoid;
  config.router.bias_on_logits = true;  // there is none; it chooses by the logits
  if (config.router.num_topk != 1) {
    object.refuse(config.family->keys.num_topk, "1: the weight is applied to the input");
  }
}

void read_minimax_m2_routing(const JsonObject& object, ModelConfig& config) {
  config.router.scoring = Scoring::kSigmoid;
  config.router.norm_topk_prob = read_norm(object, config);
  config.has_router_bias = true;
}

void read_sparse_mixer_routing(const JsonObject& object, ModelConfig& config) {
  config.router.scoring = Scoring::kSparseMixer;
  config.router.jitter = read_number(object, "router_jitter_noise", 0.01, 0.0, 1e6);
  if (config.router.num_topk != 2) {
    object.refuse(config.family->keys.num_topk, "2, as sparsemixer chooses");
  }
}

void read_tiny_routing(const JsonObject& object, ModelConfig& config) {
  config.router.scoring = read_scoring(object, config.family->defaults.scoring);
  config.router.norm_topk_prob = read_norm(object, config);
}

void read_every_layer(const JsonObject&, ModelConfig& config) {
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer)
    config.moe_layers.push_back(layer);
}

void read_dense_first(const JsonObject& object, ModelConfig& config) {
  constexpr const char* kKey = "first_k_dense_replace";
  const std::int32_t absent =
      absent_or_none(object, kKey, config.family->defaults.first_dense, std::int32_t{0});
  const std::int32_t first = object.integer_or(kKey, absent, 0, kMaxModelLayers);
  const std::int32_t every = object.integer_or("moe_layer_freq", 1, 1, kMaxModelLayers);
  for (std::int32_t layer = first; layer < config.num_layers; ++layer) {
    if (layer % every == 0) config.moe_layers.push_back(layer);
  }
}

void read_sparse_step(const JsonObject& object, ModelConfig& config) {
  object.refuse_null("decoder_sparse_step");
  const std::int32_t step = object.integer_or("decoder_sparse_step", 1, 1, kMaxModelLayers);
  const std::vector<std::int32_t> dense = read_layer_list(object, "mlp_only_layers");
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % step != 0) continue;
    if (std::binary_search(dense.begin(), dense.end(), layer)) continue;
    config.moe_layers.push_back(layer);
  }
}

void read_moe_layers(const JsonObject& object, ModelConfig& config) {
  config.moe_layers = read_layer_list(object, "moe_layers");
  if (object.has("moe_layers")) {
    if (!config.moe_layers.empty() && config.moe_layers.back() >= config.num_layers) {
      object.refuse("moe_layers", fmt::format("layers below {}", config.num_layers));
    }
    return;
  }
  constexpr const char* kKey = "interleave_moe_layer_step";
  object.refuse_null(kKey);
  const std::int32_t step = object.integer_or(kKey, 1, 1, kMaxModelLayers);
  for (std::int32_t layer = step - 1; layer < config.num_layers; layer += step) {
    config.moe_layers.push_back(layer);
  }
}

void read_layer_range(const JsonObject& object, ModelConfig& config) {
  for (const char* key : {"moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index"}) {
    object.refuse_null(key);
  }
  const std::int32_t step = object.integer_or("moe_layer_interval", 1, 1, kMaxModelLayers);
  const std::int32_t first = object.integer_or("moe_layer_start_index", 1, 0, kMaxModelLayers);
  const std::int32_t last = object.integer_or("moe_layer_end_index", -1, -1, kMaxModelLayers);
  const std::int32_t end = last == -1 ? config.num_layers : std::min(last + 1, config.num_layers);
  for (std::int32_t layer = first; layer < end; ++layer) {
    if ((layer + 1) % step == 0) config.moe_layers.push_back(layer);
  }
}

void read_counted_shared(const JsonObject& object, ModelConfig& config) {
  constexpr const char* kKey = "n_shared_experts";
  const std::int32_t absent =
      absent_or_none(object, kKey, config.family->defaults.num_shared, std::int32_t{0});
  set_shared(object, kKey, object.integer_or(kKey, absent, 0, 1024), config);
}

void read_gated_shared(const JsonObject& object, ModelConfig& config) {
  constexpr const char* kKey = "shared_expert_intermediate_size";
  object.refuse_null(kKey);
  config.shared_intermediate =
      object.integer_or(kKey, config.family->defaults.shared_intermediate, 1, kMaxModelSize);
  config.has_shared_gate = true;
}

void read_one_shared(const JsonObject&, ModelConfig& config) {
  config.shared_intermediate = config.moe_intermediate;
}

void read_ernie_shared(const JsonObject& object, ModelConfig& config) {
  constexpr const char* kKey = "moe_num_shared_experts";
  object.refuse_null(kKey);
  set_shared(object, kKey, object.integer_or(kKey, 2, 0, 1024), config);
  config.has_shared_bias = object.boolean_or("use_bias", false);
}

void read_tiny_shared(const JsonObject& object, ModelConfig& config) {
  constexpr const char* kKey = "shared_intermediate_size";
  read_counted_shared(object, config);
  const bool counts = object.has_key("n_shared_experts");
  if (counts && config.shared_intermediate == 0) return;
  if (!object.has(kKey)) return;
  config.shared_intermediate = object.integer(kKey, 1, kMaxModelSize);
}

void read_clamped_experts(const JsonObject& object, ModelConfig& config) {
  const Activation& published = activations::kGptOss;
  config.activation = published;
  config.activation.alpha = read_number(object, "swiglu_alpha", 1.702, -1e6, 1e6);
  config.activation.limit = read_number(object, "swiglu_limit", published.limit, 1e-6, 1e6);
  config.has_expert_bias = true;
}

void read_weighed_input(const JsonObject&, ModelConfig& config) { config.weighs_input = true; }

}  // namespace switchyard
