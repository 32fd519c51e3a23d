// SPDX-License-Identifier: Apache-2.0
//
// dispatch_route.cuh: what follows from a rank's own ids: how many rows each peer gets for each
// expert, and, of each token, its number among the rows for a rank and its place among those for an
// expert: how often earlier tokens chose the same. Routers tell it to the peers, while senders,
// which need none of it, send the rows themselves.
#pragma once

#include "cuda/exchange_args.h"
#include "cuda/wire.cuh"

namespace switchyard {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// An id as given; a number that no expert has stays what it is, cut to 32 bits.
__device__ __forceinline__ std::int32_t load_id(const DispatchArgs& a, std::int64_t index) {
  if (!a.ids_are_64_bits) return __ldg(static_cast<const int*>(a.topk_ids) + index);
  const long long id = __ldg(static_cast<const long long*>(a.topk_ids) + index);
  return id < -1 || id > 0x7FFFFFFF ? 0x7FFFFFFF : static_cast<std::int32_t>(id);
}

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
  __device__ __forceinline__ std::int32_t load(const DispatchArgs& a, int first, int end) const {
    const bool is_there = token < num_tokens && first + token < end;
    return is_there ? load_id(a, std::int64_t{first + token} * a.num_topk + k) : -1;
  }
};

__device__ __forceinline__ void clear_counts(const DispatchArgs& a, std::uint32_t* counts) {
  const int size = a.ownership.num_experts + a.ownership.num_ranks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) counts[i] = 0;
}

/// What earlier tokens chose: rows of each expert, then tokens for each rank, in shared memory.
/// Loads go ahead of what is counted.
struct TokenCount {
  static constexpr int kAhead = 2;
  ChoiceLanes lanes;
  int end;
  std::int32_t ids[kAhead];

  __device__ __forceinline__ TokenCount(const DispatchArgs& a, int all_before)
      : lanes(a), end(all_before) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ids[i] = lanes.load(a, first(i), end);
  }
  /// This warp's first token of a round.
  __device__ __forceinline__ int first(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return (round * kExchangeWarps + warp) * lanes.num_tokens;
  }
  /// Begins and ends with a barrier.
  __device__ __forceinline__ void count(const DispatchArgs& a, std::uint32_t* counts) {
    __syncthreads();
#pragma unroll 1
    for (int round = 0; first(round) < end; ++round) {
      const std::int32_t id = ids[0];
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) ids[i] = ids[i + 1];
      ids[kAhead - 1] = lanes.load(a, first(round + kAhead), end);
      count_choice(a, id, counts);
    }
    __syncthreads();
  }

 private:
  /// A token counts once for a rank, at its first choice there. All warps add to few words: one
  /// lane for each.
  __device__ __forceinline__ void count_choice(const DispatchArgs& a, std::int32_t id,
                                               std::uint32_t* counts) const {
    const bool is_valid = names_expert(a, id);
    const int rank = is_valid ? a.ownership.owner(id) : kMaxPushRanks;
    if (is_valid) atomicAdd(counts + id, 1u);
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const unsigned below = (1u << lane) - 1;
    const unsigned same = __match_any_sync(kAllLanes, lanes.token * 2 * kMaxPushRanks + rank);
    const int counted = (same & below) == 0 ? rank : kMaxPushRanks;
    const unsigned tokens = __match_any_sync(kAllLanes, counted);
    if (counted != kMaxPushRanks && (tokens & below) == 0) {
      atomicAdd(counts + a.ownership.num_experts + rank,
                static_cast<std::uint32_t>(__popc(tokens)));
    }
  }
};

/// Tells every peer what comes. `counts`: of all tokens.
__device__ __forceinline__ void announce(const DispatchArgs& a, std::uint64_t call,
                                         const std::uint32_t* counts) {
  const std::size_t at = a.layout.announcement(call, a.rank);
  const int num_experts = a.ownership.num_experts;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_experts + a.ownership.num_ranks;
       i += kExchangeThreads) {
    const bool is_rank = i >= num_experts;
    const int to = is_rank ? i - num_experts : a.ownership.owner(i);
    const int nth = is_rank ? 0 : 1 + i - a.ownership.first(to);
    store_record(a.windows.base[to] + at + static_cast<std::size_t>(nth) * kRecordBytes, counts[i],
                 tag_of(call));
  }
}

/// A warp's tokens and where they go; a lane is a choice. The highest choice of each rank leads it:
/// returned rows are summed in that order.
struct RoutedTokens {
  int lane;
  int token;  ///< of this lane; -1: none
  int k;
  std::int32_t id;
  bool is_valid;
  std::int32_t rank;  ///< -1: none
  unsigned leaders;   ///< choices of this lane's token that lead, as lanes
  bool leads;
  std::uint32_t number;  ///< of the token's row for this rank
  std::uint32_t place;   ///< of the choice's row for its expert

