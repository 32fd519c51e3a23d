// SPDX-License-Identifier: Apache-2.0
//
// call.cuh: how the kernels of an exchange know which call they belong to, without the host.
#pragma once

#include "cuda/base/ptx.cuh"
#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// Of this CTA.
__device__ __forceinline__ int cta_threads() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ int cta_warps() { return static_cast<int>(blockDim.x / kLanes); }

/// The number of the call that a dispatch begins, or that it has just had (for its combine).
__device__ __forceinline__ std::uint64_t next_call(const CallState& state) {
  return (*const_cast<volatile std::uint64_t*>(state.counter)) / kCallUnit;
}

/// The same for a CTA: one thread asks, or every warp of the grid would ask for one word. Known
/// after the next barrier.
struct CallOfCta {
  std::uint64_t number;
  /// This rank gave up before: it takes no more rows, so what it sent would overwrite rows that
  /// peers still look for.
  std::uint32_t has_failed;

  /// `asked`: what begin_kernel gave, which is used here so that the compiler lets it ask.
  __device__ __forceinline__ void ask(const ExchangeBase& a, std::uint32_t asked) {
    constexpr std::uint32_t kUnlikely = 0x9E3779B9u;
    if (threadIdx.x == 0) {
      number = next_call(a.state);
      has_failed = *const_cast<const volatile std::uint32_t*>(a.watch.failed);
    }
    if (asked == kUnlikely) __nanosleep(1);
  }
};

/// Every CTA of a launch adds its share as it ends; with the last one the sum is one call. Right
/// for CTAs that start late: they still read the old number.
__device__ __forceinline__ void advance_call(const CallState& state) {
  if (threadIdx.x != 0) return;
  const std::uint64_t others = gridDim.x - 1;
  const std::uint64_t share = blockIdx.x == 0 ? kCallUnit - others : 1;
  atomicAdd(reinterpret_cast<unsigned long long*>(state.counter),
            static_cast<unsigned long long>(share));
}

/// Waits for the kernel ahead. Arguments come from memory too, line by line, when a kernel first
/// looks at them: each warp asks for one line at once. Pass what it returns to CallOfCta::ask.
template <class Args>
__device__ __forceinline__ std::uint32_t begin_kernel(const Args& args) {
  constexpr unsigned kLineWords = 16;
  const unsigned at = threadIdx.x / kLanes * kLineWords;
  std::uint32_t word = 0;
  if (at < sizeof(Args) / sizeof(word)) word = reinterpret_cast<const std::uint32_t*>(&args)[at];
  wait_for_prerequisites();
  launch_dependents();  // only now: see follow_kernel
  return word;
}

}  // namespace switchyard::cuda
