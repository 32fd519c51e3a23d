// SPDX-License-Identifier: Apache-2.0

#include "blocking_kernels.h"
#include "cuda/base/launch.h"
#include "cuda/base/ptx.cuh"

namespace switchyard::test {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t gpu_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// One CTA uses all shared memory of an SM. CTAs on spared SMs stay until every SM has its CTA.
__global__ void blocker_kernel(unsigned num_spared, const volatile std::uint32_t* release,
                               std::uint64_t max_ns, std::uint32_t* num_started) {
  unsigned sm;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  if (threadIdx.x == 0) atomicAdd(num_started, 1u);
  const std::uint64_t start = cuda::globaltimer_ns();
  if (sm < num_spared) {
    while (*const_cast<volatile std::uint32_t*>(num_started) < gridDim.x &&
           cuda::globaltimer_ns() - start < max_ns) {
    }
    return;
  }
  while (*release == 0 && cuda::globaltimer_ns() - start < max_ns) __nanosleep(500);
}

__device__ void copy(const LateCopy& what) {
  auto* to = static_cast<std::uint32_t*>(what.to);
  const auto* from = static_cast<const std::uint32_t*>(what.from);
  for (std::size_t i = blockIdx.x * kThreads + threadIdx.x; i < what.bytes / 4;
       i += gridDim.x * kThreads) {
    to[i] = from[i];
  }
}

__global__ void late_copy_kernel(LateCopy first, LateCopy second, std::uint64_t sleep_ns) {
  cuda::wait_for_prerequisites();
  cuda::launch_dependents();
  const std::uint64_t start = cuda::globaltimer_ns();
  while (cuda::globaltimer_ns() - start < sleep_ns) __nanosleep(500);
  copy(first);
  copy(second);
}

}  // namespace

void launch_blocker(int num_spared, const std::uint32_t* release, std::int64_t max_ms,
                    std::uint32_t* num_started, cudaStream_t stream) {
  const auto shared =
      static_cast<std::size_t>(cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  cuda::allow_shared_memory(blocker_kernel, shared, "blocker");
  cuda::launch_kernel(
      blocker_kernel,
      {cuda::device_attribute(cudaDevAttrMultiProcessorCount), 64, shared, false, stream},
      "blocker", static_cast<unsigned>(num_spared), release,
      static_cast<std::uint64_t>(max_ms) * 1'000'000, num_started);
}

void launch_late_copy(const LateCopy& first, const LateCopy& second, std::int64_t sleep_us,
                      bool programmatic, cudaStream_t stream) {
  cuda::launch_kernel(late_copy_kernel, {8, kThreads, 0, programmatic, stream}, "late_copy", first,
                      second, static_cast<std::uint64_t>(sleep_us) * 1000);
}

}  // namespace switchyard::test
