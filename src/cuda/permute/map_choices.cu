// SPDX-License-Identifier: Apache-2.0
//
// map_choices.cu: a stable counting sort of choices by expert, in two kernels. First each block
// ranks one chunk, one choice per thread and one warp after another, with the chunk's counters in
// shared memory (in global memory if there are too many). Then each block sums the counts of all
// chunks, finds where its own begins, and turns its ranks into places. No atomic decides a place,
// so the order matches the CPU's. The code is short: small kernels mostly wait for instructions.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/ptx.cuh"
#include "cuda/base/row_words.cuh"
#include "cuda/permute/permute.h"

namespace switchyard::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMaxSharedCounts = 8192;
constexpr int kRankThreads = 512;
constexpr int kBatch = 16;  // counts that a thread loads at once
constexpr int kPlaceThreads = 1024;
constexpr std::int64_t kMaxMarkingBlocks = 128;

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
  std::int32_t* totals = args.map.counts_of_chunks + std::int64_t{chunk} * num_local;
  std::int32_t* counts = num_local <= kMaxSharedCounts ? shared_counts : totals;
  if (args.lookup.map != nullptr && thread < args.lookup.num_experts) {  // on its way with the ids
    prefetch_l1(args.lookup.map + thread * args.lookup.stride);
  }
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
    // Warps count one after another, as many as have choices in this step.
    const std::int32_t in_step = count - first < kRankThreads ? count - first : kRankThreads;
#pragma unroll 1
    for (std::int32_t warp = 0; warp * kWarp < in_step; ++warp) {
      __syncthreads();
      if (warp != thread / kWarp) continue;
      if (expert >= 0) before = counts[expert];
      __syncwarp();
      if (expert >= 0 && before_in_warp == 0) counts[expert] = before + __popc(same);
    }
    if (i >= count) continue;
    args.map.choices[begin + i] = {expert, expert < 0 ? -1 : before + before_in_warp};
    if (expert < 0 && args.inv_perm != nullptr) args.inv_perm[begin + i] = -1;
  }
  __syncthreads();
  if (counts == totals) return;
  for (std::int32_t e = thread; e < num_local; e += kRankThreads) totals[e] = counts[e];
}

// Number of choices of one expert, over some chunks.
struct ChunkSum {
  std::int32_t all = 0;
  std::int32_t earlier = 0;  // in chunks before the block's own
};

// Sums over the chunks [begin, end). The loads of a batch are in flight together.
__device__ ChunkSum sum_chunks(const ChoiceMap& map, std::int32_t e, int begin, int end) {
  const auto own = static_cast<int>(blockIdx.x);
  ChunkSum sum;
#pragma unroll 1
  for (int first = begin; first < end; first += kBatch) {
    std::int32_t batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int chunk = first + j;
      batch[j] = chunk < end ? map.counts_of_chunks[chunk * map.num_local + e] : 0;
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      sum.all += batch[j];
      if (first + j < own) sum.earlier += batch[j];
    }
  }
  return sum;
}

__device__ void write_expert(const MapArgs& args, std::int32_t e, std::int32_t count,
                             std::int32_t first_row) {
  args.counts[e] = count;
  if (args.first_row != nullptr) args.first_row[e] = first_row;
  if (args.known != nullptr && args.known[e] != count) add_error(args.num_errors);
}

// `count` rounded up. The sum over all experts is below 2^31, so unsigned arithmetic is safe.
__device__ std::int32_t padded(std::int32_t count, std::int32_t alignment) {
  return static_cast<std::int32_t>(
      align_up(static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(alignment)));
}

// The sum of the values of earlier threads in a block of kPlaceThreads; `total` is that of all.
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

// Where an expert's rows begin, and how many of them hold a token.
struct ExpertRows {
  std::int32_t first_row;
  std::int32_t count;
};

// Places those choices of this block's chunk whose expert is in [first, first + width).
__device__ void place_chunk(const MapArgs& args, std::int32_t first, std::int32_t width,
                            const std::int32_t* starts) {
  const ChoiceMap& map = args.map;
  const auto num_topk = static_cast<std::int32_t>(args.ids.num_topk);
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * map.chunk_choices;
  const std::int32_t left = map.num_choices - begin;
  const std::int32_t count = left < map.chunk_choices ? left : map.chunk_choices;
#pragma unroll 1
  for (std::int32_t j = static_cast<std::int32_t>(threadIdx.x); j < count; j += kPlaceThreads) {
    const std::int32_t i = begin + j;
    const PlacedChoice choice = map.choices[i];
    if (choice.expert < first || choice.expert >= first + width) continue;
    const std::int32_t place = choice.place + starts[choice.expert - first];
    map.choices[i].place = place;
    if (args.inv_perm != nullptr) args.inv_perm[i] = place;
    if (args.tokens != nullptr) args.tokens[place] = i / num_topk;
  }
}

