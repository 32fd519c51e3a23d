// SPDX-License-Identifier: Apache-2.0
//
// model_family.h: the model families that are read. A family is one row of the table in
// model_family.cpp: its names, what its config.json means, and how its tensors are called. What a
// config means is said by rules (model_rules.h), which families share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "switchyard/router.h"

namespace switchyard {

class JsonObject;
struct ModelConfig;

/// Where a config.json states the sizes.
struct ConfigKeys {
  const char* num_experts[3] = {"num_experts", "num_local_experts", nullptr};  ///< any of these
  const char* num_topk = "num_experts_per_tok";
  const char* intermediate = "moe_intermediate_size";
};

/// What an absent key means: the default of the family's Hugging Face configuration class.
struct FamilyDefaults {
  Scoring scoring = Scoring::kSoftmax;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1.0;
  const char* topk_method = "greedy";
  /// False: the family's block has one way to score and choose, and ignores these keys.
  bool reads_method = true;      ///< scoring_func and topk_method
  bool reads_norm = true;        ///< norm_topk_prob
  std::int32_t num_groups = 0;   ///< 0: must be stated
  std::int32_t topk_groups = 0;  ///< 0: must be stated
  std::int32_t num_shared = 0;
  std::int32_t shared_intermediate = 0;
  std::int32_t first_dense = 0;  ///< first_k_dense_replace
};

/// Names of the tensors of an MoE layer, under "PREFIX.layers.N.BLOCK.".
struct TensorNames {
  const char* block = "mlp";
  const char* router = "gate.weight";
  const char* router_bias = "gate.e_score_correction_bias";  ///< [E] or [1, E]
  /// Projections of expert E, each "experts.E.NAME.weight". Where `up` is null all experts are in
  /// two tensors: `gate`, [E, 2I, H], gate before up, and `down`, [E, H, I]; both may be transposed
  /// in their last two dimensions, which the shapes tell.
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  bool is_interleaved = false;            ///< of fused experts: rows of gate and up alternate
  bool is_mxfp4 = false;                  ///< of fused experts: each in NAME_blocks and NAME_scales
  const char* shared = "shared_experts";  ///< module of the shared experts
  const char* shared_gate = "shared_expert_gate.weight";

  bool is_fused() const noexcept { return up == nullptr; }
};

using ConfigRule = void (*)(const JsonObject& object, ModelConfig& config);

struct ModelFamily {
  const char* name;  ///< the model_type of its first model
  /// A config matches by its model_type, else by its architectures; so does the text_config of a
  /// wrapper, else the wrapper itself.
  const char* model_types[6];
  const char* architectures[4];
  ConfigKeys keys{};
  FamilyDefaults defaults{};
  ConfigRule routing;  ///< sets config.router and has_router_bias
  ConfigRule layers;   ///< sets config.moe_layers
  ConfigRule shared;   ///< sets shared_intermediate and has_shared_gate; null: no shared expert
  ConfigRule experts = nullptr;  ///< sets activation, has_expert_bias, weighs_input; null: defaults
  /// As published, and with fused experts as transformers 5 writes them; families may have one.
  std::optional<TensorNames> names[2] = {};
};

/// The family that has this model_type, or null.
const ModelFamily* find_family(std::string_view model_type) noexcept;
/// The family that has this architecture, or null.
const ModelFamily* find_family_of_architecture(std::string_view architecture) noexcept;
/// tiny-moe, which states neither.
const ModelFamily& tiny_moe_family() noexcept;
/// " deepseek_v2 deepseek_v3 ...", for messages.
std::string known_families();

}  // namespace switchyard
