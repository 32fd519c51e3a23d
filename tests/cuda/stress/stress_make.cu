// SPDX-License-Identifier: Apache-2.0
//
// What a step sends, what must arrive, and what holds it up.

#include "cuda/base/check.h"
#include "stress_device.cuh"

namespace switchyard::test {
namespace {

// ---- expected rows

__device__ int sum_of_warp(int value) { return __reduce_add_sync(kAll, value); }

/// Rows are counted per (group, source, 32 tokens) and listed in that order. A group is a local
/// expert; the last group stands for all experts, with one row per token.
struct Units {
  int chunks;  ///< per source
  int num;     ///< over all sources

  SWITCHYARD_HOST_DEVICE explicit Units(const StressShape& s)
      : chunks(stress_chunks(s)), num(s.num_ranks * chunks) {}
};

/// The CTA that counts a few units also lists them; many units have a list kernel.
SWITCHYARD_HOST_DEVICE bool is_planned_by_make(const StressShape& s) {
  return Units(s).num <= 2 * kWarps;
}

/// What the token of a lane chose on this rank.
struct LaneChoices {
  int source;
  int token;
  int local[kMaxStressTopk];  ///< local expert of each choice; -1: none, or on another rank
  bool is_any = false;

  __device__ LaneChoices(const StressShape& s, const StressRouting& routing, int unit,
                         const Units& units)
      : source(unit / units.chunks), token(unit % units.chunks * kWarp + lane_id()) {
    const bool is_token = token < stress_tokens(s, routing.slot, source);
#pragma unroll
    for (int k = 0; k < kMaxStressTopk; ++k) {
      const int id = is_token && k < s.num_topk ? stress_kept_id(s, routing, source, token, k) : -1;
      const int expert = id - s.rank * s.num_local;
      const bool is_here = id >= 0 && expert >= 0 && expert < s.num_local;
      local[k] = is_here ? expert : -1;
      is_any = is_any || is_here;
    }
  }
  /// Returns bits indexed by k; for the group of all experts only bit 0.
  __device__ std::uint32_t of_group(const StressShape& s, int group) const {
    if (group == s.num_local) return is_any ? 1 : 0;
    std::uint32_t choices = 0;
#pragma unroll
    for (int k = 0; k < kMaxStressTopk; ++k) choices |= local[k] == group ? 1u << k : 0u;
    return choices;
  }
};

__device__ void count_unit(const StressShape& s, const StressRouting& routing, int unit,
                           const Units& units, int* counts) {
  const LaneChoices choices(s, routing, unit, units);
  for (int group = 0; group <= s.num_local; ++group) {
    const int count = sum_of_warp(__popc(choices.of_group(s, group)));
    if (lane_id() == 0) counts[group * units.num + unit] = count;
  }
}

/// Sum of counts[begin, end), computed by a warp.
__device__ int sum_of_counts(const int* counts, int begin, int end) {
  int sum = 0;
#pragma unroll 4
  for (int i = begin + lane_id(); i < end; i += kWarp) sum += counts[i];
  return sum_of_warp(sum);
}

/// Lists the rows of a unit in order of tokens and choices.
__device__ void list_unit(const StressShape& s, const StressRouting& routing, int unit,
                          const Units& units, const StressPlan& plan) {
  const LaneChoices own(s, routing, unit, units);
  const int first_group = s.is_token_major() ? s.num_local : 0;
  const int end_group = s.is_token_major() ? s.num_local + 1 : s.num_local;
  int before_group = 0;
  for (int group = first_group; group < end_group; ++group) {
    const int begin = group * units.num;
    const int in_group = sum_of_counts(plan.counts, begin, begin + unit);
    const int after = sum_of_counts(plan.counts, begin + unit, begin + units.num);
    std::uint32_t choices = own.of_group(s, group);
    int n = in_group;
    for (int other = 0, count = __popc(choices); other < kWarp; ++other) {
      const int theirs = __shfl_sync(kAll, count, other);
      if (other < lane_id()) n += theirs;
    }
    const std::int64_t first = s.layout == Layout::kBatched ? group * plan.capacity : before_group;
    for (; choices != 0; ++n, choices &= choices - 1) {
      const int k = s.is_token_major() ? -1 : __ffs(static_cast<int>(choices)) - 1;
      plan.rows[before_group + n] = {static_cast<std::int32_t>(first) + n, own.source, own.token,
                                     k};
    }
    before_group += in_group + after;
  }
}

/// Runs on one CTA.
__device__ void sum_up(const StressShape& s, const Units& units, const StressPlan& plan) {
  for (int e = warp_id(); e <= s.num_local; e += kWarps) {
    const int begin = e * units.num;
    const int count = sum_of_counts(plan.counts, begin, begin + units.num);
    const int before = sum_of_counts(plan.counts, 0, begin);
    if (lane_id() != 0) continue;
    if (e == s.num_local) {
      *plan.total = s.is_token_major() ? count : before;
    } else {
      plan.num_rows[e] = count;
      plan.first_row[e] = s.layout == Layout::kBatched ? e * plan.capacity : before;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    list_kernel(StressShape s, StressStep step, StressPlan plan) {
  const Units units(s);
  if (blockIdx.x == 0) sum_up(s, units, plan);
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  for (int unit = warp_id() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units.num; unit += num_warps) {
    list_unit(s, routing_of(step), unit, units, plan);
  }
}

// ---- inputs

__device__ void fill_token(const StressShape& s, std::uint32_t step, std::uint32_t routing_step,
                           int token, const StressInput& input) {
  const std::uint32_t key = step_key(s, step, StressSalt::kWords);
  const int num_words = s.token_bytes() / 4;
  std::uint32_t* words = input.tokens + std::int64_t{token} * num_words;
  for (int w = lane_id(); w < num_words; w += kWarp) {
    words[w] = stress_word(s, key, step, s.rank, token, static_cast<std::uint32_t>(w), false);
  }
  const int output_words = s.hidden * (s.outputs_f32 ? 4 : 2) / 4;
  auto* output =
      reinterpret_cast<std::uint32_t*>(input.output) + std::int64_t{token} * output_words;
  for (int w = lane_id(); w < output_words; w += kWarp) output[w] = 0xFFFFFFFFu;
  for (int i = lane_id(); i < s.num_scales(); i += kWarp) {
    const std::uint32_t scale = stress_scale(s, step, s.rank, token, i);
    const std::int64_t at = std::int64_t{token} * s.num_scales() + i;
    if (s.scale_bytes() == 4) {
      reinterpret_cast<std::uint32_t*>(input.scales)[at] = scale;
    } else {
      input.scales[at] = static_cast<std::byte>(scale);
    }
  }
  for (int k = lane_id(); k < s.num_topk; k += kWarp) {
    const std::int64_t at = std::int64_t{token} * s.num_topk + k;
    const int id = stress_id(s, routing_step, s.rank, token, k);
    if (s.ids_are_64_bits) {
      reinterpret_cast<std::int64_t*>(input.ids)[at] = id;
    } else {
      reinterpret_cast<std::int32_t*>(input.ids)[at] = id;
    }
    input.weights[at] = stress_weight(s, step, s.rank, token, k);
    if (s.returns_weights) input.returned[at] = 0xFFFFFFFFu;
  }
  for (int w = lane_id(); w < s.payload_words; w += kWarp) {
    input.payload[std::int64_t{token} * s.payload_words + w] =
        stress_payload(s, step, s.rank, token, static_cast<std::uint32_t>(w));
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    make_kernel(StressShape s, StressStep step, StressInput input, StressPlan plan) {
  cuda::launch_dependents();  // a kernel launched early may be there while this one writes
  pause(s, step, StressPause::kInput);
  const std::uint32_t number = number_of(step);
  const StressRouting routing = routing_of(step);
  const Units units(s);
  if (is_planned_by_make(s) && blockIdx.x == 0) {
    for (int i = warp_id(); i < units.num; i += kWarps) {
      count_unit(s, routing, i, units, plan.counts);
    }
    __syncthreads();
    for (int i = warp_id(); i < units.num; i += kWarps) {
      list_unit(s, routing, i, units, plan);
    }
    sum_up(s, units, plan);
    return;
  }
  const int num_warps = (static_cast<int>(gridDim.x) - 1) * kWarps;
  const int first = (static_cast<int>(blockIdx.x) - 1) * kWarps + warp_id();
  if (first < 0) return;
  if (!is_planned_by_make(s)) {
    for (int i = first; i < units.num; i += num_warps) {
      count_unit(s, routing, i, units, plan.counts);
    }
  }
  const int num_tokens = stress_tokens(s, step.slot, s.rank);
  for (int t = first; t < num_tokens; t += num_warps) fill_token(s, number, routing.step, t, input);
}

// ---- delays

__global__ void pause_kernel(StressShape s, StressStep step, StressPause where) {
  pause(s, step, where);
}

__global__ void advance_kernel(std::uint32_t* base, std::uint32_t count) { *base += count; }

}  // namespace

void load_make_kernels() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(make_kernel), reinterpret_cast<const void*>(list_kernel),
        reinterpret_cast<const void*>(pause_kernel),
        reinterpret_cast<const void*>(advance_kernel)}) {
    cudaFuncAttributes loaded{};
    cuda::check_cuda(cudaFuncGetAttributes(&loaded, kernel), "exchange_stress");
  }
}

void launch_make(const StressShape& shape, const StressStep& step, const StressInput& input,
                 const StressPlan& plan, const StressLaunch& launch) {
  make_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, input, plan);
  if (!is_planned_by_make(shape)) {
    list_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, plan);
  }
}

void launch_pause(const StressShape& shape, const StressStep& step, StressPause where,
                  cudaStream_t stream) {
  if (shape.max_delay_ns == 0) return;
  pause_kernel<<<1, 1, 0, stream>>>(shape, step, where);
}

void launch_advance(std::uint32_t* base, std::uint32_t count, cudaStream_t stream) {
  advance_kernel<<<1, 1, 0, stream>>>(base, count);
}

}  // namespace switchyard::test
