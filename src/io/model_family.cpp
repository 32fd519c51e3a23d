// SPDX-License-Identifier: Apache-2.0
//
// Sources: configuration_*.py and modeling_*.py of huggingface/transformers for each family, and
// the modeling_deepseek.py that DeepSeek-V2, V3 and Kimi-K2 ship with their weights.

#include "io/model_family.h"

#include <array>

#include "io/model_rules.h"

namespace switchyard {
namespace {

constexpr ConfigKeys kDeepSeekKeys{
    .num_experts = {"n_routed_experts", "num_experts", "num_local_experts"}};
constexpr ConfigKeys kMixtralKeys{.num_experts = {"num_local_experts", "num_experts"},
                                  .intermediate = "intermediate_size"};

constexpr TensorNames kDeepSeekNames{};
constexpr TensorNames kQwenNames{.shared = "shared_expert"};
constexpr TensorNames kMixtralNames{
    .block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};

constexpr TensorNames kErnieNames{.router_bias = "moe_statics.e_score_correction_bias"};
constexpr TensorNames kGptOssNames{.router = "router.weight",
                                   .router_bias = "router.bias",
                                   .gate = "experts.gate_up_proj",
                                   .up = nullptr,
                                   .down = "experts.down_proj",
                                   .is_interleaved = true};
constexpr TensorNames kGraniteNames{.block = "block_sparse_moe",
                                    .router = "router.layer.weight",
                                    .gate = "input_linear.weight",
                                    .up = nullptr,
                                    .down = "output_linear.weight"};
constexpr TensorNames kHunYuanNames{.router = "gate.wg.weight", .shared = "shared_mlp"};
constexpr TensorNames kLlama4Names{.block = "feed_forward",
                                   .router = "router.weight",
                                   .gate = "experts.gate_up_proj",
                                   .up = nullptr,
                                   .down = "experts.down_proj",
                                   .shared = "shared_expert"};

// transformers 5 keeps all experts of a layer in two tensors, in a block that it calls mlp.
constexpr TensorNames fused(TensorNames names) {
  names.block = "mlp";
  names.gate = "experts.gate_up_proj";
  names.up = nullptr;
  names.down = "experts.down_proj";
  return names;
}

constexpr TensorNames with_router(TensorNames names, const char* router) {
  names.router = router;
  return names;
}

constexpr TensorNames with_router_bias(TensorNames names, const char* bias) {
  names.router_bias = bias;
  return names;
}

constexpr TensorNames mxfp4(TensorNames names) {
  names.is_mxfp4 = true;
  return names;
}

// Granite keeps its block's name.
constexpr TensorNames fused_granite() {
  TensorNames names = with_router(fused(kGraniteNames), "router.weight");
  names.block = kGraniteNames.block;
  return names;
}

// DeepSeek-V3.2 differs from V3 only in attention, Kimi-K2 only in sizes.
constexpr ModelFamily kFamilies[] = {
    {.name = "deepseek_v2",
     .model_types = {"deepseek_v2"},
     .architectures = {"DeepseekV2ForCausalLM"},
     .keys = kDeepSeekKeys,
     .defaults = {.num_shared = 2},
     .routing = read_deepseek_v2_routing,
     .layers = read_dense_first,
     .shared = read_counted_shared,
     .names = {kDeepSeekNames, fused(kDeepSeekNames)}},
    {.name = "deepseek_v3",
     .model_types = {"deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25"},
     .architectures = {"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"},
     .keys = kDeepSeekKeys,
     .defaults = {.scoring = Scoring::kSigmoid,
                  .norm_topk_prob = true,
                  .routed_scaling_factor = 2.5,
                  .topk_method = "noaux_tc",
                  .num_groups = 8,
                  .topk_groups = 4,
                  .num_shared = 1,
                  .first_dense = 3},
     .routing = read_deepseek_routing,
     .layers = read_dense_first,
     .shared = read_counted_shared,
     .names = {kDeepSeekNames, fused(kDeepSeekNames)}},
    {.name = "glm4_moe",
     .model_types = {"glm4_moe", "glm4v_moe_text", "glm4v_moe"},
     .architectures = {"Glm4MoeForCausalLM"},
     .keys = kDeepSeekKeys,
     .defaults = {.scoring = Scoring::kSigmoid,
                  .norm_topk_prob = true,
                  .topk_method = "noaux_tc",
                  .reads_method = false,
                  .num_groups = 1,
                  .topk_groups = 1,
                  .num_shared = 1,
                  .first_dense = 1},
     .routing = read_deepseek_routing,
     .layers = read_dense_first,
     .shared = read_counted_shared,
     .names = {kDeepSeekNames, fused(kDeepSeekNames)}},
    {.name = "dots1",
     .model_types = {"dots1"},
     .architectures = {"Dots1ForCausalLM"},
     .keys = kDeepSeekKeys,
     .defaults = {.scoring = Scoring::kSigmoid,
                  .topk_method = "noaux_tc",
                  .reads_method = false,
                  .num_groups = 1,
                  .topk_groups = 1},
     .routing = read_deepseek_routing,
     .layers = read_dense_first,
     .shared = read_counted_shared,
     .names = {kDeepSeekNames, fused(kDeepSeekNames)}},
    {.name = "qwen2_moe",
     .model_types = {"qwen2_moe"},
     .architectures = {"Qwen2MoeForCausalLM"},
     .defaults = {.shared_intermediate = 5632},
     .routing = read_softmax_routing,
     .layers = read_sparse_step,
     .shared = read_gated_shared,
     .names = {kQwenNames, fused(kQwenNames)}},
    {.name = "qwen3_moe",
     .model_types = {"qwen3_moe"},
     .architectures = {"Qwen3MoeForCausalLM"},
     .routing = read_softmax_routing,
     .layers = read_sparse_step,
     .shared = nullptr,
     .names = {kQwenNames, fused(kQwenNames)}},
    {.name = "qwen3_vl_moe",
     .model_types = {"qwen3_vl_moe_text", "qwen3_vl_moe"},
     .architectures = {"Qwen3VLMoeForConditionalGeneration"},
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_softmax_routing,
     .layers = read_sparse_step,
     .shared = nullptr,
     .names = {fused(kQwenNames), kQwenNames}},
    {.name = "qwen3_next",
     .model_types = {"qwen3_next"},
     .architectures = {"Qwen3NextForCausalLM"},
     .defaults = {.norm_topk_prob = true, .shared_intermediate = 512},
     .routing = read_softmax_routing,
     .layers = read_sparse_step,
     .shared = read_gated_shared,
     .names = {kQwenNames, fused(kQwenNames)}},
    {.name = "qwen3_5_moe",
     .model_types = {"qwen3_5_moe_text", "qwen3_5_moe"},
     .architectures = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
     .defaults = {.norm_topk_prob = true, .reads_norm = false, .shared_intermediate = 512},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = read_gated_shared,
     .names = {kQwenNames, fused(kQwenNames)}},
    {.name = "olmoe",
     .model_types = {"olmoe"},
     .architectures = {"OlmoeForCausalLM"},
     .keys = {.intermediate = "intermediate_size"},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {kQwenNames, fused(kQwenNames)}},
    // Softmax over the chosen logits alone equals softmax over all logits, renormalized.
    {.name = "mixtral",
     .model_types = {"mixtral", "minimax"},
     .architectures = {"MixtralForCausalLM", "MiniMaxForCausalLM"},
     .keys = kMixtralKeys,
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {kMixtralNames, fused(kMixtralNames)}},
    {.name = "granitemoe",
     .model_types = {"granitemoe"},
     .architectures = {"GraniteMoeForCausalLM"},
     .keys = kMixtralKeys,
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {kGraniteNames, fused_granite()}},
    {.name = "hunyuan_v1_moe",
     .model_types = {"hunyuan_v1_moe"},
     .architectures = {"HunYuanMoEV1ForCausalLM"},
     .keys = {.num_topk = "moe_topk", .intermediate = "intermediate_size"},
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = read_one_shared,
     .names = {kHunYuanNames, fused(kHunYuanNames)}},
    {.name = "ernie4_5_moe",
     .model_types = {"ernie4_5_moe"},
     .architectures = {"Ernie4_5_MoeForCausalLM"},
     .keys = {.num_experts = {"moe_num_experts", "num_experts", nullptr}, .num_topk = "moe_k"},
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_ernie_routing,
     .layers = read_layer_range,
     .shared = read_ernie_shared,
     .names = {kErnieNames,
               with_router_bias(fused(kErnieNames), "gate.moe_statics.e_score_correction_bias")}},
    {.name = "minimax_m2",
     .model_types = {"minimax_m2"},
     .architectures = {"MiniMaxM2ForCausalLM"},
     .keys = kMixtralKeys,
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_minimax_m2_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {with_router_bias(kMixtralNames, "e_score_correction_bias"),
               with_router_bias(fused(kMixtralNames), "e_score_correction_bias")}},
    {.name = "phimoe",
     .model_types = {"phimoe"},
     .architectures = {"PhimoeForCausalLM", "PhiMoEForCausalLM"},
     .keys = kMixtralKeys,
     .routing = read_sparse_mixer_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {kMixtralNames, with_router(fused(kMixtralNames), "router.weight")}},
    {.name = "gpt_oss",
     .model_types = {"gpt_oss"},
     .architectures = {"GptOssForCausalLM"},
     .keys = kMixtralKeys,
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_biased_logits_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .experts = read_clamped_experts,
     .names = {kGptOssNames, mxfp4(kGptOssNames)}},
    {.name = "llama4",
     .model_types = {"llama4_text", "llama4"},
     .architectures = {"Llama4ForCausalLM", "Llama4ForConditionalGeneration"},
     .keys = kMixtralKeys,
     .routing = read_llama4_routing,
     .layers = read_moe_layers,
     .shared = read_one_shared,
     .experts = read_weighed_input,
     .names = {kLlama4Names}},
};

constexpr ModelFamily kTinyMoe{.name = "tiny_moe",
                               .model_types = {},
                               .architectures = {},
                               .keys = {.num_experts = {"num_experts"}},
                               .defaults = {.norm_topk_prob = true},
                               .routing = read_tiny_routing,
                               .layers = read_every_layer,
                               .shared = read_tiny_shared,
                               .names = {kDeepSeekNames}};

bool holds(std::span<const char* const> names, std::string_view name) noexcept {
  for (const char* each : names) {
    if (each != nullptr && name == each) return true;
  }
  return false;
}

}  // namespace

const ModelFamily* find_family(std::string_view model_type) noexcept {
  for (const ModelFamily& family : kFamilies) {
    if (holds(family.model_types, model_type)) return &family;
  }
  return nullptr;
}

const ModelFamily* find_family_of_architecture(std::string_view architecture) noexcept {
  for (const ModelFamily& family : kFamilies) {
    if (holds(family.architectures, architecture)) return &family;
  }
  return nullptr;
}

const ModelFamily& tiny_moe_family() noexcept { return kTinyMoe; }

std::string known_families() {
  std::string names;
  for (const ModelFamily& family : kFamilies) names += std::string(" ") + family.name;
  return names;
}

}  // namespace switchyard
