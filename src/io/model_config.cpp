// SPDX-License-Identifier: Apache-2.0

#include "io/model_config.h"

#include <algorithm>
#include <filesystem>

#include "core/fail.h"
#include "core/text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/model_rules.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "read_model_config";
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::int32_t kMaxTopk = 64;

const ModelFamily* find_by_architectures(const JsonObject& object) {
  if (!object.has("architectures")) return nullptr;
  const nlohmann::json& names = object.value("architectures");
  if (!names.is_array()) object.refuse("architectures", "an array of text");
  for (const nlohmann::json& name : names) {
    if (!name.is_string()) object.refuse("architectures", "an array of text");
    const auto* family = find_family_of_architecture(name.get_ref<const std::string&>());
    if (family != nullptr) return family;
  }
  return nullptr;
}

const ModelFamily* find_by_names(const JsonObject& object) {
  const ModelFamily* family = find_family(object.text_or("model_type", ""));
  return family != nullptr ? family : find_by_architectures(object);
}

std::string describe_type(const JsonObject& object) {
  return object.has("model_type") ? quote(object.text_or("model_type", "")) : "absent";
}

// `whole` is the file; `object` is its text_config, or the same.
const ModelFamily& detect_family(const JsonObject& object, const JsonObject& whole,
                                 const std::string& file) {
  if (const ModelFamily* family = find_by_names(object)) return *family;
  if (const ModelFamily* family = find_by_names(whole)) return *family;
  // tiny-moe states neither; these keys identify it.
  if (!object.has("model_type") && !object.has("architectures") && object.has("num_experts") &&
      object.has("scoring_func")) {
    return tiny_moe_family();
  }
  const std::string inner =
      whole.has("text_config") ? fmt::format(", of its text_config {}", describe_type(object)) : "";
  fail(Errc::kNotSupported, "read_model_config: {}: model_type is {}{}, must be one of:{}", file,
       describe_type(whole), inner, known_families());
}

// A number from 1, or a list of them, one for each layer, that are equal (HunYuan).
std::int32_t read_of_every_layer(const JsonObject& object, const char* key, std::int32_t max) {
  if (!object.has(key) || !object.value(key).is_array()) return object.integer(key, 1, max);
  const nlohmann::json& list = object.value(key);
  const std::string want = fmt::format("a number from 1 to {}, or a list of equal ones", max);
  if (list.empty() || !list.front().is_number_unsigned() || list.front() < 1u || list.front() > max)
    object.refuse(key, want);
  for (const nlohmann::json& number : list) {
    if (number != list.front()) object.refuse(key, want);
  }
  return list.front().get<std::int32_t>();
}

// Older and newer configs use different keys for the number of experts; those present must agree.
std::int32_t read_num_experts(const JsonObject& object, const ConfigKeys& keys) {
  const char* first = nullptr;
  for (const char* key : keys.num_experts) {
    if (key == nullptr || !object.has(key)) continue;
    const std::int32_t num_experts = read_of_every_layer(object, key, kMaxModelExperts);
    if (first == nullptr) {
      first = key;
    } else if (num_experts != read_of_every_layer(object, first, kMaxModelExperts)) {
      object.refuse(key, fmt::format("the same as {}", first));
    }
  }
  return read_of_every_layer(object, first == nullptr ? keys.num_experts[0] : first,
                             kMaxModelExperts);
}

void read_quantization(const JsonObject& object, const std::string& file, ModelConfig& config) {
  if (!object.has("quantization_config")) return;
  const std::string place = file + ": quantization_config";
  const JsonObject quantization(object.value("quantization_config"), place, kFunction);
  const std::string method = quantization.text_or("quant_method", "");
  const bool reads_mxfp4 = std::ranges::any_of(
      config.family->names, [](const auto& names) { return names && names->is_mxfp4; });
  config.has_mxfp4_weights = reads_mxfp4 && method == "mxfp4";
  if (config.has_mxfp4_weights) return;
  require(method == "fp8", Errc::kNotSupported,
          "read_model_config: {}: quantization_config has quant_method {}, must be \"fp8\"{}; "
          "dequantize the checkpoint first",
          file, quantization.has("quant_method") ? quote(method) : "absent",
          reads_mxfp4 ? " or \"mxfp4\"" : "");
  const std::string format = quantization.text_or("fmt", "e4m3");
  require(format == "e4m3" || format == "float8_e4m3fn", Errc::kNotSupported,
          "read_model_config: {}: quantization_config has fmt {}, must be \"e4m3\"", file,
          quote(format));
  const nlohmann::json want = {128, 128};
  require(
      quantization.has("weight_block_size") && quantization.value("weight_block_size") == want,
      Errc::kNotSupported,
      "read_model_config: {}: weight_block_size of quantization_config is {}, must be [128, 128]",
      file,
      quantization.has("weight_block_size")
          ? quantization.value("weight_block_size").dump(-1, ' ', true).substr(0, 80)
          : "absent");
  config.has_fp8_weights = true;
}

