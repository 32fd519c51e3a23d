// SPDX-License-Identifier: Apache-2.0
//
// combine_forms.h: the combine kernels by family, one source file each because they take long to
// compile.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// Returned rows of bf16, f16 or f32.
void combine_plain(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream);
/// Returned rows of 8-bit codes with one scale per block.
void combine_quantized(const CombineArgs& args, Phases phases, bool programmatic,
                       cudaStream_t stream);

}  // namespace switchyard::cuda
