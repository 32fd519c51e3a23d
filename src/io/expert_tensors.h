// SPDX-License-Identifier: Apache-2.0
//
// expert_tensors.h: reads single tensors and stacks of expert projections from a checkpoint, with
// their shapes and dtypes checked against what config.json states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "switchyard/tensor.h"

#include "io/checkpoint.h"
#include "io/model_family.h"
#include "io/moe_layer.h"

namespace switchyard {

struct MlpSizes {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
};

/// Each expert's projections in tensors of their own: MODULE.NAME.weight. The first `num_local`
/// modules are loaded; where that is 0, the one module still determines the dtype.
void load_separate_experts(const Checkpoint& checkpoint, std::span<const std::string> modules,
                           const TensorNames& names, const MlpSizes& sizes, std::size_t num_local,
                           ExpertTensors& out);

/// All experts' projections in two tensors, BLOCK + names.gate and BLOCK + names.down.
void load_fused_experts(const Checkpoint& checkpoint, const std::string& block,
                        const TensorNames& names, const MlpSizes& sizes, std::int64_t num_experts,
                        std::span<const std::int32_t> expert_ids, ExpertTensors& out);

/// A tensor of bf16, f16 or f32.
Tensor load_plain(const Checkpoint& checkpoint, const std::string& name,
                  std::initializer_list<std::int64_t> shape);

/// The same, or e8m0, as f32.
Tensor load_widened(const Checkpoint& checkpoint, const std::string& name,
                    std::initializer_list<std::int64_t> shape);

}  // namespace switchyard
