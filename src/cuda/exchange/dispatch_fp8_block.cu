// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"

namespace switchyard::cuda {
namespace {

constexpr QuantScheme with_powers_of_two(QuantScheme scheme) {
  scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
  return scheme;
}

constexpr QuantScheme kPowers = with_powers_of_two(schemes::kFp8Block);
constexpr QuantScheme kPowersDeepEp = with_powers_of_two(schemes::kFp8BlockDeepEp);

}  // namespace

void dispatch_fp8_block(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream) {
  const auto launch = [&]<QuantScheme kScheme>() {
    launch_form<QuantizedForm<kScheme>>(args, phases, programmatic, stream);
  };
  if (args.scheme == schemes::kFp8Block) return launch.operator()<schemes::kFp8Block>();
  if (args.scheme == schemes::kFp8BlockDeepEp) return launch.operator()<schemes::kFp8BlockDeepEp>();
  if (args.scheme == schemes::kFp8Ue8m0) return launch.operator()<schemes::kFp8Ue8m0>();
  if (args.scheme == schemes::kFp8Ue8m0DeepEp) return launch.operator()<schemes::kFp8Ue8m0DeepEp>();
  if (args.scheme == kPowers) return launch.operator()<kPowers>();
  launch.operator()<kPowersDeepEp>();
}

}  // namespace switchyard::cuda
