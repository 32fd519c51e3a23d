// SPDX-License-Identifier: Apache-2.0
//
// model_config.h: what an MoE layer needs to know from a Hugging Face config.json of a family of
// model_family.h, or of a wrapper that keeps one in text_config.
//
// Sizes must be stated in the file; keys that only control behaviour fall back to the defaults of
// the family's Hugging Face configuration class.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/activation.h"
#include "switchyard/router.h"

#include "io/model_family.h"

namespace switchyard {

struct ModelConfig {
  std::string path;                     ///< of config.json, for messages
  const ModelFamily* family = nullptr;  ///< never null once read
  std::int32_t num_layers = 0;
  std::int32_t hidden = 0;
  std::int32_t moe_intermediate = 0;     ///< of one routed expert
  std::int32_t shared_intermediate = 0;  ///< of all shared experts combined; 0: there are none
  bool has_shared_gate = false;  ///< Qwen2-MoE: shared output is scaled by sigmoid(gate . x)
  bool has_router_bias = false;  ///< router.bias_on_logits says what it is for
  bool has_expert_bias = false;  ///< of gate, up and down of routed experts
  bool has_shared_bias = false;  ///< of gate, up and down of the shared expert
  bool weighs_input = false;     ///< the weight of a token's one expert multiplies the input
  /// The config declares e4m3 weights with one scale per 128 x 128 block. Individual modules may
  /// still be unquantized: the dtype of each tensor decides.
  bool has_fp8_weights = false;
  bool has_mxfp4_weights = false;        ///< it declares experts in mxfp4, likewise
  Activation activation{};               ///< of routed experts; shared ones are silu(gate) * up
  RouterConfig router;                   ///< num_experts, num_topk, scoring, norm, groups
  std::vector<std::int32_t> moe_layers;  ///< ascending, never empty; other layers are dense

  std::int32_t num_experts() const noexcept { return router.num_experts; }
  std::int32_t num_topk() const noexcept { return router.num_topk; }
  bool is_moe_layer(int layer) const noexcept;
};

/// `path` is a config.json or the folder that holds it.
///
/// Errors: kSystem (open); kMalformedFile, naming file, key and value (not JSON, missing key, wrong
/// type, value out of range, contradictory values); kNotSupported (any other family, activation or
/// quantization, experts with biases in a family that has none).
ModelConfig read_model_config(const std::string& path);

/// Parses the text of a config.json; messages name `file`. Errors: those of read_model_config.
ModelConfig parse_model_config(std::string_view text, const std::string& file);

}  // namespace switchyard
