// SPDX-License-Identifier: Apache-2.0
//
// dispatch_forms.h: the dispatch kernels by family, one source file each because they take long to
// compile.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// Unquantized rows. Tokens of another dtype than scheme.dtype are converted.
void dispatch_plain(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream);
/// Tokens that are already 8-bit codes of the scheme.
void dispatch_stored8(const DispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream);
/// e4m3 with one scale per 128 elements: scales of every rule, in every format.
void dispatch_fp8_block(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream);
/// The other 8-bit codes.
void dispatch_other8(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream);
/// 4-bit codes, the tokens' or made here.
void dispatch_form4(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream);
/// mxfp6.
void dispatch_simulated(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream);

}  // namespace switchyard::cuda
