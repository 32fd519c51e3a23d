// SPDX-License-Identifier: Apache-2.0
//
// map_choices.cu: a stable counting sort of choices by expert in two kernels. A block ranks a
// chunk, a choice a thread, its warps by turns, with the chunk's counters in shared memory (in
// global memory where they are too many); then one block turns the counts of all chunks into where
// each chunk begins. No atomic decides a place, so the order is the CPU's. Code is short: these
// kernels mostly wait for their own instructions.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/permute.h"
#include "cuda/row_words.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMaxSharedCounts = 8192;
constexpr int kRankThreads = 1024;
constexpr int kBatch = 8;  // counts of a thread that are on their way together
constexpr int kStartThreads = 1024;

// The local expert of choice i, or -1.
__device__ std::int32_t expert_of(const MapArgs& args, std::int32_t i) {
  const auto num_topk = static_cast<std::int32_t>(args.ids.num_topk);
  const std::int32_t t = i / num_topk;
  const std::int32_t k = i - t * num_topk;
  const std::int64_t id = args.ids.at(t, k);
  if (id < 0) return -1;
  if (!args.lookup.knows(id)) {
    add_error(args.num_errors);
    return -1;
  }
  const std::int64_t expert = args.lookup.local(id) - args.first_expert;
  if (expert < 0) return -1;
  if (expert >= args.map.num_local) {
    if (args.is_strict) add_error(args.num_errors);
    return -1;
  }
  if (args.is_once_a_token) {
    for (std::int32_t earlier = 0; earlier < k; ++earlier) {
      if (args.ids.at(t, earlier) == id) return -1;
    }
  }
  return static_cast<std::int32_t>(expert);
}

__global__ void __launch_bounds__(kRankThreads) rank_choices_kernel(MapArgs args) {
  extern __shared__ std::int32_t shared_counts[];
  follow_kernel();
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t num_local = args.map.num_local;
  std::int32_t* totals = args.map.bases + std::int64_t{chunk} * num_local;
  std::int32_t* counts = num_local <= kMaxSharedCounts ? shared_counts : totals;
  for (std::int32_t e = thread; e < num_local; e += kRankThreads) counts[e] = 0;
  const std::int32_t begin = chunk * args.map.chunk_choices;
  const std::int32_t left = args.map.num_choices - begin;
  const std::int32_t count = left < args.map.chunk_choices ? left : args.map.chunk_choices;
#pragma unroll 1
  for (std::int32_t first = 0; first < count; first += kRankThreads) {
    const std::int32_t i = first + thread;
    const std::int32_t expert = i < count ? expert_of(args, begin + i) : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int before_in_warp = __popc(same & ((1u << thread % kWarp) - 1));
    std::int32_t before = 0;
    // Warps count one after another, as far as there are choices.
    const std::int32_t in_step = count - first < kRankThreads ? count - first : kRankThreads;
#pragma unroll 1
    for (std::int32_t warp = 0; warp * kWarp < in_step; ++warp) {
      __syncthreads();
      if (warp != thread / kWarp) continue;
      if (expert >= 0) before = counts[expert];
      __syncwarp();
      if (expert >= 0 && before_in_warp == 0) counts[expert] = before + __popc(same);
    }
    if (i < count) args.map.choices[begin + i] = {expert, before + before_in_warp};
  }
  __syncthreads();
  if (counts == totals) return;
  for (std::int32_t e = thread; e < num_local; e += kRankThreads) totals[e] = counts[e];
}

// A thread's column of counts: `count` chunks of one expert, from the first of them on.
struct Column {
  std::int32_t* counts;
  std::int32_t stride;
  std::int32_t count;

  __device__ std::int32_t sum() const {
    std::int32_t total = 0;
#pragma unroll 1
    for (std::int32_t first = 0; first < count; first += kBatch) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        total += first + j < count ? counts[(first + j) * stride] : 0;
      }
    }
    return total;
  }

  // Each count becomes the sum of those before it and `next`. Loads of a batch do not wait for its
  // stores.
  __device__ void start_at(std::int32_t next) const {
#pragma unroll 1
    for (std::int32_t first = 0; first < count; first += kBatch) {
      std::int32_t batch[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        batch[j] = first + j < count ? counts[(first + j) * stride] : 0;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (first + j < count) counts[(first + j) * stride] = next;
        next += batch[j];
      }
    }
  }
};

