// SPDX-License-Identifier: Apache-2.0
//
// published_configs.h: the MoE part of the published config.json of each model.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace switchyard::test {

inline constexpr const char* kV2Lite = R"({"architectures": ["DeepseekV2ForCausalLM"],
 "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
 "intermediate_size": 10944, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
 "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
 "num_hidden_layers": 27, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
 "topk_group": 1, "topk_method": "greedy"})";
inline constexpr const char* kV2 = R"({"model_type": "deepseek_v2", "first_k_dense_replace": 1,
 "hidden_size": 5120, "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8,
 "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
 "num_hidden_layers": 60, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "topk_group": 3,
 "topk_method": "group_limited_greedy"})";
inline constexpr const char* kV3 = R"({"model_type": "deepseek_v3", "first_k_dense_replace": 3,
 "hidden_size": 7168, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
 "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
 "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "quantization_config":
 {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
 "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc"})";
inline constexpr const char* kKimiK2 =
    R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
 "first_k_dense_replace": 1, "hidden_size": 7168, "moe_intermediate_size": 2048, "n_group": 1,
 "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
 "num_hidden_layers": 61, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_group": 1,
 "topk_method": "noaux_tc"})";
inline constexpr const char* kQwen2 =
    R"({"model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 3584,
 "intermediate_size": 18944, "decoder_sparse_step": 1, "moe_intermediate_size": 2560,
 "shared_expert_intermediate_size": 20480, "norm_topk_prob": false, "num_experts": 64,
 "num_experts_per_tok": 8, "num_hidden_layers": 28})";
inline constexpr const char* kQwen3 =
    R"({"model_type": "qwen3_moe", "decoder_sparse_step": 1, "hidden_size": 2048,
 "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_experts": 128,
 "num_experts_per_tok": 8, "num_hidden_layers": 48})";
inline constexpr const char* kMixtral8x7B = R"({"model_type": "mixtral", "hidden_size": 4096,
 "intermediate_size": 14336, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_local_experts": 8})";
inline constexpr const char* kOlmoe = R"({"model_type": "olmoe", "hidden_act": "silu",
 "hidden_size": 2048, "intermediate_size": 1024, "norm_topk_prob": false, "num_experts": 64,
 "num_experts_per_tok": 8, "num_hidden_layers": 16})";
inline constexpr const char* kGlm = R"({"architectures": ["Glm4MoeForCausalLM"],
 "model_type": "glm4_moe", "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 5120,
 "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 160,
 "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8, "num_hidden_layers": 92,
 "num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5, "topk_group": 1})";
inline constexpr const char* kDots = R"({"model_type": "dots1", "first_k_dense_replace": 1,
 "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_group": 1,
 "n_routed_experts": 128, "n_shared_experts": 2, "norm_topk_prob": true, "num_experts_per_tok": 6,
 "num_hidden_layers": 62, "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc",
 "topk_group": 1, "topk_method": "noaux_tc"})";
inline constexpr const char* kQwen3Next = R"({"model_type": "qwen3_next",
 "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 5120, "mlp_only_layers": [],
 "moe_intermediate_size": 512, "norm_topk_prob": true, "num_experts": 512,
 "num_experts_per_tok": 10, "num_hidden_layers": 48, "shared_expert_intermediate_size": 512})";

/// Returns `text` with the first `from` replaced by `to`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace switchyard::test