  /// Takes the tokens up to here from `counts`, and adds these.
  __device__ __forceinline__ RoutedTokens(const DispatchArgs& a, std::uint64_t call,
                                          const ChoiceLanes& lanes, int first, int end,
                                          std::int32_t own_id, std::uint32_t* counts)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        token(lanes.token < lanes.num_tokens && first + lanes.token < end ? first + lanes.token
                                                                          : -1),
        k(lanes.k),
        id(own_id),
        is_valid(names_expert(a, own_id)),
        rank(is_valid ? a.ownership.owner(own_id) : -1) {
    const unsigned below = (1u << lane) - 1;
    const unsigned earlier = (1u << (lane - k)) - 1;  // lanes of earlier tokens
    const unsigned own = own_lanes(a);
    const unsigned same_expert = __match_any_sync(kAllLanes, is_valid ? id : -1);
    const unsigned same_rank = __match_any_sync(kAllLanes, rank);
    leads = is_valid && (same_rank & own) >> lane == 1;
    const unsigned all_leaders = __ballot_sync(kAllLanes, leads);
    leaders = all_leaders & own;
    std::uint32_t* rank_counts = counts + a.ownership.num_experts;
    number = leads ? rank_counts[rank] + __popc(same_rank & all_leaders & earlier) : 0;
    place = is_valid ? counts[id] + __popc(same_expert & below) : 0;
    __syncwarp();
    if (is_valid && same_expert >> lane == 1) counts[id] = place + 1;
    if (leads && (same_rank & all_leaders) >> lane == 1) rank_counts[rank] = number + 1;
    const bool is_twice =
        is_valid && (same_expert & own & below) != 0 && a.rows_layout == Layout::kBatched;
    const bool is_bad = token >= 0 && (id < -1 || id >= a.ownership.num_experts || is_twice);
    if (is_bad) [[unlikely]] {
      give_up(a.watch, WaitFailure::kInvalidId, {WaitPlace::kInput, a.rank, token, call}, k, id, 0);
    }
    __syncwarp();
  }

  /// Tells every rank that gets a row what it is.
  __device__ __forceinline__ void tell(const DispatchArgs& a, std::uint64_t call,
                                       float weight) const {
    const std::uint32_t tag = tag_of(call);
    const bool has_routes = a.layout.shape.sends_routes;
    const auto local = static_cast<std::uint32_t>(is_valid ? id - a.ownership.first(rank) : 0);
    const std::uint32_t route = local << a.layout.place_bits | place;
    const auto sent_id = static_cast<std::uint32_t>(is_valid ? id : -1);
    unsigned left = token < 0 ? 0 : leaders;
#pragma unroll 1
    while (__any_sync(kAllLanes, left != 0)) {
      const int leader = left == 0 ? lane : __ffs(left) - 1;
      const int to = __shfl_sync(kAllLanes, rank, leader);
      const std::uint32_t n = __shfl_sync(kAllLanes, number, leader);
      if (left != 0) {
        std::byte* at = a.windows.base[to] + a.layout.routes(call, a.rank, n);
        std::byte* own = at + (1 + static_cast<std::size_t>(k)) * kRecordBytes;
        const std::uint32_t here = rank == to ? route : kNoRoute;
        if (k == 0) store_record(at, static_cast<std::uint32_t>(token), tag);
        store_record(own, has_routes ? here : sent_id, tag);
        if (a.layout.shape.sends_weights) {
          store_record(own + static_cast<std::size_t>(a.num_topk) * kRecordBytes,
                       __float_as_uint(weight), tag);
        }
      }
      left &= left - 1;
    }
  }

  /// Which returned rows a token's sum will have, in order, for its combine.
  __device__ __forceinline__ void keep_terms(const DispatchArgs& a, float weight) const {
    const bool by_choice = a.reduce == Reduce::kPerExpert;
    const unsigned valid = __ballot_sync(kAllLanes, is_valid);
    if (token < 0) return;
    const unsigned terms = by_choice ? valid & own_lanes(a) : leaders;
    if (k == 0) a.state.num_terms[token] = __popc(terms);
    if ((terms >> lane & 1) == 0) return;
    const std::int64_t to = std::int64_t{token} * a.num_topk + __popc(terms & ((1u << lane) - 1));
    a.state.columns[to] = by_choice ? k : a.layout.column(rank, k);
    a.state.term_ranks[to] = rank;
    if (by_choice) a.state.term_weights[to] = weight;
  }

 private:
  /// The lanes of this lane's token.
  __device__ __forceinline__ unsigned own_lanes(const DispatchArgs& a) const {
    const int first = lane - k;
    const int last = min(first + a.num_topk, kLanes) - 1;
    return (2u << last) - (1u << first);
  }
};

/// Routes a run of tokens, by one warp. `id`: of this lane's first token. `counts`: of the tokens
/// before.
__device__ __forceinline__ void route_tokens(const DispatchArgs& a, std::uint64_t call, int begin,
                                             int end, std::int32_t id, std::uint32_t* counts) {
  const ChoiceLanes lanes(a);
#pragma unroll 1
  for (int first = begin; first < end; first += lanes.num_tokens) {
    const RoutedTokens routed(a, call, lanes, first, end, id, counts);
    const std::int64_t at = std::int64_t{routed.token} * a.num_topk + routed.k;
    const bool has_weight = routed.token >= 0 && a.topk_weights != nullptr;
    const float weight = has_weight ? __ldg(a.topk_weights + at) : 1.0f;
    id = lanes.load(a, first + lanes.num_tokens, end);
    routed.tell(a, call, weight);
    routed.keep_terms(a, weight);
  }
}

}  // namespace switchyard
