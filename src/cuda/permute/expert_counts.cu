// SPDX-License-Identifier: Apache-2.0
//
// expert_counts.cu: counts ids, maps ids through an expert_map, and sums the rows that counts need.
// Counts are integer sums, so the order of the additions does not matter.

#include "cuda/base/check.h"
#include "cuda/base/row_words.cuh"
#include "cuda/permute/permute.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kSharedCounts = 8192;  // above this, experts are counted in global memory

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// The local id of choice i; -1, and an error, if the map has no entry.
__device__ std::int64_t local_id(const IdTable& ids, const ExpertLookup& lookup, std::int64_t i,
                                 std::int32_t* num_errors) {
  const std::int64_t id = ids.at(i / ids.num_topk, i % ids.num_topk);
  if (lookup.knows(id)) return lookup.local(id);
  add_error(num_errors);
  return -1;
}

__device__ void count_ids(const CountArgs& args, std::int32_t* counts) {
  const std::int64_t num_ids = args.ids.num_tokens * args.ids.num_topk;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = thread_index(); i < num_ids; i += step) {
    const std::int64_t expert = local_id(args.ids, args.lookup, i, args.num_errors);
    if (expert >= 0 && expert < args.num_local) atomicAdd(counts + expert, 1);
  }
}

__global__ void count_experts_kernel(CountArgs args) {
  extern __shared__ std::int32_t block_counts[];
  if (args.num_local > kSharedCounts) return count_ids(args, args.counts);
  for (std::int64_t e = threadIdx.x; e < args.num_local; e += blockDim.x) block_counts[e] = 0;
  __syncthreads();
  count_ids(args, block_counts);
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < args.num_local; e += blockDim.x) {
    if (block_counts[e] != 0) atomicAdd(args.counts + e, block_counts[e]);
  }
}

template <typename Id>
__global__ void map_ids_kernel(MapIdsArgs args) {
  const std::int64_t i = thread_index();
  if (i >= args.ids.num_tokens * args.ids.num_topk) return;
  const std::int64_t t = i / args.ids.num_topk;
  const std::int64_t k = i % args.ids.num_topk;
  auto* to = static_cast<Id*>(const_cast<void*>(args.local.data));
  to[t * args.local.token_stride + k * args.local.choice_stride] =
      static_cast<Id>(local_id(args.ids, args.lookup, i, args.num_errors));
}

// One thread block; integer sums are exact, so a tree may compute them.
__global__ void round_up_and_sum_kernel(RoundUpArgs args) {
  __shared__ std::int64_t sums[kThreads];
  std::int64_t sum = 0;
  for (std::int64_t e = threadIdx.x; e < args.num_local; e += kThreads) {
    const std::int64_t count = args.counts[e];
    if (count < 0) {
      add_error(args.num_errors);
    } else {
      sum += (count / args.alignment + (count % args.alignment != 0)) * args.alignment;
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *args.sum = sums[0];
}

}  // namespace

void count_experts(const CountArgs& args, Stream stream) {
  if (args.num_local > 0) {
    check_cuda(
        cudaMemsetAsync(args.counts, 0, static_cast<std::size_t>(args.num_local) * 4, stream.get()),
        "count_expert_num_tokens");
  }
  const std::int64_t num_ids = args.ids.num_tokens * args.ids.num_topk;
  if (num_ids == 0) return;
  constexpr std::int64_t kIdsOfThread = 4;
  constexpr std::int64_t kMaxBlocks = 128;
  const std::int64_t num_blocks =
      std::min(kMaxBlocks, cdiv<std::int64_t>(num_ids, kThreads * kIdsOfThread));
  const bool is_shared = args.num_local <= kSharedCounts;
  const auto shared_bytes = is_shared ? static_cast<std::size_t>(args.num_local) * 4 : 0;
  count_experts_kernel<<<static_cast<unsigned>(num_blocks), kThreads, shared_bytes, stream.get()>>>(
      args);
  check_launch("count_experts_kernel");
}

void map_ids(const MapIdsArgs& args, Stream stream) {
  const std::int64_t num_ids = args.ids.num_tokens * args.ids.num_topk;
  if (num_ids == 0) return;
  const auto num_blocks = static_cast<unsigned>(cdiv<std::int64_t>(num_ids, kThreads));
  if (args.ids.is_64_bit) {
    map_ids_kernel<std::int64_t><<<num_blocks, kThreads, 0, stream.get()>>>(args);
  } else {
    map_ids_kernel<std::int32_t><<<num_blocks, kThreads, 0, stream.get()>>>(args);
  }
  check_launch("map_ids_kernel");
}

void round_up_and_sum(const RoundUpArgs& args, Stream stream) {
  round_up_and_sum_kernel<<<1, kThreads, 0, stream.get()>>>(args);
  check_launch("round_up_and_sum_kernel");
}

}  // namespace switchyard::cuda
