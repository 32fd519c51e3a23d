// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_forms.h"
#include "cuda/exchange/combine_kernel.cuh"
#include "cuda/exchange/send_sums.cuh"

namespace switchyard::cuda {
namespace {

// Of each CTA: what CUDA takes, and what the kernel has besides.
constexpr std::size_t kOwnShared = 2048;

template <class Task>
void with_wire(DType dtype, const Task& task) {
  switch (dtype) {
    case DType::kF32: return task.template operator()<PlainWire<DType::kF32>>();
    case DType::kF16: return task.template operator()<PlainWire<DType::kF16>>();
    default: return task.template operator()<PlainWire<DType::kBF16>>();
  }
}

}  // namespace

void combine_plain(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  with_wire(args.wire.dtype,
            [&]<class Wire>() { launch_wire<Wire>(args, phases, programmatic, stream); });
}

void send_sums_plain(const CombineArgs& args, std::uint64_t ranks, cudaStream_t stream) {
  with_wire(args.wire.dtype, [&]<class Wire>() { launch_send_sums<Wire>(args, ranks, stream); });
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

void launch_send_sums(const CombineArgs& args, std::uint64_t ranks, cudaStream_t stream) {
  if (args.wire.is_quantized()) return send_sums_quantized(args, ranks, stream);
  send_sums_plain(args, ranks, stream);
}

}  // namespace switchyard::cuda
