// SPDX-License-Identifier: Apache-2.0
//
// Sources: configuration_*.py and modeling_*.py of huggingface/transformers for each family, and
// the modeling_deepseek.py that DeepSeek-V2 and V3 ship with their weights.

#include "io/model_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "read_model_config";
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::int32_t kMaxSize = 1 << 24;  // limit of hidden and intermediate sizes
constexpr std::int32_t kMaxLayers = 100'000;
constexpr std::int32_t kMaxExperts = 65'535;
constexpr std::int32_t kMaxTopk = 64;

struct FamilyInfo {
  ModelFamily family;
  const char* model_type;
  const char* architecture;
};

// DeepSeek-V3.2 (deepseek_v32) differs from V3 only in attention.
constexpr std::array<FamilyInfo, 6> kFamilies{{
    {ModelFamily::kDeepSeekV2, "deepseek_v2", "DeepseekV2ForCausalLM"},
    {ModelFamily::kDeepSeekV3, "deepseek_v3", "DeepseekV3ForCausalLM"},
    {ModelFamily::kQwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM"},
    {ModelFamily::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM"},
    {ModelFamily::kMixtral, "mixtral", "MixtralForCausalLM"},
    {ModelFamily::kDeepSeekV3, "deepseek_v32", "DeepseekV32ForCausalLM"},
}};

std::optional<ModelFamily> family_of_architectures(const JsonObject& object) {
  if (!object.has("architectures")) return std::nullopt;
  const nlohmann::json& names = object.value("architectures");
  if (!names.is_array()) object.refuse("architectures", "an array of text");
  for (const nlohmann::json& name : names) {
    if (!name.is_string()) object.refuse("architectures", "an array of text");
    for (const FamilyInfo& info : kFamilies) {
      if (name.get_ref<const std::string&>() == info.architecture) return info.family;
    }
  }
  return std::nullopt;
}

ModelFamily detect_family(const JsonObject& object, const std::string& file) {
  const std::string model_type = object.text_or("model_type", "");
  for (const FamilyInfo& info : kFamilies) {
    if (model_type == info.model_type) return info.family;
  }
  if (const auto family = family_of_architectures(object)) return *family;
  // tiny-moe states neither; these keys identify it.
  if (model_type.empty() && !object.has("architectures") && object.has("num_experts") &&
      object.has("scoring_func")) {
    return ModelFamily::kTinyMoe;
  }
  std::string known;
  for (const FamilyInfo& info : kFamilies) known += std::string(" ") + info.model_type;
  fail(Errc::kNotSupported, "read_model_config: {}: model_type is {}, want one of:{}", file,
       object.has("model_type") ? quote(model_type) : "absent", known);
}

// Older and newer configs use different keys for the number of experts; those present must agree.
std::int32_t read_num_experts(const JsonObject& object, std::initializer_list<const char*> keys) {
  const char* first = nullptr;
  for (const char* key : keys) {
    if (!object.has(key)) continue;
    const std::int32_t num_experts = object.integer(key, 1, kMaxExperts);
    if (first == nullptr) {
      first = key;
    } else if (num_experts != object.integer(first, 1, kMaxExperts)) {
      object.refuse(key, fmt::format("the same as {}", first));
    }
  }
  return object.integer(first == nullptr ? *keys.begin() : first, 1, kMaxExperts);
}

// Combined size of n_shared_experts shared experts, each as large as a routed one.
std::int32_t read_shared_intermediate(const JsonObject& object, std::int32_t moe_intermediate,
                                      std::int32_t num_shared_absent) {
  // A null value means "none"; only a missing key gets the default.
  const std::int32_t absent = object.has_key("n_shared_experts") ? 0 : num_shared_absent;
  const std::int32_t num_shared = object.integer_or("n_shared_experts", absent, 0, 1024);
  const std::int64_t total = std::int64_t{num_shared} * moe_intermediate;
  if (total > kMaxSize) {
    object.refuse("n_shared_experts",
                  fmt::format("at most {} elements in all shared experts", kMaxSize));
  }
  return static_cast<std::int32_t>(total);
}

Scoring read_scoring(const JsonObject& object, Scoring absent) {
  if (!object.has("scoring_func")) return absent;
  const std::string name = object.text_or("scoring_func", "");
  if (name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  object.refuse("scoring_func", "\"softmax\" or \"sigmoid\"");
}

float read_scaling_factor(const JsonObject& object, double absent) {
  const double factor = object.number_or("routed_scaling_factor", absent);
  if (!(factor >= 1e-6 && factor <= 1e6)) {
    object.refuse("routed_scaling_factor", "a number from 1e-6 to 1e6");
  }
  return static_cast<float>(factor);
}

void read_groups(const JsonObject& object, ModelConfig& config) {
  const bool is_v3 = config.family == ModelFamily::kDeepSeekV3;
  const std::string method = object.text_or("topk_method", is_v3 ? "noaux_tc" : "greedy");
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
  // V2's configuration class has no defaults for the groups; V3's defaults are 8 and 4.
  const bool has_default = is_v3;
  router.num_groups = has_default ? object.integer_or("n_group", 8, 1, kMaxExperts)
                                  : object.integer("n_group", 1, kMaxExperts);
  router.topk_groups = has_default ? object.integer_or("topk_group", 4, 1, kMaxExperts)
                                   : object.integer("topk_group", 1, kMaxExperts);
}

void read_deepseek(const JsonObject& object, ModelConfig& config) {
  const bool is_v3 = config.family == ModelFamily::kDeepSeekV3;
  RouterConfig& router = config.router;
  router.num_experts =
      read_num_experts(object, {"n_routed_experts", "num_experts", "num_local_experts"});
  router.scoring = read_scoring(object, is_v3 ? Scoring::kSigmoid : Scoring::kSoftmax);
  const bool norm = object.boolean_or("norm_topk_prob", is_v3);
  const float factor = read_scaling_factor(object, is_v3 ? 2.5 : 1.0);
  if (is_v3) {
    router.norm_topk_prob = norm;
    router.routed_scaling_factor = factor;
  } else {
    // V2's gate normalises or scales, never both, and does not normalise a single expert.
    router.norm_topk_prob = norm && router.num_topk > 1;
    router.routed_scaling_factor = router.norm_topk_prob ? 1.0f : factor;
  }
  read_groups(object, config);
  config.shared_intermediate =
      read_shared_intermediate(object, config.moe_intermediate, is_v3 ? 1 : 2);

  const std::int32_t first =
      object.integer_or("first_k_dense_replace", is_v3 ? 3 : 0, 0, kMaxLayers);
  const std::int32_t every = object.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  for (std::int32_t layer = first; layer < config.num_layers; ++layer) {
    if (layer % every == 0) config.moe_layers.push_back(layer);
  }
}

std::vector<std::int32_t> read_dense_layers(const JsonObject& object) {
  std::vector<std::int32_t> layers;
  if (!object.has("mlp_only_layers")) return layers;
  const nlohmann::json& list = object.value("mlp_only_layers");
  if (!list.is_array()) object.refuse("mlp_only_layers", "an array of layers");
  for (const nlohmann::json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<std::uint64_t>() >= kMaxLayers) {
      object.refuse("mlp_only_layers",
                    fmt::format("whole numbers from 0, not {}", describe_json(layer)));
    }
    layers.push_back(layer.get<std::int32_t>());
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

void read_qwen(const JsonObject& object, ModelConfig& config) {
  config.router.num_experts = read_num_experts(object, {"num_experts", "num_local_experts"});
  config.router.norm_topk_prob = object.boolean_or("norm_topk_prob", false);
  if (config.family == ModelFamily::kQwen2Moe) {
    config.shared_intermediate =
        object.integer_or("shared_expert_intermediate_size", 5632, 1, kMaxSize);
    config.has_shared_gate = true;
  }
  const std::int32_t step = object.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<std::int32_t> dense = read_dense_layers(object);
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % step != 0) continue;
    if (std::binary_search(dense.begin(), dense.end(), layer)) continue;
    config.moe_layers.push_back(layer);
  }
}

void every_layer(ModelConfig& config) {
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer)
    config.moe_layers.push_back(layer);
}

void read_mixtral(const JsonObject& object, ModelConfig& config) {
  config.router.num_experts = read_num_experts(object, {"num_local_experts", "num_experts"});
  // Softmax over the chosen logits alone equals softmax over all logits, renormalised.
  config.router.norm_topk_prob = true;
  every_layer(config);
}

void read_tiny(const JsonObject& object, ModelConfig& config) {
  config.router.num_experts = object.integer("num_experts", 1, kMaxExperts);
  config.router.scoring = read_scoring(object, Scoring::kSoftmax);
  config.router.norm_topk_prob = object.boolean_or("norm_topk_prob", true);
  config.shared_intermediate = read_shared_intermediate(
      object, config.moe_intermediate, object.has("shared_intermediate_size") ? 1 : 0);
  if (config.shared_intermediate > 0) {
    config.shared_intermediate =
        object.integer_or("shared_intermediate_size", config.shared_intermediate, 1, kMaxSize);
  }
  every_layer(config);
}

void read_quantization(const JsonObject& object, const std::string& file, ModelConfig& config) {
  if (!object.has("quantization_config")) return;
  const std::string place = file + ": quantization_config";
  const JsonObject quantization(object.value("quantization_config"), place, kFunction);
  const std::string method = quantization.text_or("quant_method", "");
  const std::string format = quantization.text_or("fmt", "e4m3");
  require(method == "fp8" && format == "e4m3", Errc::kNotSupported,
          "read_model_config: {}: quantization_config has quant_method {} and fmt {}, want \"fp8\" "
          "and \"e4m3\"",
          file, quote(method), quote(format));
  const nlohmann::json want = {128, 128};
  require(quantization.has("weight_block_size") && quantization.value("weight_block_size") == want,
          Errc::kNotSupported,
          "read_model_config: {}: weight_block_size of quantization_config is {}, want [128, 128]",
          file,
          quantization.has("weight_block_size")
              ? quantization.value("weight_block_size").dump(-1, ' ', true).substr(0, 80)
              : "absent");
  config.has_fp8_weights = true;
}

void check_expert_mlp(const JsonObject& object, const std::string& file) {
  const std::string activation = object.text_or("hidden_act", "silu");
  require(activation == "silu", Errc::kNotSupported,
          "read_model_config: {}: hidden_act is {}, want \"silu\"", file, quote(activation));
  require(!object.boolean_or("mlp_bias", false), Errc::kNotSupported,
          "read_model_config: {}: mlp_bias is true, want experts without biases", file);
}

void check_router(const RouterConfig& router, const std::string& file) {
  require(router.num_topk <= router.num_experts, Errc::kMalformedFile,
          "read_model_config: {}: num_experts_per_tok is {}, but there are {} experts", file,
          router.num_topk, router.num_experts);
  if (router.group_selection == GroupSelection::kNone) return;
  require(router.num_experts % router.num_groups == 0, Errc::kMalformedFile,
          "read_model_config: {}: n_group is {}, want a divisor of the {} experts", file,
          router.num_groups, router.num_experts);
  require(router.topk_groups <= router.num_groups, Errc::kMalformedFile,
          "read_model_config: {}: topk_group is {}, but n_group is {}", file, router.topk_groups,
          router.num_groups);
  const std::int32_t group_size = router.num_experts / router.num_groups;
  require(router.group_selection != GroupSelection::kTop2Sum || group_size >= 2,
          Errc::kMalformedFile,
          "read_model_config: {}: n_group {} makes groups of {} expert, noaux_tc wants at least 2",
          file, router.num_groups, group_size);
  require(router.topk_groups * group_size >= router.num_topk, Errc::kMalformedFile,
          "read_model_config: {}: topk_group {} leaves {} experts, but num_experts_per_tok is {}",
          file, router.topk_groups, router.topk_groups * group_size, router.num_topk);
}

}  // namespace

