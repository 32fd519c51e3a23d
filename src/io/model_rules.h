// SPDX-License-Identifier: Apache-2.0
//
// model_rules.h: what config.json means, as rules that rows of the family table name. Each reads
// its keys from the object, takes the family's defaults for absent ones, and sets its part of the
// config. A key that is null means none, as in transformers: no groups, no scaling, no
// normalization, no shared experts, no dense layers.
//
// Errors of all rules: kMalformedFile, naming file, key and value.
#pragma once

#include "io/json.h"
#include "io/model_config.h"

namespace switchyard {

inline constexpr std::int32_t kMaxModelSize = 1 << 24;  ///< of hidden and intermediate sizes
inline constexpr std::int32_t kMaxModelLayers = 100'000;
inline constexpr std::int32_t kMaxModelExperts = 65'535;

/// Scores and top-k of all experts or of the best groups (DeepSeek-V3, GLM-4.5, dots.llm1).
void read_deepseek_routing(const JsonObject& object, ModelConfig& config);
/// V2's gate normalizes or scales, never both.
void read_deepseek_v2_routing(const JsonObject& object, ModelConfig& config);
/// Top-k of a softmax, normalized or not (Qwen, OLMoE, Mixtral).
void read_softmax_routing(const JsonObject& object, ModelConfig& config);
void read_tiny_routing(const JsonObject& object, ModelConfig& config);

void read_every_layer(const JsonObject& object, ModelConfig& config);
/// first_k_dense_replace and moe_layer_freq.
void read_dense_first(const JsonObject& object, ModelConfig& config);
/// decoder_sparse_step and mlp_only_layers.
void read_sparse_step(const JsonObject& object, ModelConfig& config);

/// n_shared_experts, each as large as a routed one.
void read_counted_shared(const JsonObject& object, ModelConfig& config);
/// shared_expert_intermediate_size, with a gate.
void read_gated_shared(const JsonObject& object, ModelConfig& config);
void read_tiny_shared(const JsonObject& object, ModelConfig& config);

}  // namespace switchyard
