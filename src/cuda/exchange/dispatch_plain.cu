// SPDX-License-Identifier: Apache-2.0
//
// Dispatch of rows that are not quantized on the way: bf16, f16, f32, and codes of callers.

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_plain(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  switch (args.scheme.dtype) {
    case DType::kF32:
      return launch_form<PlainForm<DType::kF32>>(args, phases, programmatic, stream);
    case DType::kF16:
      return launch_form<PlainForm<DType::kF16>>(args, phases, programmatic, stream);
    default: return launch_form<PlainForm<DType::kBF16>>(args, phases, programmatic, stream);
  }
}

void dispatch_stored(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  if (args.scheme.dtype == DType::kE2M1) {
    launch_form<StoredForm<4>>(args, phases, programmatic, stream);
  } else {
    launch_form<StoredForm<8>>(args, phases, programmatic, stream);
  }
}

}  // namespace switchyard::cuda
