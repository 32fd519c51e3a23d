// SPDX-License-Identifier: Apache-2.0
//
// synthetic_family.h: the small model of each family that synthetic_checkpoint.cpp writes.
#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace switchyard::test {

enum class SyntheticFamily { kDeepSeekV2, kDeepSeekV3, kQwen2Moe, kQwen3Moe, kMixtral, kTinyMoe };

inline const char* name_of(SyntheticFamily family) {
  constexpr const char* kNames[] = {"deepseek_v2", "deepseek_v3", "qwen2_moe",
                                    "qwen3_moe",   "mixtral",     "tiny_moe"};
  return kNames[static_cast<int>(family)];
}

enum class Groups { kNone, kBest, kTop2 };

// Restates what a family's published model code does.
struct Family {
  std::string config;  // additional lines of config.json
  int hidden, intermediate, shared, num_experts, num_topk, num_layers, layer;
  bool sigmoid = false;
  Groups groups = Groups::kNone;
  int num_groups = 1, topk_groups = 1;
  bool bias = false, norm = false, gated = false;
  double scale = 1.0;
  bool has_dense_layer = true;
  const char* block = "mlp";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared_block = "shared_experts";
};

inline Family deepseek_v2(int norm) {
  Family f{};
  f.hidden = 48, f.intermediate = 40, f.shared = 80, f.num_experts = 12, f.num_topk = 3;
  f.num_layers = 3, f.layer = 1;
  f.groups = Groups::kBest, f.num_groups = 4, f.topk_groups = 2;
  f.norm = norm == 1;
  f.scale = f.norm ? 1.0 : 16.0;  // V2's gate either normalizes or scales
  f.config = fmt::format(
      R"("model_type": "deepseek_v2", "n_routed_experts": 12, "moe_intermediate_size": 40,
 "intermediate_size": 56, "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
 "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy", "scoring_func": "softmax",
 "norm_topk_prob": {}, "routed_scaling_factor": 16.0)",
      f.norm);
  return f;
}

inline Family deepseek_v3(int norm) {
  Family f{};
  f.hidden = 192, f.intermediate = 144, f.shared = 144, f.num_experts = 8, f.num_topk = 3;
  f.num_layers = 4, f.layer = 2;
  f.sigmoid = true, f.bias = true;
  f.groups = Groups::kTop2, f.num_groups = 4, f.topk_groups = 2;
  f.norm = norm != 0;
  f.scale = 2.5;
  f.config = fmt::format(
      R"("model_type": "deepseek_v3", "n_routed_experts": 8, "moe_intermediate_size": 144,
 "intermediate_size": 160, "n_shared_experts": 1, "first_k_dense_replace": 2, "moe_layer_freq": 1,
 "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
 "norm_topk_prob": {}, "routed_scaling_factor": 2.5)",
      f.norm);
  return f;
}

inline Family qwen2_moe() {
  Family f{};
  f.hidden = 40, f.intermediate = 24, f.shared = 56, f.num_experts = 6, f.num_topk = 2;
  f.num_layers = 4, f.layer = 3;
  f.gated = true, f.shared_block = "shared_expert";
  f.config =
      R"("model_type": "qwen2_moe", "num_experts": 6, "moe_intermediate_size": 24,
 "intermediate_size": 64, "shared_expert_intermediate_size": 56, "decoder_sparse_step": 2,
 "mlp_only_layers": [1], "norm_topk_prob": false)";
  return f;
}

inline Family qwen3_moe() {
  Family f{};
  f.hidden = 136, f.intermediate = 24, f.shared = 0, f.num_experts = 9, f.num_topk = 4;
  f.num_layers = 2, f.layer = 1;
  f.norm = true;
  f.config =
      R"("model_type": "qwen3_moe", "num_experts": 9, "moe_intermediate_size": 24,
 "intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": [0], "norm_topk_prob": true)";
  return f;
}

inline Family mixtral() {
  Family f{};
  f.hidden = 32, f.intermediate = 56, f.shared = 0, f.num_experts = 4, f.num_topk = 2;
  f.num_layers = 1, f.layer = 0;
  f.norm = true;  // softmax over the chosen logits
  f.has_dense_layer = false;
  f.block = "block_sparse_moe", f.gate = "w1", f.up = "w3", f.down = "w2";
  f.config = R"("model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 56)";
  return f;
}

inline Family tiny_moe() {
  Family f{};
  f.hidden = 24, f.intermediate = 20, f.shared = 36, f.num_experts = 7, f.num_topk = 2;
  f.num_layers = 2, f.layer = 1;
  f.norm = true;
  f.has_dense_layer = false;
  f.config =
      R"("num_experts": 7, "moe_intermediate_size": 20, "n_shared_experts": 1,
 "shared_intermediate_size": 36, "norm_topk_prob": true, "scoring_func": "softmax")";
  return f;
}

inline Family family_of(SyntheticFamily family, int norm_topk_prob) {
  switch (family) {
    case SyntheticFamily::kDeepSeekV2: return deepseek_v2(norm_topk_prob);
    case SyntheticFamily::kDeepSeekV3: return deepseek_v3(norm_topk_prob);
    case SyntheticFamily::kQwen2Moe: return qwen2_moe();
    case SyntheticFamily::kQwen3Moe: return qwen3_moe();
    case SyntheticFamily::kMixtral: return mixtral();
    case SyntheticFamily::kTinyMoe: return tiny_moe();
  }
  throw std::logic_error("family");
}

}  // namespace switchyard::test
