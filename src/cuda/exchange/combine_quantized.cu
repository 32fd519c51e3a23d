// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"
#include "cuda/exchange/combine_quantized.cuh"
#include "cuda/exchange/send_sums.cuh"

namespace switchyard::cuda {
namespace {

template <class Task>
void with_wire(const QuantScheme& wire, const Task& task) {
  const auto run = [&]<QuantScheme kScheme>() {
    task.template operator()<QuantizedWire<kScheme>>();
  };
  if (wire == schemes::kFp8Block) return run.template operator()<schemes::kFp8Block>();
  if (wire == schemes::kFp8BlockDeepEp) return run.template operator()<schemes::kFp8BlockDeepEp>();
  if (wire == schemes::kFp8Ue8m0) return run.template operator()<schemes::kFp8Ue8m0>();
  if (wire == schemes::kFp8Ue8m0DeepEp) return run.template operator()<schemes::kFp8Ue8m0DeepEp>();
  if (wire == schemes::kInt8Block) return run.template operator()<schemes::kInt8Block>();
  run.template operator()<schemes::kMxfp8>();
}

}  // namespace

void combine_quantized(const CombineArgs& args, Phases phases, bool programmatic,
                       cudaStream_t stream) {
  with_wire(args.wire,
            [&]<class Wire>() { launch_wire<Wire>(args, phases, programmatic, stream); });
}

void send_sums_quantized(const CombineArgs& args, std::uint64_t ranks, cudaStream_t stream) {
  with_wire(args.wire, [&]<class Wire>() { launch_send_sums<Wire>(args, ranks, stream); });
}

}  // namespace switchyard::cuda
