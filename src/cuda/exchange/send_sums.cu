// SPDX-License-Identifier: Apache-2.0
//
// Rounds the sums of a host to the wire.

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/combine_plain.cuh"
#include "cuda/exchange/combine_quantized.cuh"
#include "cuda/exchange/host_rows.h"

namespace switchyard::cuda {
namespace {

constexpr int kSendSumsThreads = 256;
constexpr int kSendSumsWarps = kSendSumsThreads / kLanes;

/// A lane's part of a chunk.
__device__ __forceinline__ void send_sum(const CombineArgs& a, std::uint64_t call,
                                         const ReturnTo& to, int lane, bool is_there,
                                         const float (&x)[kReturnVecElements]) {
  if (a.wire.group != ScaleGroup::kNone) {
    return QuantizedWire<false>::send(a, call, to, lane, is_there, x);
  }
  switch (a.wire.dtype) {
    case DType::kF32: return PlainWire<DType::kF32>::send(a, call, to, lane, is_there, x);
    case DType::kF16: return PlainWire<DType::kF16>::send(a, call, to, lane, is_there, x);
    default: return PlainWire<DType::kBF16>::send(a, call, to, lane, is_there, x);
  }
}

/// One warp per chunk of a token.
__global__ void __launch_bounds__(kSendSumsThreads)
    send_sums_kernel(const __grid_constant__ CombineArgs a, std::uint64_t ranks) {
  if (*const_cast<const volatile std::uint32_t*>(a.watch.failed) != 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::uint64_t call = next_call(a.state) - 1;
  std::byte* window = a.windows.base[a.rank];
  const int num_chunks = a.layout.num_return_chunks;
  const std::int64_t num_items = std::int64_t{a.sums.num_tokens} * num_chunks;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kSendSumsWarps + threadIdx.x / kLanes;
       item < num_items; item += std::int64_t{gridDim.x} * kSendSumsWarps) {
    const auto token = static_cast<std::int32_t>(item / num_chunks);
    const auto chunk = static_cast<std::int32_t>(item - std::int64_t{token} * num_chunks);
    const std::int64_t first = std::int64_t{token} * a.num_topk;
    const bool is_partial = lane < a.state.num_partials[token];
    const std::int32_t rank = is_partial ? a.state.partial_ranks[first + lane] : 0;
    const unsigned found = __ballot_sync(kAllLanes, is_partial && (ranks >> rank & 1) != 0);
    if (found == 0) continue;
    const std::int32_t column = a.state.columns[first + __ffs(static_cast<int>(found)) - 1];
    const std::int32_t element = chunk * kReturnChunkElements + lane * kReturnVecElements;
    const bool is_there = element < a.layout.shape.hidden;
    float x[kReturnVecElements];
    widen_raw(DType::kF32,
              load_raw({a.results.data, a.results.stride, a.layout.shape.hidden, DType::kF32,
                        a.results.are_aligned},
                       token, element, is_there),
              x);
    std::byte* to = window + a.layout.returned(token, column) +
                    static_cast<std::size_t>(chunk) * a.layout.return_chunk_stride;
    send_sum(a, call, {window, to}, lane, is_there, x);
  }
}

}  // namespace

void launch_send_sums(const CombineArgs& args, std::uint64_t ranks, cudaStream_t stream) {
  constexpr std::int64_t kMaxCtas = 1024;
  const std::int64_t num_items = std::int64_t{args.sums.num_tokens} * args.layout.num_return_chunks;
  const std::int64_t ctas = (num_items + kSendSumsWarps - 1) / kSendSumsWarps;
  launch_kernel(send_sums_kernel,
                {static_cast<int>(std::clamp<std::int64_t>(ctas, 1, kMaxCtas)), kSendSumsThreads, 0,
                 false, stream},
                "combine", args, ranks);
}

}  // namespace switchyard::cuda
