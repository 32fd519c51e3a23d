// SPDX-License-Identifier: Apache-2.0
//
// model_rules.h: what config.json means, as rules that rows of the family table name. Each reads
// its keys from the object, takes the family's defaults for absent ones, and sets its part of the
// config. A key that is null means none, as in transformers: no groups, no scaling, no
// normalization, no shared experts, no dense layers. Lists of layers, topk_method, scoring_func and
// moe_layer_freq count as absent when they are null. DeepSeek's keys are read as by the code that
// ships with the weights.
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
/// The same with a bias on the logits, which is a part of the router (gpt-oss).
void read_biased_logits_routing(const JsonObject& object, ModelConfig& config);
/// The same with a bias for the choice, and moe_norm_min (Ernie-4.5).
void read_ernie_routing(const JsonObject& object, ModelConfig& config);
/// Top-1 by logits, weighted by their sigmoid (Llama-4).
void read_llama4_routing(const JsonObject& object, ModelConfig& config);
/// Top-k of a sigmoid with a bias for the choice, normalized (MiniMax-M2).
void read_minimax_m2_routing(const JsonObject& object, ModelConfig& config);
/// Two by sparsemixer (PhiMoE).
void read_sparse_mixer_routing(const JsonObject& object, ModelConfig& config);
void read_tiny_routing(const JsonObject& object, ModelConfig& config);

void read_every_layer(const JsonObject& object, ModelConfig& config);
/// first_k_dense_replace and moe_layer_freq.
void read_dense_first(const JsonObject& object, ModelConfig& config);
/// decoder_sparse_step and mlp_only_layers.
void read_sparse_step(const JsonObject& object, ModelConfig& config);

/// moe_layers, else interleave_moe_layer_step (Llama-4).
void read_moe_layers(const JsonObject& object, ModelConfig& config);
/// moe_layer_interval from moe_layer_start_index to moe_layer_end_index (Ernie-4.5).
void read_layer_range(const JsonObject& object, ModelConfig& config);

/// n_shared_experts, each as large as a routed one.
void read_counted_shared(const JsonObject& object, ModelConfig& config);
/// shared_expert_intermediate_size, with a gate.
void read_gated_shared(const JsonObject& object, ModelConfig& config);
/// One as large as a routed one (Llama-4, HunYuan).
void read_one_shared(const JsonObject& object, ModelConfig& config);
/// moe_num_shared_experts, with biases where use_bias says so (Ernie-4.5).
void read_ernie_shared(const JsonObject& object, ModelConfig& config);
void read_tiny_shared(const JsonObject& object, ModelConfig& config);

/// Biases, and swiglu_alpha and swiglu_limit (gpt-oss).
void read_clamped_experts(const JsonObject& object, ModelConfig& config);
/// The weight is applied before them (Llama-4).
void read_weighed_input(const JsonObject& object, ModelConfig& config);

}  // namespace switchyard
