// SPDX-License-Identifier: Apache-2.0
//
// scale_memory.h: a view of scales as kernels want it.
#pragma once

#include "switchyard/tensor.h"

#include "cuda/quantize/quantize.h"

namespace switchyard {

/// Of scales that are absent or that check_scale_view let pass.
cuda::ScaleMemory memory_of(const TensorView& scales);

}  // namespace switchyard
