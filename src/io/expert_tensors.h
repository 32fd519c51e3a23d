// SPDX-License-Identifier: Apache-2.0
//
// expert_tensors.h: reads the projections of experts that have tensors of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

}  // namespace switchyard
