// SPDX-License-Identifier: Apache-2.0
//
// moe_layer.h: loads the weights of one MoE layer from a checkpoint: the experts of one rank,
// stacked as the expert kernels expect them, the router, and the shared experts. Only the bytes of
// these tensors are read.
//
// Letters used for shapes in this header:
//   L  local experts     H  hidden     I  intermediate elements     E  experts of the layer
#pragma once

#include <cstdint>
#include <span>

#include "switchyard/experts.h"
#include "switchyard/tensor.h"

#include "io/checkpoint.h"
#include "io/model_config.h"

namespace switchyard {

/// Owned weights in the shapes of ExpertWeights; scales are absent unless the weights are e4m3,
/// with f32 scales of 128 x 128 blocks, or e2m1, with e8m0 scales of blocks of 32 (mxfp4).
struct ExpertTensors {
  Tensor gate;        ///< [L, I, H] bf16, f16, f32, e4m3 or e2m1
  Tensor up;          ///< [L, I, H]
  Tensor down;        ///< [L, H, I]
  Tensor gate_scale;  ///< [L, cdiv(I, block.outputs), cdiv(H, block.inputs)]
  Tensor up_scale;
  Tensor down_scale;  ///< [L, cdiv(H, block.outputs), cdiv(I, block.inputs)]
  WeightBlock block;
  Tensor gate_bias;  ///< [L, I] f32, or absent
  Tensor up_bias;    ///< [L, I]
  Tensor down_bias;  ///< [L, H]

  bool has_value() const noexcept { return gate.view().has_value(); }
  /// Views, valid as long as the tensors exist.
  ExpertWeights view() const;
};

struct MoeLayerWeights {
  std::int32_t layer = 0;
  ExpertTensors experts;  ///< in the requested order
  ExpertTensors shared;   ///< L = 1, I = config.shared_intermediate; absent without shared experts
  Tensor router_gate;     ///< [E, H] bf16, f16 or f32
  Tensor router_bias;     ///< [E] f32, or absent; config.router.bias_on_logits says what it is for
  Tensor shared_gate;  ///< [1, H] (Qwen2-MoE): scales shared output by sigmoid(gate . x); or absent
};

/// The first MoE layer that the checkpoint holds. Errors: kInvalidArgument when it holds none.
std::int32_t first_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config);

/// `layer` -1 means first_moe_layer(). `expert_ids` may be empty and may repeat an id.
///
/// Errors: kInvalidArgument when the layer is dense (the message lists the MoE layers), out of
/// range or not in the checkpoint, or when an expert id is out of range; kMalformedFile when a
/// tensor is missing or its shape or dtype is not what config.json states (the message names
/// tensor, file and both shapes); kOutOfMemory.
MoeLayerWeights load_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                               std::int32_t layer, std::span<const std::int32_t> expert_ids);

/// Loads experts first_expert to first_expert + num_local_experts - 1.
MoeLayerWeights load_moe_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                               std::int32_t layer, std::int32_t first_expert,
                               std::int32_t num_local_experts);

}  // namespace switchyard
