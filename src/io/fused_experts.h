// SPDX-License-Identifier: Apache-2.0
//
// fused_experts.h: reads the projections of experts that share two tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint.h"
#include "io/expert_tensors.h"
#include "io/model_family.h"
#include "io/moe_layer.h"

namespace switchyard {

/// All experts' projections in two tensors, of which those of `expert_ids` are loaded.
struct FusedExperts {
  const Checkpoint& checkpoint;
  const std::string& block;  ///< what comes before names.gate and names.down
  const TensorNames& names;
  MlpSizes sizes;
  std::int64_t num_experts;
  std::span<const std::int32_t> expert_ids;
};

inline constexpr const char* kBlocksSuffix = "_blocks";

/// Of bf16, f16, f32, or e4m3 with scales.
void load_fused_experts(const FusedExperts& fused, ExpertTensors& out);

/// mxfp4: NAME_blocks, u8 [E, outputs, inputs / 32, 16] with two codes to a byte, the first in the
/// low half, and NAME_scales, u8 [E, outputs, inputs / 32] of e8m0.
void load_mxfp4_experts(const FusedExperts& fused, ExpertTensors& out);

/// NAME_bias, [E, outputs], as f32.
void load_fused_biases(const FusedExperts& fused, ExpertTensors& out);

}  // namespace switchyard
