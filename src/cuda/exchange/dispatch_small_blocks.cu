// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {

void dispatch_small_blocks(const DispatchArgs& args, Phases phases, bool programmatic,
                           cudaStream_t stream) {
  const auto launch = [&]<QuantScheme kScheme>() {
    launch_form<QuantizedForm<kScheme>>(args, phases, programmatic, stream);
  };
  if (args.scheme == schemes::kNvfp4) return launch.operator()<schemes::kNvfp4>();
  if (args.scheme == schemes::kMxfp4) return launch.operator()<schemes::kMxfp4>();
  if (args.scheme == schemes::kMxfp8) return launch.operator()<schemes::kMxfp8>();
  if (args.scheme == schemes::kMxfp6E3M2) return launch.operator()<schemes::kMxfp6E3M2>();
  launch.operator()<schemes::kMxfp6E2M3>();
}

}  // namespace switchyard::cuda
