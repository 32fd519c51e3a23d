// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"
#include "cuda/exchange/combine_quantized.cuh"

namespace switchyard::cuda {

void combine_quantized(const CombineArgs& args, Phases phases, bool programmatic,
                       cudaStream_t stream) {
  using AnyWire = QuantizedWire<false>;
  const auto launch =
      is_fp8_block(args.wire) ? launch_wire<QuantizedWire<true>, AnyWire> : launch_wire<AnyWire>;
  launch(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
