// SPDX-License-Identifier: Apache-2.0
//
// compat_rows.cu: plain kernels, a thread for each element or token; none of them waits.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/compat/compat_rows.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::int64_t num_threads() { return std::int64_t{gridDim.x} * blockDim.x; }

template <typename Element>
__global__ void fill_tails_kernel(FillTailsArgs args) {
  auto* const data = static_cast<Element*>(args.data);
  const std::int64_t block_elements = args.rows_per_block * args.elements_per_row;
  for (std::int64_t b = blockIdx.y; b < args.num_blocks; b += gridDim.y) {
    const std::int64_t begin = args.num_rows[b] * args.elements_per_row;
    for (std::int64_t i = begin + thread_index(); i < block_elements; i += num_threads()) {
      data[b * block_elements + i] = static_cast<Element>(args.value);
    }
  }
}

// The first row of the expert, from 0 to num_rows, whose source is not below `rank`.
__device__ std::int64_t lower_bound(const std::int32_t* ranks, std::int64_t num_rows,
                                    std::int32_t rank) {
  std::int64_t low = 0;
  std::int64_t high = num_rows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (ranks[middle] < rank) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void row_segments_kernel(RowSegmentsArgs args) {
  const std::int64_t size = std::int64_t{args.num_local} * args.num_ranks;
  for (std::int64_t i = thread_index(); i < size; i += num_threads()) {
    const std::int64_t e = i / args.num_ranks;
    const auto s = static_cast<std::int32_t>(i % args.num_ranks);
    const std::int32_t* const ranks = args.source_rank + e * args.capacity;
    const std::int64_t begin = lower_bound(ranks, args.num_rows[e], s);
    const std::int64_t end = lower_bound(ranks, args.num_rows[e], s + 1);
    args.segments[i] = begin == end ? 0 : begin * (std::int64_t{1} << 32) + (end - begin);
    if (s == 0 && args.totals != nullptr) args.totals[e] += args.num_rows[e];
  }
}

__global__ void mask_weights_kernel(MaskWeightsArgs args) {
  for (std::int64_t i = thread_index(); i < args.num_elements; i += num_threads()) {
    if (args.ids[i] < 0) args.weights[i] = 0.0f;
  }
}

// As many counts as ranks or local experts: one thread is enough.
__global__ void running_sums_kernel(RunningSumsArgs args) {
  std::int64_t start = 0;
  for (std::int32_t i = 0; i < args.size; ++i) {
    const std::int64_t count = args.counts[i];
    const std::int64_t next =
        start + (count + args.alignment - 1) / args.alignment * args.alignment;
    args.ends[i] = static_cast<std::int32_t>(args.ends_are_aligned ? next : start + count);
    start = next;
  }
}

__global__ void sent_tokens_kernel(SentTokensArgs args) {
  for (std::int64_t t = thread_index(); t < args.ids.num_tokens; t += num_threads()) {
    std::uint8_t* const flags = args.is_token_in_rank + t * args.ownership.num_ranks;
    for (int r = 0; r < args.ownership.num_ranks; ++r) flags[r] = 0;
    for (std::int64_t k = 0; k < args.ids.num_topk; ++k) {
      const std::int64_t id = args.ids.at(t, k);
      if (id < 0 || id >= args.ownership.num_experts) continue;
      const int rank = args.ownership.owner(static_cast<int>(id));
      if (flags[rank] != 0) continue;
      flags[rank] = 1;
      atomicAdd(args.num_tokens_per_rank + rank, 1);
    }
  }
}

unsigned blocks_of(std::int64_t num_items) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(cdiv<std::int64_t>(num_items, kThreads), 1, kMaxBlocks));
}

}  // namespace

void fill_tails(const FillTailsArgs& args, Stream stream) {
  constexpr std::int32_t kMaxGridRows = 1024;
  const std::int64_t block_elements = args.rows_per_block * args.elements_per_row;
  if (args.num_blocks == 0 || block_elements == 0) return;
  const dim3 grid(blocks_of(block_elements),
                  static_cast<unsigned>(std::min(args.num_blocks, kMaxGridRows)));
  if (args.element_bytes == 1) {
    fill_tails_kernel<std::uint8_t><<<grid, kThreads, 0, stream.get()>>>(args);
  } else {
    fill_tails_kernel<std::int32_t><<<grid, kThreads, 0, stream.get()>>>(args);
  }
  check_launch("fill_tails_kernel");
}

void find_row_segments(const RowSegmentsArgs& args, Stream stream) {
  const std::int64_t size = std::int64_t{args.num_local} * args.num_ranks;
  if (size == 0) return;
  row_segments_kernel<<<blocks_of(size), kThreads, 0, stream.get()>>>(args);
  check_launch("row_segments_kernel");
}

void mask_weights(const MaskWeightsArgs& args, Stream stream) {
  if (args.num_elements == 0) return;
  mask_weights_kernel<<<blocks_of(args.num_elements), kThreads, 0, stream.get()>>>(args);
  check_launch("mask_weights_kernel");
}

void running_sums(const RunningSumsArgs& args, Stream stream) {
  running_sums_kernel<<<1, 1, 0, stream.get()>>>(args);
  check_launch("running_sums_kernel");
}

void count_sent_tokens(const SentTokensArgs& args, Stream stream) {
  const auto bytes = static_cast<std::size_t>(args.ownership.num_ranks) * sizeof(std::int32_t);
  check_cuda(cudaMemsetAsync(args.num_tokens_per_rank, 0, bytes, stream.get()),
             "get_dispatch_layout");
  if (args.ids.num_tokens == 0) return;
  sent_tokens_kernel<<<blocks_of(args.ids.num_tokens), kThreads, 0, stream.get()>>>(args);
  check_launch("sent_tokens_kernel");
}

}  // namespace switchyard::cuda