// Marks this block's share of the rows [begin, end) with what they hold. The rows belong to the
// `count` experts from `first` on, or to none.
__device__ void mark_rows(const MapArgs& args, std::int64_t begin, std::int64_t end,
                          std::int32_t first, std::int32_t count, const ExpertRows* experts) {
  std::int64_t row = begin + std::int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x;
#pragma unroll 1
  for (; row < end; row += std::int64_t{gridDim.x} * kPlaceThreads) {
    // The last expert that begins at or before the row. Among experts that begin together, only the
    // last can have rows.
    std::int32_t low = 0;
    std::int32_t high = count;
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      (experts[middle].first_row <= row ? low : high) = middle;
    }
    const bool has_token = count > 0 && row - experts[low].first_row < experts[low].count;
    args.m_indices[row] = has_token || args.is_padding_owned ? first + low : -1;
    if (!has_token && args.tokens != nullptr) args.tokens[row] = -1;
  }
}

// Threads form a table: 2^log_width columns, one per expert, by groups of chunks.
__global__ void __launch_bounds__(kPlaceThreads) place_choices_kernel(MapArgs args, int log_width) {
  __shared__ ChunkSum sums[kPlaceThreads];
  __shared__ std::int32_t starts[kPlaceThreads];
  __shared__ ExpertRows experts[kPlaceThreads];
  follow_kernel();
  const ChoiceMap& map = args.map;
  const int thread = static_cast<int>(threadIdx.x);
  const int width = 1 << log_width;
  const int num_groups = kPlaceThreads >> log_width;
  const int group = thread >> log_width;
  const int column = thread & (width - 1);
  const int group_chunks = cdiv(map.num_chunks, num_groups);
  const int begin = group * group_chunks;
  const int end = begin + group_chunks < map.num_chunks ? begin + group_chunks : map.num_chunks;
  const bool is_first_block = blockIdx.x == 0;
  const std::int64_t choice = std::int64_t{blockIdx.x} * map.chunk_choices + thread;
  if (choice < map.num_choices) {  // on its way with the counts
    prefetch_l1(map.choices + choice);
  }
  std::int32_t next_row = 0;
#pragma unroll 1
  for (std::int32_t tile = 0; tile < map.num_local; tile += width) {
    const std::int32_t e = tile + column;
    const bool is_expert = e < map.num_local;
    sums[thread] = is_expert ? sum_chunks(map, e, begin, end) : ChunkSum{};
    __syncthreads();
    ChunkSum sum;
#pragma unroll 1
    for (int g = 0; g < num_groups; ++g) {
      sum.all += sums[g * width + column].all;
      sum.earlier += sums[g * width + column].earlier;
    }
    // One thread per expert contributes to the scan, in the order of experts.
    std::int32_t tile_rows = 0;
    const std::int32_t first_row =
        next_row + sum_before(group == 0 ? padded(sum.all, args.alignment) : 0, &tile_rows);
    const std::int32_t tile_begin = next_row;
    next_row += tile_rows;
    if (group == 0) {
      starts[column] = (args.is_aligned ? first_row : 0) + sum.earlier;
      experts[column] = {first_row, sum.all};
      if (is_expert && is_first_block) write_expert(args, e, sum.all, first_row);
    }
    __syncthreads();
    if (blockIdx.x < static_cast<unsigned>(map.num_chunks)) place_chunk(args, tile, width, starts);
    const std::int32_t num_experts = map.num_local - tile < width ? map.num_local - tile : width;
    if (args.m != 0) mark_rows(args, tile_begin, next_row, tile, num_experts, experts);
    __syncthreads();
  }
  mark_rows(args, next_row, args.m, 0, 0, experts);
  if (thread == 0 && is_first_block) *args.num_rows = next_row;
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
  while (1 << log_width < std::min(kPlaceThreads, num_local)) ++log_width;
  // If there are few chunks, extra blocks help to mark rows.
  const std::int64_t marking =
      std::min<std::int64_t>(kMaxMarkingBlocks, cdiv<std::int64_t>(args.m, kPlaceThreads));
  const int num_blocks = std::max({1, args.map.num_chunks, static_cast<int>(marking)});
  launch_kernel(place_choices_kernel,
                {num_blocks, kPlaceThreads, 0, overlaps && args.map.num_chunks > 0, stream.get()},
                "place_choices_kernel", args, log_width);
}

}  // namespace switchyard::cuda