__device__ void write_expert(const MapArgs& args, std::int32_t e, std::int32_t count,
                             std::int32_t first_row) {
  args.counts[e] = count;
  if (args.first_row != nullptr) args.first_row[e] = first_row;
  if (args.known != nullptr && args.known[e] != count) add_error(args.num_errors);
}

// `count` rounded up. The sum over all experts is below 2^31, so unsigned arithmetic holds it.
__device__ std::int32_t padded(std::int32_t count, std::int32_t alignment) {
  return static_cast<std::int32_t>(
      align_up(static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(alignment)));
}

// The sum of the values of earlier threads of a block of kStartThreads, and of all of them.
__device__ std::int32_t sum_before(std::int32_t value, std::int32_t* total) {
  __shared__ std::int32_t of_warps[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto sum_to = [lane](std::int32_t sum) {
#pragma unroll 1
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::int32_t earlier = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += earlier;
    }
    return sum;
  };
  const std::int32_t sum = sum_to(value);
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  const std::int32_t of_all = sum_to(of_warps[lane]);
  *total = __shfl_sync(kAllLanes, of_all, kWarp - 1);
  const std::int32_t of_earlier = __shfl_sync(kAllLanes, of_all, warp == 0 ? 0 : warp - 1);
  return sum - value + (warp == 0 ? 0 : of_earlier);
}

// One block. Threads form a table: 2^log_width experts, and groups of chunks below each other.
__global__ void __launch_bounds__(kStartThreads) start_experts_kernel(MapArgs args, int log_width) {
  __shared__ std::int32_t sums[kStartThreads];
  __shared__ std::int32_t starts[kStartThreads];
  follow_kernel();
  const ChoiceMap& map = args.map;
  const int thread = static_cast<int>(threadIdx.x);
  const int width = 1 << log_width;
  const int num_groups = kStartThreads >> log_width;
  const int group = thread >> log_width;
  const int place = thread & (width - 1);
  const int group_chunks = cdiv(map.num_chunks, num_groups);
  const int left = map.num_chunks - group * group_chunks;
  const int num_chunks = left < 0 ? 0 : left < group_chunks ? left : group_chunks;
  std::int32_t next_row = 0;
#pragma unroll 1
  for (std::int32_t tile = 0; tile < map.num_local; tile += width) {
    const std::int32_t e = tile + place;
    const bool is_expert = e < map.num_local;
    const Column column{map.bases + group * group_chunks * map.num_local + e, map.num_local,
                        is_expert ? num_chunks : 0};
    sums[thread] = column.sum();
    __syncthreads();
    std::int32_t before = 0;
    std::int32_t count = 0;
#pragma unroll 1
    for (int g = 0; g < num_groups; ++g) {
      const std::int32_t sum = sums[g * width + place];
      if (g < group) before += sum;
      count += sum;
    }
    // One thread an expert takes part in the scan, in the order of experts.
    std::int32_t tile_rows = 0;
    const std::int32_t first_row =
        next_row + sum_before(group == 0 ? padded(count, args.alignment) : 0, &tile_rows);
    next_row += tile_rows;
    if (group == 0) {
      starts[place] = args.is_aligned ? first_row : 0;
      if (is_expert) write_expert(args, e, count, first_row);
    }
    __syncthreads();
    column.start_at(starts[place] + before);
    __syncthreads();
  }
  if (thread == 0) *args.num_rows = next_row;
}

}  // namespace

void map_choices(const MapArgs& args, Stream stream) {
  const int num_local = args.map.num_local;
  const bool overlaps = has_programmatic_launch();
  if (args.map.num_chunks > 0) {
    const std::size_t shared_bytes =
        num_local <= kMaxSharedCounts ? sizeof(std::int32_t) * static_cast<std::size_t>(num_local)
                                      : 0;
    launch_kernel(rank_choices_kernel,
                  {args.map.num_chunks, kRankThreads, shared_bytes, false, stream.get()},
                  "rank_choices_kernel", args);
  }
  int log_width = 5;
  while (1 << log_width < std::min(kStartThreads, num_local)) ++log_width;
  launch_kernel(start_experts_kernel,
                {1, kStartThreads, 0, overlaps && args.map.num_chunks > 0, stream.get()},
                "start_experts_kernel", args, log_width);
}

}  // namespace switchyard::cuda
