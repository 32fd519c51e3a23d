// SPDX-License-Identifier: Apache-2.0
//
// stages.cuh: stamps of an exchange's kernels. A stamp is one line in a kernel, nothing at all
// unless the build has SWITCHYARD_STAGES, and a few instructions where it has.
#pragma once

#include "cuda/base/ptx.cuh"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/stages.h"

namespace switchyard::cuda {

#ifdef SWITCHYARD_STAGES

/// A bit for each stage that the CTA has reached.
__device__ __forceinline__ std::uint32_t& reached_stages() {
  __shared__ std::uint32_t reached;
  return reached;
}

/// Called by all threads; the first stamp of a kernel.
__device__ __forceinline__ void stamp_start(const ExchangeBase& a) {
  if (threadIdx.x == 0) {
    reached_stages() = 0;
    if (a.stages.ns != nullptr) a.stages.ns[blockIdx.x * kNumStages] = globaltimer_ns();
  }
  __syncthreads();
}

/// The first warp of a CTA that comes here writes the time. Called by whole warps.
__device__ __forceinline__ void stamp(const ExchangeBase& a, Stage stage) {
  const std::uint32_t bit = 1u << static_cast<int>(stage);
  if (threadIdx.x % kLanes != 0 || a.stages.ns == nullptr) return;
  if ((*const_cast<volatile std::uint32_t*>(&reached_stages()) & bit) != 0) return;
  const std::uint64_t now = globaltimer_ns();
  if ((atomicOr(&reached_stages(), bit) & bit) != 0) return;
  a.stages.ns[blockIdx.x * kNumStages + static_cast<unsigned>(stage)] = now;
}

/// The last warp of a CTA that comes here counts.
__device__ __forceinline__ void stamp_end(const ExchangeBase& a) {
  if (threadIdx.x % kLanes != 0 || a.stages.ns == nullptr) return;
  atomicMax(reinterpret_cast<unsigned long long*>(a.stages.ns + blockIdx.x * kNumStages +
                                                  static_cast<unsigned>(Stage::kEnd)),
            static_cast<unsigned long long>(globaltimer_ns()));
}

#else

__device__ __forceinline__ void stamp_start(const ExchangeBase&) {}
__device__ __forceinline__ void stamp(const ExchangeBase&, Stage) {}
__device__ __forceinline__ void stamp_end(const ExchangeBase&) {}

#endif

}  // namespace switchyard::cuda