const char* name_of(ModelFamily family) noexcept {
  for (const FamilyInfo& info : kFamilies) {
    if (info.family == family) return info.model_type;
  }
  return "tiny_moe";
}

bool ModelConfig::is_moe_layer(int layer) const noexcept {
  return std::binary_search(moe_layers.begin(), moe_layers.end(), layer);
}

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json(text, file);
  const JsonObject object(root, file, kFunction);
  ModelConfig config;
  config.path = file;
  config.family = detect_family(object, file);
  config.num_layers = object.integer("num_hidden_layers", 1, kMaxLayers);
  config.hidden = object.integer("hidden_size", 1, kMaxSize);
  const bool is_mixtral = config.family == ModelFamily::kMixtral;
  config.moe_intermediate =
      object.integer(is_mixtral ? "intermediate_size" : "moe_intermediate_size", 1, kMaxSize);
  config.router.num_topk = object.integer("num_experts_per_tok", 1, kMaxTopk);
  check_expert_mlp(object, file);
  switch (config.family) {
    case ModelFamily::kDeepSeekV2:
    case ModelFamily::kDeepSeekV3: read_deepseek(object, config); break;
    case ModelFamily::kQwen2Moe:
    case ModelFamily::kQwen3Moe: read_qwen(object, config); break;
    case ModelFamily::kMixtral: read_mixtral(object, config); break;
    case ModelFamily::kTinyMoe: read_tiny(object, config); break;
  }
  read_quantization(object, file, config);
  check_router(config.router, file);
  require(!config.moe_layers.empty(), Errc::kMalformedFile,
          "read_model_config: {}: all {} layers are dense, want an MoE layer", file,
          config.num_layers);
  return config;
}

ModelConfig read_model_config(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string file = is_folder ? path + "/config.json" : path;
  return parse_model_config(read_text_file(file, kMaxConfigBytes), file);
}

}  // namespace switchyard
