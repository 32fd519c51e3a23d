// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/launch.h"
#include "cuda/exchange/row_sources.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxCtas = 1024;
constexpr int kNoSourceByte = 0xFF;  // -1

// A thread for each arrival: its rows differ only where layouts have a row for each choice. In
// other layouts the last write to k is of the highest one.
__global__ void __launch_bounds__(kThreads) row_sources_kernel(RowSourcesArgs a) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t num_places = std::int64_t{a.num_ranks} * a.max_tokens;
  for (std::int64_t i = first; i < num_places; i += std::int64_t{gridDim.x} * blockDim.x) {
    const auto source = static_cast<std::int32_t>(i / a.max_tokens);
    if (i - std::int64_t{source} * a.max_tokens >= a.state.num_arrivals[source]) continue;
    const std::int32_t token = a.state.arrival_token[i];
    for (std::int32_t k = 0; k < a.num_columns; ++k) {
      const std::int32_t row = a.state.arrival_rows[i * a.num_columns + k];
      if (row < 0 || row >= a.num_rows) continue;
      if (a.rank != nullptr) a.rank[row] = source;
      if (a.token != nullptr) a.token[row] = token;
      if (a.k != nullptr) a.k[row] = k;
    }
  }
  if (a.rows_per_rank == nullptr) return;
  for (std::int64_t s = first; s < a.num_ranks; s += std::int64_t{gridDim.x} * blockDim.x) {
    a.rows_per_rank[s] = a.state.num_arrivals[s];
  }
}

}  // namespace

void launch_row_sources(const RowSourcesArgs& args, cudaStream_t stream) {
  for (std::int32_t* list : {args.rank, args.token, args.k}) {
    if (list == nullptr || args.num_rows == 0) continue;
    const auto bytes = static_cast<std::size_t>(args.num_rows) * sizeof(std::int32_t);
    check_cuda(cudaMemsetAsync(list, kNoSourceByte, bytes, stream), "write_row_sources");
  }
  const bool has_rows = args.rank != nullptr || args.token != nullptr || args.k != nullptr;
  const std::int64_t num_threads = std::max<std::int64_t>(
      args.num_ranks, has_rows ? std::int64_t{args.num_ranks} * args.max_tokens : 0);
  const auto ctas = static_cast<int>(
      std::clamp<std::int64_t>(cdiv<std::int64_t>(num_threads, kThreads), 1, kMaxCtas));
  launch_kernel(row_sources_kernel, {ctas, kThreads, 0, false, stream}, "write_row_sources", args);
}

}  // namespace switchyard::cuda
