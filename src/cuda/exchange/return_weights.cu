// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/return_weights.h"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr std::int64_t kMaxCtas = 1024;

__device__ __forceinline__ std::int64_t warp_number() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
}

__device__ __forceinline__ bool has_failed(const ReturnWeightsArgs& a) {
  return *const_cast<const volatile std::uint32_t*>(a.watch.failed) != 0;
}

// The row of choice k of an arrival, or -1 if another rank has the expert.
__device__ __forceinline__ std::int32_t row_of_choice(const ReturnWeightsArgs& a,
                                                      std::int64_t arrival, int k) {
  if (a.row_ids == nullptr) return a.state.arrival_rows[arrival * a.num_columns + k];
  const std::int32_t row = a.state.arrival_rows[arrival * a.num_columns + a.rank];
  const std::int32_t local =
      a.row_ids[std::int64_t{row} * a.num_topk + k] - a.ownership.first(a.rank);
  return local >= 0 && local < a.ownership.count(a.rank) ? row : -1;
}

// One warp per arrival, one lane per choice.
__global__ void __launch_bounds__(kThreads)
    return_weights_kernel(const __grid_constant__ ReturnWeightsArgs a) {
  if (has_failed(a)) return;
  const std::uint64_t call = next_call(a.state) - 1;
  const std::uint32_t tag = tag_of(call);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto peer = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && peer < a.ownership.num_ranks) {
    store_record(a.windows.base[peer] + a.slots.flag(call, a.rank), 1, tag);
  }
  const std::int64_t num_places = std::int64_t{a.ownership.num_ranks} * a.max_tokens;
  for (std::int64_t i = warp_number(); i < num_places && lane < a.num_topk;
       i += gridDim.x * kWarps) {
    const auto owner = static_cast<int>(i / a.max_tokens);
    if (i - std::int64_t{owner} * a.max_tokens >= a.state.num_arrivals[owner]) continue;
    const std::int32_t row = row_of_choice(a, i, lane);
    if (row < 0) continue;
    const std::int64_t from = a.weighs_rows ? row : std::int64_t{row} * a.num_topk + lane;
    store_record(a.windows.base[owner] + a.slots.choice(call, a.state.arrival_token[i], lane),
                 reinterpret_cast<const std::uint32_t*>(a.row_weights)[from], tag);
  }
  // Makes the weights visible before the combine kernel, which runs next, sends a row.
  __threadfence_system();
}

// One warp per own token; one lane per rank that returned a row of it, then one lane per choice.
__global__ void __launch_bounds__(kThreads)
    receive_weights_kernel(const __grid_constant__ ReturnWeightsArgs a) {
  if (has_failed(a)) return;
  const std::uint64_t call = next_call(a.state) - 1;
  const std::byte* own = a.windows.base[a.rank];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto is_of_call = [&](std::uint64_t record) {
    return static_cast<std::uint32_t>(record >> 32) == tag_of(call);
  };
  for (std::int64_t token = warp_number(); token < a.num_tokens; token += gridDim.x * kWarps) {
    if (lane < a.state.num_partials[token]) {
      const std::int32_t from = a.state.partial_ranks[token * a.num_columns + lane];
      if (!is_of_call(load_record(own + a.slots.flag(call, from)))) {
        give_up(a.watch, WaitFailure::kNoWeights,
                {WaitPlace::kReturnedRow, from, static_cast<std::int32_t>(token), call}, 0, 0, 0);
      }
    }
    if (lane >= a.num_topk) continue;
    // Only ranks that have an expert send: a choice without one has no record of this call.
    const std::uint64_t record = load_record(own + a.slots.choice(call, token, lane));
    a.returned[token * a.num_topk + lane] =
        is_of_call(record) ? static_cast<std::uint32_t>(record) : 0;
  }
}

LaunchShape shape_of(std::int64_t num_warps, cudaStream_t stream) {
  const std::int64_t ctas = (num_warps + kWarps - 1) / kWarps;
  return {static_cast<int>(std::clamp<std::int64_t>(ctas, 1, kMaxCtas)), kThreads, 0, false,
          stream};
}

}  // namespace

void launch_return_weights(const ReturnWeightsArgs& args, cudaStream_t stream) {
  const std::int64_t num_places = std::int64_t{args.ownership.num_ranks} * args.max_tokens;
  launch_kernel(return_weights_kernel, shape_of(num_places, stream), "combine", args);
}

void launch_receive_weights(const ReturnWeightsArgs& args, cudaStream_t stream) {
  launch_kernel(receive_weights_kernel, shape_of(args.num_tokens, stream), "combine", args);
}

}  // namespace switchyard::cuda
