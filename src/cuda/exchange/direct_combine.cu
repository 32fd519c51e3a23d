// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/combine_kernel.cuh"
#include "cuda/exchange/direct_combine.cuh"

namespace switchyard::cuda {
namespace {

// Of each CTA: what CUDA takes, and what the kernel has besides.
constexpr std::size_t kOwnShared = 2048;

template <bool kIsCommon>
void launch_direct(const DirectCombineArgs& args, Phases phases, bool programmatic,
                   cudaStream_t stream) {
  const std::size_t shared = kIsCommon && (phases == Phases::kNone ||
                                           (sends(phases) && args.way != DirectReturn::kInPlace))
                                 ? kReturnRingBytes
                                 : 0;
  const auto kernel = direct_combine_kernel<kIsCommon>;
  if (phases == Phases::kNone && kIsCommon) allow_shared_memory(kernel, shared, "combine");
  const int ctas = phases == Phases::kNone ? 1 : args.grid.num_senders;
  launch_kernel(kernel, {ctas, kExchangeThreads, shared, programmatic, stream}, "combine", args,
                sends(phases), receives(phases));
}

}  // namespace

bool gpu_can_store_directly() {
  constexpr int kFirstMajor = 9;
  const std::size_t wanted = kExchangeCtasPerSm * (kReturnRingBytes + kOwnShared);
  const int there = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= kFirstMajor &&
         static_cast<std::size_t>(there) >= wanted;
}

void launch_direct_combine(const DirectCombineArgs& args, Phases phases, bool programmatic,
                           cudaStream_t stream) {
  const bool runs_all = phases == Phases::kNone;
  const bool is_of_units = is_common<PlainWire<DType::kBF16>>(args, phases);
  if (runs_all || is_of_units) launch_direct<true>(args, phases, programmatic, stream);
  if (runs_all || !is_of_units) launch_direct<false>(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
