// SPDX-License-Identifier: Apache-2.0
//
// call.cuh: how the kernels of an exchange learn the number of their call without the host.
#pragma once

#include "cuda/base/ptx.cuh"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/stages.cuh"

namespace switchyard::cuda {

/// The size of this CTA.
__device__ __forceinline__ int cta_threads() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ int cta_warps() { return static_cast<int>(blockDim.x / kLanes); }

/// The number of the next call: the one that a dispatch begins. Its combine belongs to the number
/// before, because the dispatch has advanced the count by then.
__device__ __forceinline__ std::uint64_t next_call(const CallState& state) {
  return (*const_cast<volatile std::uint64_t*>(state.counter)) / kCallUnit;
}

/// The call number of a CTA, loaded by one thread: otherwise every warp of the grid would load the
/// same word. Valid after the next barrier.
struct CallOfCta {
  std::uint64_t number;
  /// This rank has given up. It receives no more rows, so whatever it sent could overwrite rows
  /// that peers still wait for.
  std::uint32_t has_failed;
  /// Of combines, by those who send: see CallState::counter.
  std::uint64_t num_combined;

  /// `prefetched` is what begin_kernel returned. It is used here so that the compiler keeps that
  /// load.
  __device__ __forceinline__ void request(const ExchangeBase& a, std::uint32_t prefetched) {
    constexpr std::uint32_t kUnlikely = 0x9E3779B9u;
    if (threadIdx.x == 0) {
      number = next_call(a.state);
      has_failed = *const_cast<const volatile std::uint32_t*>(a.watch.failed);
    }
    if (prefetched == kUnlikely) __nanosleep(1);
  }
  __device__ __forceinline__ void request_combined(const CallState& state) {
    if (threadIdx.x == 0) num_combined = const_cast<volatile std::uint64_t*>(state.counter)[1];
  }
  /// A combine of this call has run.
  __device__ __forceinline__ bool is_combined() const { return num_combined >= kCallUnit; }
};

/// Each of the first `num_ctas` CTAs of a launch adds its share after it has read the counter; the
/// shares add up to one call. CTAs that start late still read the old number.
__device__ __forceinline__ void add_share(std::uint64_t* counter, unsigned num_ctas) {
  if (threadIdx.x != 0) return;
  const std::uint64_t share = blockIdx.x == 0 ? kCallUnit - (num_ctas - 1) : 1;
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(share));
}

/// Ends dispatch `call`, which has not been combined yet; of the next one nothing has been taken.
__device__ __forceinline__ void advance_call(const CallState& state, std::uint64_t call) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    state.counter[1] = 0;
    state.counter[2 + (~call & 1)] = 0;
    state.counter[4] = 0;
    reinterpret_cast<std::uint32_t*>(state.counter + 5)[~call & 1] = 0;
  }
  add_share(state.counter, gridDim.x);
}

/// What CTAs that share all work take from one another.
enum class Work : int { kNotify, kSend };

__device__ __forceinline__ int take_work(const CallState& state, std::uint64_t call, Work what,
                                         int count) {
  std::uint32_t* taken =
      reinterpret_cast<std::uint32_t*>(state.counter + 2 + (call & 1)) + static_cast<int>(what);
  return static_cast<int>(atomicAdd(taken, static_cast<std::uint32_t>(count)));
}

/// An item of what is received; lane 0 of a warp takes it.
__device__ __forceinline__ int take_received(const CallState& state, std::uint64_t call) {
  std::uint32_t* taken = reinterpret_cast<std::uint32_t*>(state.counter + 5) + (call & 1);
  return static_cast<int>(atomicAdd(taken, 1u));
}

/// Of the combine that follows the last dispatch; each number once.
__device__ __forceinline__ int take_combine_share(const CallState& state) {
  return static_cast<int>(
      atomicAdd(reinterpret_cast<unsigned long long*>(state.counter + 4), 1ull));
}

/// Waits for the preceding kernel in the stream. Arguments are fetched from memory line by line
/// when a kernel first reads them, so each warp requests one line up front. Pass the result to
/// CallOfCta::request.
template <class Args>
__device__ __forceinline__ std::uint32_t begin_kernel(const Args& args) {
  constexpr unsigned kLineWords = 16;
  const unsigned at = threadIdx.x / kLanes * kLineWords;
  std::uint32_t word = 0;
  if (at < sizeof(Args) / sizeof(word)) word = reinterpret_cast<const std::uint32_t*>(&args)[at];
  wait_for_prerequisites();
  launch_dependents();  // only now: see follow_kernel
  stamp_start(args);
  return word;
}

}  // namespace switchyard::cuda
