// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"

namespace switchyard::cuda {
namespace {

// Of each CTA: what CUDA takes, and what the kernel has besides.
constexpr std::size_t kOwnShared = 2048;

}  // namespace

void combine_plain(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  const DType dtype = args.wire.dtype;
  const auto launch = dtype == DType::kF32   ? launch_wire<PlainWire<DType::kF32>>
                      : dtype == DType::kF16 ? launch_wire<PlainWire<DType::kF16>>
                                             : launch_wire<PlainWire<DType::kBF16>>;
  launch(args, phases, programmatic, stream);
}

bool can_stream(const CombineArgs& args, Phases phases) {
  using Wire = PlainWire<DType::kBF16>;
  static_assert(kCanStream<Wire>);
  return sends(phases) && switchyard::can_stream(args.layout, args.reduce) &&
         !args.wire.is_quantized() && args.wire.dtype == Wire::kRows &&
         is_common<Wire>(args, phases);
}

bool gpu_can_stream() {
  const std::size_t wanted =
      kExchangeCtasPerSm * (stream_shared_bytes(kExchangeWarps) + kOwnShared);
  const int there = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return static_cast<std::size_t>(there) >= wanted;
}

void launch_combine(const CombineArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  if (args.wire.is_quantized()) return combine_quantized(args, phases, programmatic, stream);
  combine_plain(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
