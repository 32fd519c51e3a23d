// SPDX-License-Identifier: Apache-2.0
//
// direct_places.cuh: where a rank's rows go at each rank, by counts alone. Rows of source s at rank
// d begin behind those of the sources before it, in the order of tokens. The tokens of a rank are
// counted by parts, each by one CTA, which sends its counts to all ranks before it waits for any.
#pragma once

#include "cuda/exchange/direct_args.h"
#include "cuda/exchange/dispatch_places.cuh"

namespace switchyard::cuda {

/// The start of a sender's dynamic shared memory. For each token of a batch follow the ranks that
/// it goes to, by bit, and the numbers of its rows: of those for that rank that this sender's share
/// has before it; -1: none.
struct DirectShared {
  std::int32_t counted[kMaxPushRanks];  ///< rows of a part of the tokens for each rank
  std::int32_t first[kMaxPushRanks];    ///< where this rank's rows begin there
  std::int32_t before[kMaxPushRanks];   ///< this rank's rows there of the tokens before the share
  std::int32_t next[kMaxPushRanks];     ///< number of the next batch's first row
  std::uint32_t failed;
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxChunkScaleBytes];

  __device__ __forceinline__ std::uint64_t* goes() {
    return reinterpret_cast<std::uint64_t*>(this + 1);
  }
  __device__ __forceinline__ std::int32_t* numbers(const DirectDispatchArgs& a) {
    return reinterpret_cast<std::int32_t*>(goes() + a.units.tokens_of_batch);
  }
  __device__ __forceinline__ void clear(const DispatchArgs& a) {
    static_assert(kMaxPushRanks <= kMinExchangeThreads);
    if (threadIdx.x >= kMaxPushRanks) return;
    counted[threadIdx.x] = 0;
    before[threadIdx.x] = 0;
    next[threadIdx.x] = 0;
    first[threadIdx.x] = a.rank * a.received.source_rows;
    if (threadIdx.x == 0) failed = 0;
  }
};

/// The ranks that a token goes to, by bit.
__device__ __forceinline__ std::uint64_t ranks_of_token(const DirectDispatchArgs& a, int token) {
  std::uint64_t ranks = 0;
  const auto add = [&](std::int32_t id) {
    if (names_expert(a, id)) ranks |= std::uint64_t{1} << a.ownership.owner(id);
  };
  if (a.units.ids_of_token > 0) {
    const auto* units =
        static_cast<const uint4*>(a.tokens.ids.data) + std::int64_t{token} * a.units.ids_of_token;
#pragma unroll 2
    for (int u = 0; u < a.units.ids_of_token; ++u) {
      const uint4 unit = units[u];
      if (a.tokens.ids.are_64_bits) {
        add(GivenId{unit.x, unit.y}.value(a.tokens.ids));
        add(GivenId{unit.z, unit.w}.value(a.tokens.ids));
        continue;
      }
      for (const std::uint32_t id : {unit.x, unit.y, unit.z, unit.w}) {
        add(static_cast<std::int32_t>(id));
      }
    }
    return ranks;
  }
  const std::int64_t at = std::int64_t{token} * a.num_topk;
#pragma unroll 1
  for (int k = 0; k < a.num_topk; ++k) {
    GivenId given;
    given.request(a.tokens.ids, at + k);
    add(given.value(a.tokens.ids));
  }
  return ranks;
}

/// Counts of tokens by rank: lane i has those of ranks i and i + 32.
struct LaneCounts {
  int low = 0;
  int high = 0;

  __device__ __forceinline__ void add(int rank, int lane, int count) {
    if (rank % kLanes != lane) return;
    (rank < kLanes ? low : high) += count;
  }
  __device__ __forceinline__ int of(int rank) const {
    return __shfl_sync(kAllLanes, rank < kLanes ? low : high, rank % kLanes);
  }
};
static_assert(kMaxPushRanks == 2 * kLanes);

