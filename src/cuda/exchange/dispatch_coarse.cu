// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_coarse(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  const auto launch = [&]<QuantScheme kScheme>() {
    launch_form<QuantizedForm<kScheme>>(args, phases, programmatic, stream);
  };
  if (args.scheme == schemes::kFp8Token) return launch.operator()<schemes::kFp8Token>();
  if (args.scheme == schemes::kFp8Tensor) return launch.operator()<schemes::kFp8Tensor>();
  if (args.scheme == schemes::kInt8Token) return launch.operator()<schemes::kInt8Token>();
  if (args.scheme == schemes::kInt8Tensor) return launch.operator()<schemes::kInt8Tensor>();
  launch.operator()<schemes::kInt8Block>();
}

}  // namespace switchyard::cuda
