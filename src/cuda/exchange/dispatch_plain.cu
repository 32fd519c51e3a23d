// SPDX-License-Identifier: Apache-2.0
//
// Dispatch of rows that are not quantized on the way: bf16, f16, f32, and 8-bit codes of callers.

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_plain(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  if (args.scheme.dtype == DType::kF32) {
    return launch_form<PlainForm32>(args, phases, programmatic, stream);
  }
  launch_form<PlainForm16>(args, phases, programmatic, stream);
}

void dispatch_stored8(const DispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream) {
  launch_form<StoredForm8>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
