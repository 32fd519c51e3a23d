// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_form4(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  launch_form<Form4>(args, phases, programmatic, stream);
}

void dispatch_simulated(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream) {
  launch_form<SimulatedForm>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
