// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"

namespace switchyard::cuda {

void combine_plain(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  switch (args.wire.dtype) {
    case DType::kF32:
      return launch_wire<PlainWire<DType::kF32>>(args, phases, programmatic, stream);
    case DType::kF16:
      return launch_wire<PlainWire<DType::kF16>>(args, phases, programmatic, stream);
    default: return launch_wire<PlainWire<DType::kBF16>>(args, phases, programmatic, stream);
  }
}

void launch_combine(const CombineArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  if (args.wire.is_quantized()) return combine_quantized(args, phases, programmatic, stream);
  combine_plain(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
