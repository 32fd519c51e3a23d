// SPDX-License-Identifier: Apache-2.0
//
// Direct dispatch of rows that stay as they are given.

#include "cuda/exchange/direct_dispatch.cuh"
#include "cuda/exchange/direct_forms.h"

namespace switchyard::cuda {

void direct_copy(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                 cudaStream_t stream) {
  launch_direct_form<CopyForm>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
