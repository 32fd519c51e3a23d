// SPDX-License-Identifier: Apache-2.0
//
// combine_kernel.cuh: the combine kernel for one form of returned rows: senders first, then
// receivers, as in dispatch_kernel.cuh. It does not advance the call number, because it belongs to
// the call that dispatch has counted.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/combine_plain.cuh"
#include "cuda/exchange/combine_stream.cuh"

namespace switchyard::cuda {

/// kStreams: of common rows only.
template <class Wire, bool kIsCommon, bool kStreams>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    combine_kernel(const __grid_constant__ CombineArgs a, bool sends) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ CallOfCta next;
  __shared__ std::int32_t num_arrivals[kMaxPushRanks];
  const std::uint32_t prefetched = begin_kernel(a);
  const int cta = static_cast<int>(blockIdx.x);
  if constexpr (kStreams) {
    stream_tokens<Wire>(a, prefetched, next, num_arrivals, memory);
    __syncthreads();
    sum_tokens<Wire, kIsCommon, kStreamChunks>(a, prefetched, next, cta);
  } else {
    const int num_sending = sends ? a.grid.num_senders : 0;
    if (cta < num_sending) {
      return_tokens<Wire, kIsCommon>(a, prefetched, next, cta, num_arrivals);
    } else {
      sum_tokens<Wire, kIsCommon>(a, prefetched, next, cta - num_sending);
    }
  }
  stamp_end(a);
}

/// The wire that most calls have; one kernel for each would be too many.
template <class Wire>
inline constexpr bool kCanStream = std::is_same_v<Wire, PlainWire<DType::kBF16>>;

template <class Wire, bool kIsCommon, bool kStreams>
void launch_kernel_of(const CombineArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream) {
  const int ctas = args.grid.num_ctas(sends(phases), receives(phases));
  const std::size_t shared = kStreams ? stream_shared_bytes(kExchangeWarps) : 0;
  const auto kernel = combine_kernel<Wire, kIsCommon, kStreams>;
  if (phases == Phases::kNone && kStreams) allow_shared_memory(kernel, shared, "combine");
  launch_kernel(kernel,
                {std::max(1, ctas), args.grid.num_warps * kLanes, shared, programmatic, stream},
                "combine", args, sends(phases));
}

/// See return_vec.cuh. Arguments of the phase that is not launched are not set.
template <class Wire>
bool is_common(const CombineArgs& args, Phases phases) {
  constexpr std::int64_t kMaxStride = 0xFFFFFFFF;
  const ReturnInput& rows = args.results;
  const SumOutput& sums = args.sums;
  const bool has_common_rows =
      rows.dtype == Wire::kRows && rows.are_aligned && rows.stride <= kMaxStride;
  const bool has_common_sums = sums.dtype == Wire::kRows && sums.are_aligned &&
                               sums.stride <= kMaxStride && sums.num_bias == 0 &&
                               sums.shared == nullptr;
  return args.layout.shape.hidden % kReturnChunkElements == 0 &&
         (!sends(phases) || has_common_rows) && (!receives(phases) || has_common_sums);
}

/// AnyWire serves calls that are not common.
template <class Wire, class AnyWire = Wire>
void launch_wire(const CombineArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  const bool runs_all = phases == Phases::kNone;
  const bool calls_common = is_common<Wire>(args, phases);
  if constexpr (kCanStream<Wire>) {
    if (runs_all || args.grid.streams) {
      launch_kernel_of<Wire, true, true>(args, phases, programmatic, stream);
    }
  }
  if (runs_all || (calls_common && !args.grid.streams)) {
    launch_kernel_of<Wire, true, false>(args, phases, programmatic, stream);
  }
  if (runs_all || !calls_common) {
    launch_kernel_of<AnyWire, false, false>(args, phases, programmatic, stream);
  }
}

}  // namespace switchyard::cuda
