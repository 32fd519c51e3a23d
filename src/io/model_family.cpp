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

// transformers 5 keeps all experts of a layer in two tensors, in a block that it calls mlp.
constexpr TensorNames fused(TensorNames names) {
  names.block = "mlp";
  names.gate = "experts.gate_up_proj";
  names.up = nullptr;
  names.down = "experts.down_proj";
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
     .names = {fused(kQwenNames)}},
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
     .model_types = {"mixtral"},
     .architectures = {"MixtralForCausalLM"},
     .keys = kMixtralKeys,
     .defaults = {.norm_topk_prob = true, .reads_norm = false},
     .routing = read_softmax_routing,
     .layers = read_every_layer,
     .shared = nullptr,
     .names = {kMixtralNames, fused(kMixtralNames)}},
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

std::string known_model_types() {
  std::string types;
  for (const ModelFamily& family : kFamilies) {
    for (const char* type : family.model_types) {
      if (type != nullptr) types += std::string(" ") + type;
    }
  }
  return types;
}

}  // namespace switchyard
