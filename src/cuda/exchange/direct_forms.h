// SPDX-License-Identifier: Apache-2.0
//
// direct_forms.h: those kernels of direct_dispatch.cuh that have a source file of their own.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/exchange/direct_args.h"

namespace switchyard::cuda {

/// Rows that are copied, in whole units.
void direct_copy(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                 cudaStream_t stream);
/// See dispatch_forms.h. The first also serves codes of 8 bits that stay as they are.
void direct_other8(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                   cudaStream_t stream);
void direct_form4(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                  cudaStream_t stream);
void direct_simulated(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream);

}  // namespace switchyard::cuda
