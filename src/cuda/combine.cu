// SPDX-License-Identifier: Apache-2.0
//
// The combine kernel: senders first, then receivers, as in dispatch_kernel.cuh. It counts no call:
// it belongs to the one that dispatch has counted.

#include "cuda/call.cuh"
#include "cuda/combine_receive.cuh"
#include "cuda/combine_send.cuh"
#include "cuda/launch.h"

namespace switchyard {
namespace {

template <DType kWire>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    combine_kernel(const __grid_constant__ CombineArgs a, bool sends) {
  __shared__ CallOfCta next;
  __shared__ std::int32_t num_arrivals[kMaxPushRanks];
  const std::uint32_t asked = begin_kernel(a);
  const int num_sending = sends ? a.num_senders : 0;
  const int cta = static_cast<int>(blockIdx.x);
  if (cta < num_sending) {
    return_tokens<kWire>(a, next, cta, num_arrivals);
  } else {
    sum_tokens<kWire>(a, next, cta - num_sending);
  }
  end_kernel(asked);
}

template <DType kWire>
void launch_wire(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  const bool sends = phases == Phases::kSend || phases == Phases::kBoth;
  const bool receives = phases == Phases::kReceive || phases == Phases::kBoth;
  const int ctas = (sends ? args.num_senders : 0) + (receives ? args.num_receivers : 0);
  launch_kernel(combine_kernel<kWire>, {ctas, kExchangeThreads, 0, programmatic, stream}, "combine",
                args, sends);
}

}  // namespace

void launch_combine(const CombineArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  switch (args.wire_dtype) {
    case DType::kF32: return launch_wire<DType::kF32>(args, phases, programmatic, stream);
    case DType::kF16: return launch_wire<DType::kF16>(args, phases, programmatic, stream);
    default: return launch_wire<DType::kBF16>(args, phases, programmatic, stream);
  }
}

}  // namespace switchyard
