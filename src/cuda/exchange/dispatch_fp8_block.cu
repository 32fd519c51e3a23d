// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_fp8_block(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream) {
  launch_form<Fp8BlockForm>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
