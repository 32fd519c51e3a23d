// SPDX-License-Identifier: Apache-2.0
//
// row_ids.cu: kernels over ids, one thread each. Ids are small compared with their rows.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/experts/layer_rows.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ std::int64_t renamed(const RenameIdsArgs& args, std::int64_t id) {
  if (id == -1) return args.none;
  if (id < 0 || id >= args.num_ids) return args.invalid;
  return args.table == nullptr ? id + args.offset : std::int64_t{args.table[id]};
}

__global__ void rename_ids_kernel(RenameIdsArgs args) {
  const std::int64_t i = thread_index();
  if (i >= args.from.num_tokens * args.from.num_topk) return;
  const std::int64_t t = i / args.from.num_topk;
  const std::int64_t k = i % args.from.num_topk;
  const bool has_token = args.num_rows == nullptr || t < *args.num_rows;
  const std::int64_t id = has_token ? renamed(args, args.from.at(t, k)) : args.none;
  const std::int64_t at = t * args.to.token_stride + k * args.to.choice_stride;
  void* const to = const_cast<void*>(args.to.data);
  if (args.to.is_64_bit) {
    static_cast<std::int64_t*>(to)[at] = id;
  } else {
    static_cast<std::int32_t*>(to)[at] = static_cast<std::int32_t>(id);
  }
  if (!has_token && args.weights != nullptr) args.weights[i] = 0.0f;
}

__device__ std::int64_t aligned_count(const MarkRowsArgs& args, std::int32_t e) {
  const std::int64_t count = args.num_rows[e];
  return (count + args.alignment - 1) / args.alignment * args.alignment;
}

// The last expert that begins at or before row n.
__device__ std::int32_t part_of(const MarkRowsArgs& args, std::int64_t n) {
  std::int32_t low = 0;
  std::int32_t high = args.num_local;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (args.first_row[middle] <= n ? low : high) = middle;
  }
  return low;
}

__global__ void mark_rows_kernel(MarkRowsArgs args) {
  const std::int64_t n = thread_index();
  const std::int32_t last = args.num_local - 1;
  const std::int64_t end = last < 0 ? 0 : args.first_row[last] + aligned_count(args, last);
  if (n < args.num_local) {
    const auto e = static_cast<std::int32_t>(n);
    args.aligned_counts[e] = static_cast<std::int32_t>(aligned_count(args, e));
  }
  if (n == 0) *args.end = static_cast<std::int32_t>(end);
  if (n >= args.m) return;
  std::int64_t id = -1;
  bool has_token = false;
  if (n < end) {
    const std::int32_t e = part_of(args, n);
    id = args.first_expert + e;
    has_token = n < args.first_row[e] + args.num_rows[e];
  }
  args.ids[n] = id;
  if (!has_token && args.weights != nullptr) args.weights[n] = 0.0f;
}

unsigned blocks_of(std::int64_t num_threads) {
  return static_cast<unsigned>(cdiv<std::int64_t>(num_threads, kThreads));
}

}  // namespace

void rename_ids(const RenameIdsArgs& args, Stream stream) {
  const std::int64_t num_ids = args.from.num_tokens * args.from.num_topk;
  if (num_ids == 0) return;
  rename_ids_kernel<<<blocks_of(num_ids), kThreads, 0, stream.get()>>>(args);
  check_launch("rename_ids_kernel");
}

void mark_rows(const MarkRowsArgs& args, Stream stream) {
  const std::int64_t num_threads = std::max<std::int64_t>({1, args.m, args.num_local});
  mark_rows_kernel<<<blocks_of(num_threads), kThreads, 0, stream.get()>>>(args);
  check_launch("mark_rows_kernel");
}

}  // namespace switchyard::cuda
