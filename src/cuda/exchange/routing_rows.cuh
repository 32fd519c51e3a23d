// SPDX-License-Identifier: Apache-2.0
//
// routing_rows.cuh: what the kernels of routing.h share: ids and weights of rows, and grid shapes.
#pragma once

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/routing.h"
#include "quant/bits.h"

namespace switchyard::cuda {

inline constexpr int kRoutingThreads = 256;
inline constexpr int kRoutingWarps = kRoutingThreads / kLanes;

__device__ __forceinline__ std::int64_t thread_number() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t num_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

__device__ __forceinline__ bool is_expert(const RoutingArgs& a, std::int32_t id) {
  return id >= 0 && id < a.ownership.num_experts;
}

__device__ __forceinline__ std::int32_t id_of(const RoutingArgs& a, std::int64_t row, int k) {
  return static_cast<std::int32_t>(a.rows[row * 2 * a.num_topk + k]);
}
__device__ __forceinline__ float weight_of(const RoutingArgs& a, std::int64_t row, int k) {
  return f32_from_bits(a.rows[(row * 2 + 1) * a.num_topk + k]);
}

/// First row of this rank's own tokens.
__device__ __forceinline__ std::int64_t first_own_row(const RoutingArgs& a) {
  std::int64_t first = 0;
  for (int s = 0; s < a.rank; ++s) first += a.num_from[s];
  return first;
}

inline LaunchShape routing_shape(std::int64_t num_items, int items_per_cta, cudaStream_t stream) {
  constexpr std::int64_t kMaxCtas = 1024;
  const std::int64_t ctas = (num_items + items_per_cta - 1) / items_per_cta;
  return {static_cast<int>(std::clamp<std::int64_t>(ctas, 1, kMaxCtas)), kRoutingThreads, 0, false,
          stream};
}

inline void clear_counts(std::int32_t* counts, std::int64_t size, cudaStream_t stream) {
  if (size == 0) return;
  const auto bytes = static_cast<std::size_t>(size) * sizeof(std::int32_t);
  check_cuda(cudaMemsetAsync(counts, 0, bytes, stream), "dispatch");
}

}  // namespace switchyard::cuda
