// SPDX-License-Identifier: Apache-2.0
//
// dispatch_plan.cuh: what follows from a rank's own ids: how many rows each peer gets for each
// expert, where each row lands, and at which place of its expert: how often earlier tokens chose
// the same rank, or the same expert.
#pragma once

#include "cuda/row_form.cuh"
#include "cuda/wire.cuh"

namespace switchyard {

inline constexpr int kBatchTokens = 16;  // planned at once by the warps of a CTA
inline constexpr int kMaxDetailUnits = (1 + kMaxPushTopk / 2 + kMaxPushTopk + 3) / 4;

/// A rank that a token goes to.
struct Destination {
  std::byte* row;  ///< the slot there: the token is this rank's n-th one for it
  std::int32_t rank;
  std::uint32_t choices;    ///< of the token that this rank serves, as bits
  std::int32_t first_unit;  ///< of its routes
  std::int32_t num_units;
};

/// A row of an expert: the index of the token among this rank's tokens for that expert.
struct Route {
  std::int32_t expert;  ///< local index at the destination; the first also counts them, << 16
  std::int32_t place;
};

struct TokenPlan {
  std::int32_t num_destinations;
  Destination destinations[kMaxPushTopk];
  /// As they travel, two a unit, each destination's from a unit on.
  alignas(16) Route routes[2 * kMaxPushTopk];
  std::int32_t ids[kMaxPushTopk];
};

/// Units of the details of a token.
__device__ __forceinline__ int num_detail_units(int num_topk) {
  return (1 + (num_topk + 1) / 2 + num_topk + 3) / 4;
}

/// Exclusive sum over the lanes.
__device__ __forceinline__ int sum_before(int value, int lane) {
  int sum = value;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

/// An id as given; a number that no expert has stays what it is, cut to 32 bits.
__device__ __forceinline__ std::int32_t load_id(const DispatchArgs& a, std::int64_t index) {
  if (!a.ids_are_64_bits) return __ldg(static_cast<const int*>(a.topk_ids) + index);
  const long long id = __ldg(static_cast<const long long*>(a.topk_ids) + index);
  return id < -1 || id > 0x7FFFFFFF ? 0x7FFFFFFF : static_cast<std::int32_t>(id);
}

__device__ __forceinline__ bool names_expert(const DispatchArgs& a, std::int32_t id) {
  return id >= 0 && id < a.ownership.num_experts;
}

/// Walks tokens from the first with a lane for each choice, as many whole tokens a warp as fit.
struct ChoiceWalk {
  int per_warp;  ///< tokens
  int token;     ///< of this lane, or beyond the end
  int k;

  __device__ __forceinline__ ChoiceWalk(const DispatchArgs& a, int end) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    per_warp = a.by_topk.quotient(kLanes);
    const int in_warp = a.by_topk.quotient(lane);
    k = lane - in_warp * a.num_topk;
    token = in_warp < per_warp ? static_cast<int>(threadIdx.x) / kLanes * per_warp + in_warp : end;
  }
  __device__ __forceinline__ std::int32_t load(const DispatchArgs& a, int end) const {
    return token < end ? load_id(a, std::int64_t{token} * a.num_topk + k) : -1;
  }
  __device__ __forceinline__ int step() const { return kExchangeWarps * per_warp; }
};

__device__ __forceinline__ void clear_counts(const DispatchArgs& a, std::uint32_t* counts) {
  const int size = a.ownership.num_experts + a.ownership.num_ranks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) counts[i] = 0;
}

/// Counts what tokens before `end` chose: rows of each expert, tokens for each rank. `id` is of the
/// walk's first step; each next one is on its way while one is counted. Begins and ends with a
/// barrier.
__device__ __forceinline__ void count_tokens(const DispatchArgs& a, int end, ChoiceWalk walk,
                                             std::int32_t id, std::uint32_t* counts) {
  std::uint32_t* rank_counts = counts + a.ownership.num_experts;
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < end; round += walk.step()) {
    const bool is_valid = names_expert(a, id);
    const int rank = is_valid ? a.ownership.owner(id) : kMaxPushRanks;
    walk.token += walk.step();
    const std::int32_t next = walk.load(a, end);
    if (is_valid) atomicAdd(counts + id, 1u);
    // A token counts once for a rank, at its first choice there. All warps add to few words: one
    // lane for each.
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const unsigned below = (1u << lane) - 1;
    const unsigned same = __match_any_sync(0xFFFFFFFFu, walk.token * 2 * kMaxPushRanks + rank);
    const int counted = is_valid && (same & below) == 0 ? rank : kMaxPushRanks;
    const unsigned tokens = __match_any_sync(0xFFFFFFFFu, counted);
    if (counted != kMaxPushRanks && (tokens & below) == 0) {
      atomicAdd(rank_counts + rank, static_cast<std::uint32_t>(__popc(tokens)));
    }
    id = next;
  }
  __syncthreads();
}

