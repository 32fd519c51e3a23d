// SPDX-License-Identifier: Apache-2.0
//
// map_choices.cu: a stable counting sort of choices by expert in two kernels. A warp ranks a chunk
// 32 choices at a time, with the chunk's counters in shared memory (in global memory where
// they are too many); then one block turns the counts of all chunks into where each chunk begins.
// No atomic decides a place, so the order is the CPU's.

#include "core/round_up.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/permute.h"
#include "cuda/row_words.cuh"

#include <cub/block/block_scan.cuh>

namespace switchyard::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMaxSharedCounts = 8192;
constexpr int kBatch = 8;         // ids of a lane that are on their way together
constexpr int kColumnBatch = 16;  // counts of a thread that are
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

// Ranks 32 choices, one a lane, and counts them.
__device__ ChoiceRank rank_choice(std::int32_t expert, std::int32_t* counts, unsigned lane) {
  const unsigned same = __match_any_sync(kAllLanes, expert);
  const int before_in_step = __popc(same & ((1u << lane) - 1));
  const std::int32_t before = expert < 0 ? 0 : counts[expert];
  __syncwarp();
  if (expert >= 0 && before_in_step == 0) counts[expert] = before + __popc(same);
  __syncwarp();
  return {expert, before + before_in_step};
}

__global__ void __launch_bounds__(kWarp) rank_choices_kernel(MapArgs args) {
  extern __shared__ std::int32_t shared_counts[];
  follow_kernel();
  const unsigned lane = threadIdx.x;
  const auto chunk = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t num_local = args.map.num_local;
  std::int32_t* total = args.map.bases + std::int64_t{chunk} * num_local;
  std::int32_t* counts = num_local <= kMaxSharedCounts ? shared_counts : total;
  for (auto e = static_cast<std::int32_t>(lane); e < num_local; e += kWarp) counts[e] = 0;
  __syncwarp();
  const std::int32_t begin = chunk * args.map.chunk_choices;
  const std::int32_t left = args.map.num_choices - begin;
  const std::int32_t count = left < args.map.chunk_choices ? left : args.map.chunk_choices;
  for (std::int32_t first = 0; first < count; first += kBatch * kWarp) {
    std::int32_t experts[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const std::int32_t i = first + j * kWarp + static_cast<std::int32_t>(lane);
      experts[j] = i < count ? expert_of(args, begin + i) : -1;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const std::int32_t i = first + j * kWarp + static_cast<std::int32_t>(lane);
      const ChoiceRank choice = rank_choice(experts[j], counts, lane);
      if (i < count) args.map.choices[begin + i] = choice;
    }
  }
  if (counts == total) return;
  for (auto e = static_cast<std::int32_t>(lane); e < num_local; e += kWarp) total[e] = counts[e];
}

// A thread's column of counts: `count` chunks of one expert, from the first of them on.
struct Column {
  std::int32_t* counts;
  std::int32_t stride;
  std::int32_t count;

  __device__ std::int32_t sum() const {
    std::int32_t total = 0;
    for (std::int32_t first = 0; first < count; first += kColumnBatch) {
#pragma unroll
      for (int j = 0; j < kColumnBatch; ++j) {
        total += first + j < count ? counts[(first + j) * stride] : 0;
      }
    }
    return total;
  }

  // Each count becomes the sum of those before it and `next`. Loads of a batch do not wait for its
  // stores.
  __device__ void start_at(std::int32_t next) const {
    for (std::int32_t first = 0; first < count; first += kColumnBatch) {
      std::int32_t batch[kColumnBatch];
#pragma unroll
      for (int j = 0; j < kColumnBatch; ++j) {
        batch[j] = first + j < count ? counts[(first + j) * stride] : 0;
      }
#pragma unroll
      for (int j = 0; j < kColumnBatch; ++j) {
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

// One block. Threads form a table: `width` experts, and groups of chunks below each other.
__global__ void __launch_bounds__(kStartThreads) start_experts_kernel(MapArgs args, int width) {
  using Scan = cub::BlockScan<std::int32_t, kStartThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan_memory;
  __shared__ std::int32_t sums[kStartThreads];
  __shared__ std::int32_t starts[kStartThreads];
  follow_kernel();
  const ChoiceMap& map = args.map;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_groups = kStartThreads / width;
  const int group = thread / width;
  const int place = thread % width;
  const int group_chunks = cdiv(map.num_chunks, num_groups);
  const int left = map.num_chunks - group * group_chunks;
  const int num_chunks = left < 0 ? 0 : left < group_chunks ? left : group_chunks;
  std::int32_t next_row = 0;
  for (std::int32_t tile = 0; tile < map.num_local; tile += width) {
    const std::int32_t e = tile + place;
    const bool is_expert = e < map.num_local;
    const Column column{map.bases + group * group_chunks * map.num_local + e, map.num_local,
                        is_expert ? num_chunks : 0};
    sums[thread] = column.sum();
    __syncthreads();
    std::int32_t before = 0;
    std::int32_t count = 0;
    for (int g = 0; g < num_groups; ++g) {
      const std::int32_t sum = sums[g * width + place];
      if (g < group) before += sum;
      count += sum;
    }
    // One thread an expert takes part in the scan, in the order of experts.
    std::int32_t first_row = 0;
    std::int32_t tile_rows = 0;
    Scan(scan_memory)
        .ExclusiveSum(group == 0 ? padded(count, args.alignment) : 0, first_row, tile_rows);
    first_row += next_row;
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
                  {args.map.num_chunks, kWarp, shared_bytes, false, stream.get()},
                  "rank_choices_kernel", args);
  }
  int width = kWarp;
  while (width < kStartThreads && width < num_local) width *= 2;
  launch_kernel(start_experts_kernel,
                {1, kStartThreads, 0, overlaps && args.map.num_chunks > 0, stream.get()},
                "start_experts_kernel", args, width);
}

}  // namespace switchyard::cuda
