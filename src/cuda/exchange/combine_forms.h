// SPDX-License-Identifier: Apache-2.0
//
// combine_forms.h: the combine kernels by family; a source file each, because they compile long.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// Returned rows of bf16, f16 or f32.
void combine_plain(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream);
/// Returned rows of codes of 8 bits with a scale for each block.
void combine_quantized(const CombineArgs& args, Phases phases, bool programmatic,
                       cudaStream_t stream);

}  // namespace switchyard::cuda
