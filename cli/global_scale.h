// SPDX-License-Identifier: Apache-2.0
//
// global_scale.h: the global scale of nvfp4 that run and quantize take unless one is given.
#pragma once

#include "switchyard/tensor.h"

namespace switchyard::cli {

/// The largest magnitude of a contiguous bf16, f16 or f32 tensor, NaN and infinity left aside.
float largest_finite(const TensorView& x);

/// vLLM's convention: the largest element maps to the largest e2m1 times the largest e4m3. 1 for
/// zeros; finite and above 0 for every finite `amax`.
float global_scale(float amax);

}  // namespace switchyard::cli