/// Tells every peer what comes: rows for it, tokens of this rank, rows for each of its experts.
/// `counts`: of all tokens.
__device__ __forceinline__ void announce(const DispatchArgs& a, std::uint64_t call,
                                         const std::uint32_t* counts) {
  const std::uint32_t* rank_counts = counts + a.ownership.num_experts;
  const std::size_t at = a.layout.announcement(call, a.rank);
  const std::uint32_t tag = tag_of(call);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < a.ownership.num_experts; i += kExchangeThreads) {
    const int owner = a.ownership.owner(i);
    const int local = i - a.ownership.first(owner);
    store_record(a.windows.base[owner] + at + (2 + static_cast<std::size_t>(local)) * 8, counts[i],
                 tag);
  }
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x); r < a.ownership.num_ranks; r += kExchangeThreads) {
    store_record(a.windows.base[r] + at, rank_counts[r], tag);
    store_record(a.windows.base[r] + at + 8, static_cast<std::uint32_t>(a.num_tokens), tag);
  }
}

/// Plans one token, by one warp; lane k is choice k. The highest choice of each rank leads it:
/// returned rows are summed in that order.
__device__ __forceinline__ void plan_token(const DispatchArgs& a, std::uint64_t call, int token,
                                           int lane, std::int32_t id, std::uint32_t* expert_counts,
                                           std::uint32_t* rank_counts, TokenPlan& plan) {
  const bool is_valid = names_expert(a, id);  // lanes beyond the choices have no expert
  const int rank = is_valid ? a.ownership.owner(id) : -1;
  const unsigned same_expert = __match_any_sync(0xFFFFFFFFu, id);
  const unsigned same_rank = __match_any_sync(0xFFFFFFFFu, rank);
  const unsigned below = (1u << lane) - 1;
  const bool leads = is_valid && same_rank >> lane == 1;
  const unsigned leaders = __ballot_sync(0xFFFFFFFFu, leads);
  if (lane < a.num_topk) plan.ids[lane] = is_valid ? id : -1;
  if (lane == 0) plan.num_destinations = __popc(leaders);
  const int num_units = leads ? (__popc(same_rank) + 1) / 2 : 0;
  const int own_first = sum_before(num_units, lane);
  const int first_unit = __shfl_sync(0xFFFFFFFFu, own_first, 31 - __clz(same_rank));
  if (is_valid) {
    const auto place = static_cast<std::int32_t>(expert_counts[id]) + __popc(same_expert & below);
    const int nth = __popc(same_rank & below);
    const int count = nth == 0 ? __popc(same_rank) : 0;
    Route* route = plan.routes + 2 * first_unit + nth;
    *route = {(id - a.ownership.first(rank)) | count << 16, place};
    if (leads && nth % 2 == 0) route[1] = {0, 0};
  }
  if (leads) {
    const auto slot = static_cast<std::int32_t>(rank_counts[rank]++);
    plan.destinations[__popc(leaders & below)] = {
        a.windows.base[rank] + a.layout.row(call, a.rank, slot), rank, same_rank, first_unit,
        num_units};
  }
  __syncwarp();
  const bool is_first = (same_expert & below) == 0;
  if (is_valid && is_first) expert_counts[id] += static_cast<std::uint32_t>(__popc(same_expert));
  const bool is_twice = is_valid && !is_first && a.rows_layout == Layout::kBatched;
  if (id < -1 || id >= a.ownership.num_experts || is_twice) [[unlikely]] {
    give_up(a.watch, WaitFailure::kInvalidId, {WaitPlace::kInput, a.rank, token, call}, lane, id,
            0);
  }
  __syncwarp();
}

/// Which returned rows a token's sum will have, in order, for its combine.
__device__ __forceinline__ void keep_terms(const DispatchArgs& a, int token, int lane,
                                           const TokenPlan& plan) {
  const std::int64_t at = std::int64_t{token} * a.num_topk;
  if (a.reduce == Reduce::kPerRank) {
    if (lane == 0) a.state.num_terms[token] = plan.num_destinations;
    if (lane >= plan.num_destinations) return;
    const Destination& from = plan.destinations[lane];
    a.state.columns[at + lane] = a.layout.column(from.rank, 31 - __clz(from.choices));
    a.state.term_ranks[at + lane] = from.rank;
    return;
  }
  const std::int32_t id = lane < a.num_topk ? plan.ids[lane] : -1;
  const unsigned terms = __ballot_sync(0xFFFFFFFFu, id >= 0);
  if (lane == 0) a.state.num_terms[token] = __popc(terms);
  if (id < 0) return;
  const std::int64_t to = at + __popc(terms & ((1u << lane) - 1));
  a.state.columns[to] = lane;
  a.state.term_ranks[to] = a.ownership.owner(id);
  a.state.term_weights[to] = a.topk_weights == nullptr ? 1.0f : __ldg(a.topk_weights + at + lane);
}

}  // namespace switchyard