void check_expert_mlp(const JsonObject& object, const std::string& file) {
  object.refuse_null("hidden_act");
  const std::string activation = object.text_or("hidden_act", "silu");
  require(activation == "silu", Errc::kNotSupported,
          "read_model_config: {}: hidden_act is {}, must be \"silu\"", file, quote(activation));
  require(!object.boolean_or("mlp_bias", false), Errc::kNotSupported,
          "read_model_config: {}: mlp_bias is true, must be experts without biases", file);
}

void check_router(const RouterConfig& router, const ConfigKeys& keys, const std::string& file) {
  require(router.num_topk <= router.num_experts, Errc::kMalformedFile,
          "read_model_config: {}: {} is {}, but there are {} experts", file, keys.num_topk,
          router.num_topk, router.num_experts);
  if (router.group_selection == GroupSelection::kNone) return;
  require(router.num_experts % router.num_groups == 0, Errc::kMalformedFile,
          "read_model_config: {}: n_group is {}, must be a divisor of the {} experts", file,
          router.num_groups, router.num_experts);
  require(router.topk_groups <= router.num_groups, Errc::kMalformedFile,
          "read_model_config: {}: topk_group is {}, but n_group is {}", file, router.topk_groups,
          router.num_groups);
  const std::int32_t group_size = router.num_experts / router.num_groups;
  require(router.group_selection != GroupSelection::kTop2Sum || group_size >= 2,
          Errc::kMalformedFile,
          "read_model_config: {}: n_group {} makes groups of {} expert, must be of at least 2 for "
          "noaux_tc",
          file, router.num_groups, group_size);
  require(router.topk_groups * group_size >= router.num_topk, Errc::kMalformedFile,
          "read_model_config: {}: topk_group {} leaves {} experts, but num_experts_per_tok is {}",
          file, router.topk_groups, router.topk_groups * group_size, router.num_topk);
}

}  // namespace

bool ModelConfig::is_moe_layer(int layer) const noexcept {
  return std::binary_search(moe_layers.begin(), moe_layers.end(), layer);
}

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json(text, file);
  const JsonObject whole(root, file, kFunction);
  const bool is_wrapper = whole.has("text_config");
  const std::string place = is_wrapper ? file + ": text_config" : file;
  const JsonObject object(is_wrapper ? whole.value("text_config") : root, place, kFunction);
  ModelConfig config;
  config.path = file;
  config.family = &detect_family(object, whole, file);
  const ConfigKeys& keys = config.family->keys;
  config.num_layers = object.integer("num_hidden_layers", 1, kMaxModelLayers);
  config.hidden = object.integer("hidden_size", 1, kMaxModelSize);
  config.moe_intermediate = object.integer(keys.intermediate, 1, kMaxModelSize);
  config.router.num_topk = read_of_every_layer(object, keys.num_topk, kMaxTopk);
  config.router.num_experts = read_num_experts(object, keys);
  check_expert_mlp(object, file);
  config.family->routing(object, config);
  config.family->layers(object, config);
  if (config.family->shared != nullptr) config.family->shared(object, config);
  if (config.family->experts != nullptr) config.family->experts(object, config);
  read_quantization(object.has("quantization_config") ? object : whole, file, config);
  check_router(config.router, keys, file);
  require(!config.moe_layers.empty(), Errc::kMalformedFile,
          "read_model_config: {}: all {} layers are dense, must be an MoE layer", file,
          config.num_layers);
  return config;
}

ModelConfig read_model_config(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::string file = is_folder ? path + "/config.json" : path;
  require(!is_folder || std::filesystem::exists(file, ignored), Errc::kInvalidArgument,
          "read_model_config: {} has no config.json, must be the folder of a model", path);
  return parse_model_config(read_text_file(file, kMaxConfigBytes), file);
}

}  // namespace switchyard
