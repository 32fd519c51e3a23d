// SPDX-License-Identifier: Apache-2.0
//
// direct_places.cuh: where a rank's rows go at each rank, by counts alone. Rows of source s at rank
// d begin behind those of the sources before it, in the order of tokens.
#pragma once

#include "cuda/exchange/direct_args.h"
#include "cuda/exchange/dispatch_places.cuh"

namespace switchyard::cuda {

/// Tokens whose rows a CTA knows at a time.
inline constexpr int kDirectTokens = 64;
/// Chunks that a warp has in registers at a time, at most.
inline constexpr int kMaxChunksTogether = 4;

/// The start of a sender's dynamic shared memory, followed by [kDirectTokens, P] numbers of rows
/// among this rank's at each rank; -1: none.
struct DirectShared {
  std::int32_t next[kMaxPushRanks];   ///< number of the next token's row at each rank
  std::int32_t first[kMaxPushRanks];  ///< where this rank's rows begin there
  std::uint32_t failed;
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxChunksTogether * kMaxChunkScaleBytes];

  __device__ __forceinline__ std::int32_t* numbers() {
    return reinterpret_cast<std::int32_t*>(this + 1);
  }
};

/// The ranks that a token goes to, by bit.
__device__ __forceinline__ std::uint64_t ranks_of_token(const DispatchArgs& a, int token) {
  const std::int64_t at = std::int64_t{token} * a.num_topk;
  std::uint64_t ranks = 0;
#pragma unroll 8
  for (int k = 0; k < a.num_topk; ++k) {
    GivenId given;
    given.request(a.tokens.ids, at + k);
    const std::int32_t id = given.value(a.tokens.ids);
    if (names_expert(a, id)) ranks |= std::uint64_t{1} << a.ownership.owner(id);
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

/// Adds to shared.next how many of the tokens before `end` go to each rank.
__device__ __forceinline__ void count_tokens_before(const DispatchArgs& a, int end,
                                                    DirectShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  LaneCounts counts;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) - lane; first < end; first += cta_threads()) {
    const std::uint64_t ranks = first + lane < end ? ranks_of_token(a, first + lane) : 0;
#pragma unroll 1
    for (int d = 0; d < a.ownership.num_ranks; ++d) {
      counts.add(d, lane, __popc(__ballot_sync(kAllLanes, (ranks >> d & 1) != 0)));
    }
  }
  if (counts.low != 0) atomicAdd(shared.next + lane, counts.low);
  if (counts.high != 0) atomicAdd(shared.next + kLanes + lane, counts.high);
}

/// Receives the counts of all ranks: also of those whose rows do not come before, because a rank
/// may store to a peer only when it has the peer's counts of this call.
__device__ __forceinline__ void receive_counts(const DirectDispatchArgs& a, std::uint64_t call,
                                               DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  const std::byte* own = a.windows.base[a.rank];
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_ranks * num_ranks; i += cta_threads()) {
    const int source = a.grid.by_ranks.quotient(i);
    const int to = i - source * num_ranks;
    std::uint32_t count = 0;
    if (!wait_record(own + a.direct.count(source, to), a.watch,
                     {WaitPlace::kAnnouncement, source, -1, call}, count)) {
      shared.failed = 1;
    } else if (source < a.rank && a.received.source_rows == 0) {
      atomicAdd(shared.first + to, static_cast<std::int32_t>(count));
    }
  }
}

/// One warp finds the rows of the tokens from `begin` on, up to kDirectTokens of those before
/// `end`.
__device__ __forceinline__ void find_direct_rows(const DirectDispatchArgs& a, int begin, int end,
                                                 int lane, DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  auto* placed =
      reinterpret_cast<std::int32_t*>(a.windows.base[a.rank] + a.direct.placed_rows_offset);
  LaneCounts next{shared.next[lane], shared.next[kLanes + lane]};
#pragma unroll 1
  for (int first = 0; first < kDirectTokens; first += kLanes) {
    const int token = begin + first + lane;
    const std::uint64_t ranks = token < end ? ranks_of_token(a, token) : 0;
    std::int32_t* numbers = shared.numbers() + (first + lane) * num_ranks;
#pragma unroll 1
    for (int d = 0; d < num_ranks; ++d) {
      const bool goes = (ranks >> d & 1) != 0;
      const unsigned going = __ballot_sync(kAllLanes, goes);
      const int number = next.of(d) + __popc(going & ((1u << lane) - 1));
      numbers[d] = goes ? number : -1;
      if (token < end) {
        placed[std::int64_t{token} * num_ranks + d] = goes ? shared.first[d] + number : -1;
      }
      next.add(d, lane, __popc(going));
    }
  }
  __syncwarp();
  shared.next[lane] = next.low;
  shared.next[kLanes + lane] = next.high;
}

}  // namespace switchyard::cuda
