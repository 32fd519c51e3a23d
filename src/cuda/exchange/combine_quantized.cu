// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"
#include "cuda/exchange/combine_quantized.cuh"

namespace switchyard::cuda {

void combine_quantized(const CombineArgs& args, Phases phases, bool programmatic,
                       cudaStream_t stream) {
  const auto launch = [&]<QuantScheme kScheme>() {
    launch_wire<QuantizedWire<kScheme>>(args, phases, programmatic, stream);
  };
  if (args.wire == schemes::kFp8Block) return launch.operator()<schemes::kFp8Block>();
  if (args.wire == schemes::kFp8BlockDeepEp) return launch.operator()<schemes::kFp8BlockDeepEp>();
  if (args.wire == schemes::kFp8Ue8m0) return launch.operator()<schemes::kFp8Ue8m0>();
  if (args.wire == schemes::kFp8Ue8m0DeepEp) return launch.operator()<schemes::kFp8Ue8m0DeepEp>();
  if (args.wire == schemes::kInt8Block) return launch.operator()<schemes::kInt8Block>();
  launch.operator()<schemes::kMxfp8>();
}

}  // namespace switchyard::cuda
