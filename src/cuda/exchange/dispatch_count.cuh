// SPDX-License-Identifier: Apache-2.0
//
// dispatch_count.cuh: what follows from all ids of a rank: how many rows each peer gets, in total
// and per expert, and which partial sums come back.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/given_id.cuh"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {

__device__ __forceinline__ bool names_expert(const DispatchArgs& a, std::int32_t id) {
  return id >= 0 && id < a.ownership.num_experts;
}

__device__ __forceinline__ bool has_rank(std::uint64_t ranks, int rank) {
  return (ranks >> rank & 1) != 0;
}

/// The experts of a rank.
struct ExpertRange {
  std::int32_t first;
  std::int32_t count;

  __device__ __forceinline__ ExpertRange(const DispatchArgs& a, int rank)
      : first(a.ownership.first(rank)), count(a.ownership.count(rank)) {}
  __device__ __forceinline__ bool has(std::int32_t id) const {
    return static_cast<std::uint32_t>(id) - static_cast<std::uint32_t>(first) <
           static_cast<std::uint32_t>(count);
  }
};

/// One lane per choice, for as many whole tokens as fit in a warp.
struct ChoiceLanes {
  int num_tokens;  ///< per warp
  int token;       ///< of this lane, counted from the warp's first; none if >= num_tokens
  int k;
  unsigned own;    ///< mask of the lanes of this lane's token
  unsigned below;  ///< mask of the lanes before this one

  __device__ __forceinline__ explicit ChoiceLanes(const DispatchArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    num_tokens = a.grid.by_topk.quotient(kLanes);
    token = a.grid.by_topk.quotient(lane);
    k = lane - token * a.num_topk;
    const int last = min(lane - k + a.num_topk, kLanes) - 1;
    own = (2u << last) - (1u << (lane - k));
    below = (1u << lane) - 1;
  }
  __device__ __forceinline__ bool is_there(int first, int end) const {
    return token < num_tokens && first + token < end;
  }
  /// Requests this lane's id. `first` is the warp's first token. The id is -1 at `end` and beyond.
  __device__ __forceinline__ GivenId request(const DispatchArgs& a, int first, int end) const {
    GivenId id;
    if (is_there(first, end)) {
      id.request(a.tokens.ids, std::int64_t{first + token} * a.num_topk + k);
    }
    return id;
  }
};

/// How many rows a rank gets from a prefix of this rank's tokens. In shared memory.
struct RankCount {
  std::uint32_t* num_tokens;
  std::uint32_t* rows;  ///< per expert of that rank
};

/// Counts tokens from the first on, whatever was counted elsewhere (notify_routes says why). Loads
/// are two rounds ahead.
struct TokenCount {
  ChoiceLanes lanes;
  int end;
  GivenId ids[2];

  __device__ __forceinline__ TokenCount(const DispatchArgs& a, int end_of_tokens)
      : lanes(a), end(end_of_tokens) {
    ids[0] = lanes.request(a, first(0), end);
    ids[1] = lanes.request(a, first(1), end);
  }
  /// This warp's first token in a round.
  __device__ __forceinline__ int first(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return (round * cta_warps() + warp) * lanes.num_tokens;
  }
  __device__ __forceinline__ void count(const DispatchArgs& a, const ExpertRange& experts,
                                        const RankCount& sum) {
    int num_tokens = 0;
#pragma unroll 1
    for (int round = 0; first(round) < end; ++round) {
      const std::int32_t id = ids[0].value(a.tokens.ids);
      ids[0] = ids[1];
      ids[1] = lanes.request(a, first(round + 2), end);
      const bool counts = experts.has(id);
      if (counts) atomicAdd(sum.rows + (id - experts.first), 1u);
      const unsigned chose = __ballot_sync(kAllLanes, counts);
      num_tokens +=
          __popc(__ballot_sync(kAllLanes, counts && (chose & lanes.own & lanes.below) == 0));
    }
    if (num_tokens != 0 && threadIdx.x % kLanes == 0) {
      atomicAdd(sum.num_tokens, static_cast<std::uint32_t>(num_tokens));
    }
  }
};

__device__ __forceinline__ void clear_words(std::uint32_t* words, int size) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < size; i += cta_threads()) words[i] = 0;
}

/// Announces to rank `to` how many rows it gets, in total and per expert, and the call's mode.
__device__ __forceinline__ void announce(const DispatchArgs& a, std::uint64_t call, int to,
                                         const ExpertRange& experts, const RankCount& sum) {
  std::byte* at = a.windows.base[to] + a.layout.announcement(call, a.rank);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < experts.count + 2; i += cta_threads()) {
    std::uint32_t value = a.mode;
    if (i <= experts.count) value = i == 0 ? *sum.num_tokens : sum.rows[i - 1];
    store_record(at + i * static_cast<int>(kRecordBytes), value, tag_of(call));
  }
}

/// Keeps for the combine which partial sums each token from `begin` on has, in order. Where a rank
/// returns one for all its choices, the highest choice stands for it.
__device__ __forceinline__ void keep_partials(const DispatchArgs& a, std::uint64_t call, int begin,
                                              int end) {
  const ChoiceLanes lanes(a);
  const bool by_choice = a.reduce == Reduce::kPerExpert;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (int first = begin + warp * lanes.num_tokens; first < end;
       first += cta_warps() * lanes.num_tokens) {
    const int token = first + lanes.token;
    const std::int32_t id = lanes.request(a, first, end).value(a.tokens.ids);
    const bool is_valid = names_expert(a, id);
    const int rank = is_valid ? a.ownership.owner(id) : -1;
    const unsigned same_rank = __match_any_sync(kAllLanes, rank) & lanes.own;
    const unsigned same_expert = __match_any_sync(kAllLanes, id) & lanes.own;
    const bool has_partial =
        is_valid && (by_choice || same_rank >> lane == 1) && has_rank(a.returned_by, max(rank, 0));
    const unsigned partials = __ballot_sync(kAllLanes, has_partial) & lanes.own;
    if (!lanes.is_there(first, end)) continue;
    const bool is_twice =
        is_valid && (same_expert & lanes.below) != 0 && a.rows_layout == Layout::kBatched;
    if ((id < -1 || id >= a.ownership.num_experts || is_twice) && a.reports_ids) [[unlikely]] {
      give_up(a.watch, WaitFailure::kInvalidId, {WaitPlace::kInput, a.rank, token, call}, lanes.k,
              id, 0);
    }
    const std::int64_t own = std::int64_t{token} * a.num_topk;
    if (lanes.k == 0) a.state.num_partials[token] = __popc(partials);
    if (!has_partial) continue;
    const std::int64_t to = own + __popc(partials & lanes.below);
    a.state.columns[to] = by_choice ? lanes.k : a.layout.column(rank, lanes.k);
    a.state.partial_ranks[to] = rank;
    if (!by_choice) continue;
    a.state.partial_weights[to] =
        a.tokens.topk_weights == nullptr ? 1.0f : a.tokens.topk_weights[own + lanes.k];
  }
}

}  // namespace switchyard::cuda
