// SPDX-License-Identifier: Apache-2.0
//
// Direct dispatch of rare schemes.

#include "cuda/exchange/direct_dispatch.cuh"
#include "cuda/exchange/direct_forms.h"

namespace switchyard::cuda {

void direct_other8(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                   cudaStream_t stream) {
  launch_direct_form<AnyForm<StoredForm8, OtherForm8>>(args, phases, programmatic, stream);
}

void direct_form4(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                  cudaStream_t stream) {
  launch_direct_form<Form4>(args, phases, programmatic, stream);
}

void direct_simulated(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream) {
  launch_direct_form<SimulatedForm>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