/// Adds to `counts` how many of the tokens from `begin` to `end` go to each rank.
__device__ __forceinline__ void count_tokens(const DirectDispatchArgs& a, int begin, int end,
                                             std::int32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  LaneCounts own;
#pragma unroll 1
  for (int first = begin + static_cast<int>(threadIdx.x) - lane; first < end;
       first += cta_threads()) {
    const std::uint64_t ranks = first + lane < end ? ranks_of_token(a, first + lane) : 0;
#pragma unroll 1
    for (int d = 0; d < a.ownership.num_ranks; ++d) {
      own.add(d, lane, __popc(__ballot_sync(kAllLanes, (ranks >> d & 1) != 0)));
    }
  }
  if (own.low != 0) atomicAdd(counts + lane, own.low);
  if (own.high != 0) atomicAdd(counts + kLanes + lane, own.high);
}

/// Counts parts `first`, `first` + `step` and so on of the tokens and tells every rank. Begins with
/// requesting the call, and ends with a barrier.
__device__ __forceinline__ void publish_counts(const DirectDispatchArgs& a, const CallOfCta& call,
                                               int first, int step, DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
#pragma unroll 1
  for (int part = first; part < a.parts.count; part += step) {
    const int begin = part * a.parts.tokens;
    count_tokens(a, begin, min(begin + a.parts.tokens, a.tokens.count), shared.counted);
    __syncthreads();
    if (call.has_failed != 0) return;
    stamp(a, Stage::kCallKnown);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < num_ranks * num_ranks; i += cta_threads()) {
      const int peer = a.grid.by_ranks.quotient(i);
      const int to = i - peer * num_ranks;
      store_record(a.windows.base[peer] + a.direct.count(a.rank, part, to),
                   static_cast<std::uint32_t>(shared.counted[to]), tag_of(call.number));
    }
    if (part + step >= a.parts.count) return;
    __syncthreads();
    if (threadIdx.x < kMaxPushRanks) shared.counted[threadIdx.x] = 0;
    __syncthreads();
  }
}

/// Receives the counts of all ranks and adds up what comes before this rank's rows, and before
/// those of part `own_part`. Also of ranks whose rows do not come before one is awaited, because a
/// rank may store to a peer only when the peer has begun this call.
__device__ __forceinline__ void receive_counts(const DirectDispatchArgs& a, std::uint64_t call,
                                               int own_part, DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  const std::byte* own = a.windows.base[a.rank];
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_ranks * a.parts.count * num_ranks;
       i += cta_threads()) {
    const int source_part = a.grid.by_ranks.quotient(i);
    const int to = i - source_part * num_ranks;
    const int source = a.by_parts.quotient(source_part);
    const int part = source_part - source * a.parts.count;
    const bool is_own = source == a.rank;
    const bool is_before =
        is_own ? part < own_part : source < a.rank && a.received.source_rows == 0;
    if (!is_before && (is_own || part != 0 || to != 0)) continue;
    std::uint32_t count = 0;
    if (!wait_record(own + a.direct.count(source, part, to), a.watch,
                     {WaitPlace::kAnnouncement, source, -1, call}, count)) {
      shared.failed = 1;
    } else if (is_before) {
      atomicAdd((is_own ? shared.before : shared.first) + to, static_cast<std::int32_t>(count));
    }
  }
}

/// One warp numbers the rows of a batch of the share's tokens, from `begin` on.
__device__ __forceinline__ void number_rows(const DirectDispatchArgs& a, int begin, int end,
                                            int lane, DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  const int size = min(end - begin, a.units.tokens_of_batch);
  LaneCounts next{shared.next[lane], shared.next[kLanes + lane]};
#pragma unroll 1
  for (int first = 0; first < size; first += kLanes) {
    const int at = first + lane;
    const std::uint64_t ranks = at < size ? ranks_of_token(a, begin + at) : 0;
    if (at < size) shared.goes()[at] = ranks;
    std::int32_t* numbers = shared.numbers(a) + at * num_ranks;
#pragma unroll 1
    for (int d = 0; d < num_ranks; ++d) {
      const bool goes = (ranks >> d & 1) != 0;
      const unsigned going = __ballot_sync(kAllLanes, goes);
      const int number = next.of(d) + __popc(going & ((1u << lane) - 1));
      if (at < size) numbers[d] = goes ? number : -1;
      next.add(d, lane, __popc(going));
    }
  }
  __syncwarp();
  shared.next[lane] = next.low;
  shared.next[kLanes + lane] = next.high;
}

}  // namespace switchyard::cuda
