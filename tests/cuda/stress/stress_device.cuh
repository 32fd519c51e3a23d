// SPDX-License-Identifier: Apache-2.0
//
// stress_device.cuh: what the kernels of the stress test share.
#pragma once

#include "cuda/base/ptx.cuh"
#include "stress_kernels.h"

namespace switchyard::test {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ inline std::uint32_t number_of(const StressStep& step) {
  return *const_cast<const volatile std::uint32_t*>(step.base) + step.offset;
}
__device__ inline StressRouting routing_of(const StressStep& step) {
  return {number_of(step) - step.back, step.slot};
}

/// Holds this thread up for as long as the rule says.
__device__ inline void pause(const StressShape& s, const StressStep& step, StressPause where) {
  const std::uint32_t ns = stress_delay_ns(s, number_of(step), where);
  const std::uint64_t start = cuda::globaltimer_ns();
  while (cuda::globaltimer_ns() - start < ns) __nanosleep(200);
}

}  // namespace switchyard::test
