// SPDX-License-Identifier: Apache-2.0
//
// dispatch_count.cuh: what follows from all ids of a rank: how many rows each peer gets, and for
// each of its experts. The announcer tells it.
#pragma once

#include "cuda/call.cuh"
#include "cuda/exchange_args.h"
#include "cuda/wire.cuh"

namespace switchyard {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// An id on its way from memory. Nothing looks at it before value(): loads of one wait are one.
struct GivenId {
  std::uint32_t low = 0xFFFFFFFFu;
  std::uint32_t high = 0xFFFFFFFFu;

  __device__ __forceinline__ void ask(const DispatchArgs& a, std::int64_t index) {
    if (a.ids_are_64_bits) {
      const uint2 words = __ldg(static_cast<const uint2*>(a.topk_ids) + index);
      low = words.x;
      high = words.y;
    } else {
      low = __ldg(static_cast<const std::uint32_t*>(a.topk_ids) + index);
    }
  }
  /// As given; a number that no expert has stays what it is, cut to 32 bits.
  __device__ __forceinline__ std::int32_t value(const DispatchArgs& a) const {
    const auto id = static_cast<std::int32_t>(low);
    const bool fits = high == (id < 0 ? 0xFFFFFFFFu : 0u) && id >= -1;
    return !a.ids_are_64_bits || fits ? id : 0x7FFFFFFF;
  }
};

__device__ __forceinline__ bool names_expert(const DispatchArgs& a, std::int32_t id) {
  return id >= 0 && id < a.ownership.num_experts;
}

/// A lane for each choice of as many whole tokens as fit in a warp.
struct ChoiceLanes {
  int num_tokens;  ///< of a warp
  int token;       ///< of this lane, from the warp's first; num_tokens or more: none
  int k;

  __device__ __forceinline__ explicit ChoiceLanes(const DispatchArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    num_tokens = a.by_topk.quotient(kLanes);
    token = a.by_topk.quotient(lane);
    k = lane - token * a.num_topk;
  }
  /// `first`: the warp's first token. -1 at `end` and beyond.
  __device__ __forceinline__ GivenId ask(const DispatchArgs& a, int first, int end) const {
    GivenId id;
    if (token < num_tokens && first + token < end) {
      id.ask(a, std::int64_t{first + token} * a.num_topk + k);
    }
    return id;
  }
};

/// Counts what tokens chose: rows of each expert [E], then tokens for each rank [P], in shared
/// memory. Loads are two rounds ahead.
struct TokenCount {
  ChoiceLanes lanes;
  int end;
  GivenId ids[2];

  __device__ __forceinline__ TokenCount(const DispatchArgs& a, int end_of_tokens)
      : lanes(a), end(end_of_tokens) {
    ids[0] = lanes.ask(a, first(0), end);
    ids[1] = lanes.ask(a, first(1), end);
  }
  /// This warp's first token of a round.
  __device__ __forceinline__ int first(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return (round * kExchangeWarps + warp) * lanes.num_tokens;
  }
  __device__ __forceinline__ void count(const DispatchArgs& a, std::uint32_t* counts) {
#pragma unroll 1
    for (int round = 0; first(round) < end; ++round) {
      const std::int32_t id = ids[0].value(a);
      ids[0] = ids[1];
      ids[1] = lanes.ask(a, first(round + 2), end);
      count_choice(a, id, counts);
    }
  }

 private:
  /// A token counts once for a rank, at its first choice there. All warps add to few words: one
  /// lane for each.
  __device__ __forceinline__ void count_choice(const DispatchArgs& a, std::int32_t id,
                                               std::uint32_t* counts) const {
    const bool is_valid = names_expert(a, id);
    const int rank = is_valid ? a.ownership.owner(id) : kMaxPushRanks;
    if (is_valid) atomicAdd(counts + id, 1u);
    const unsigned below = (1u << threadIdx.x % kLanes) - 1;
    const unsigned same = __match_any_sync(kAllLanes, lanes.token * 2 * kMaxPushRanks + rank);
    const int counted = (same & below) == 0 ? rank : kMaxPushRanks;
    const unsigned tokens = __match_any_sync(kAllLanes, counted);
    if (counted != kMaxPushRanks && (tokens & below) == 0) {
      atomicAdd(counts + a.ownership.num_experts + rank,
                static_cast<std::uint32_t>(__popc(tokens)));
    }
  }
};

__device__ __forceinline__ void clear_words(std::uint32_t* words, int size) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) words[i] = 0;
}

/// Where a thread tells how many rows come: of an expert, or, from E on, of a rank.
__device__ __forceinline__ std::byte* announcement_of(const DispatchArgs& a, std::uint64_t call,
                                                      int index) {
  const bool is_rank = index >= a.ownership.num_experts;
  const int to = is_rank ? index - a.ownership.num_experts : a.ownership.owner(index);
  const int nth = is_rank ? 0 : 1 + index - a.ownership.first(to);
  return a.windows.base[to] + a.layout.announcement(call, a.rank) +
         nth * static_cast<int>(kRecordBytes);
}

/// Counts all tokens and tells every peer what comes. `counts`: shared memory.
__device__ __forceinline__ void announce(const DispatchArgs& a, CallOfCta& call,
                                         std::uint32_t* counts) {
  TokenCount all(a, a.num_tokens);
  const auto thread = static_cast<int>(threadIdx.x);
  const int size = a.ownership.num_experts + a.ownership.num_ranks;
  clear_words(counts, size);
  call.ask(a);
  __syncthreads();
  if (call.has_failed != 0) return;
  std::byte* to = thread < size ? announcement_of(a, call.number, thread) : nullptr;
  all.count(a, counts);
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < size;) {
    store_record(to, counts[i], tag_of(call.number));
    i += kExchangeThreads;
    if (i < size) to = announcement_of(a, call.number, i);
  }
}

}  // namespace switchyard
