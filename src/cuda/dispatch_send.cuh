// SPDX-License-Identifier: Apache-2.0
//
// dispatch_send.cuh: the send part of dispatch. One CTA announces how many rows each peer gets for
// each expert; the others send rows. Where a row lands, and at which place of its expert, follows
// from the rank's own ids alone: how often earlier tokens chose the same expert, or the same rank.
#pragma once

#include "cuda/row_form.cuh"
#include "cuda/stamps.cuh"
#include "cuda/wire.cuh"

namespace switchyard {

inline constexpr int kBatchTokens = 16;  // planned at once by the warps of a CTA
inline constexpr int kMaxDetailUnits = (1 + kMaxPushTopk / 2 + kMaxPushTopk + 3) / 4;

/// A rank that a token goes to.
struct Destination {
  std::int32_t rank;
  std::int32_t slot;      ///< the token is this rank's slot-th one for it
  std::uint32_t choices;  ///< of the token that this rank serves, as bits
};

/// A row of an expert: the index of the token among this rank's tokens for that expert.
struct Route {
  std::int32_t expert;  ///< local index at the destination
  std::int32_t place;
};

struct TokenPlan {
  std::int32_t num_destinations;
  Destination destinations[kMaxPushTopk];
  Route routes[kMaxPushTopk];  ///< by choice
  std::int32_t ids[kMaxPushTopk];
};

/// In dynamic shared memory, after it: counts of experts [E], then of ranks [P].
struct SenderShared {
  TokenPlan plans[kBatchTokens];
  std::int32_t ids[kBatchTokens * kMaxPushTopk];
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxPieceScaleBytes];
  alignas(16) std::uint32_t details[kExchangeWarps][4 * kMaxDetailUnits];
};

/// Units of the details of a token.
__device__ __forceinline__ int num_detail_units(int num_topk) {
  return (1 + (num_topk + 1) / 2 + num_topk + 3) / 4;
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

/// Counts what tokens before `end` chose: rows of each expert, tokens for each rank. The first ids
/// are on their way while the counts are cleared, each next one while one is counted. Ends with a
/// barrier.
__device__ __forceinline__ void count_tokens(const DispatchArgs& a, int end,
                                             std::uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  std::uint32_t* rank_counts = counts + a.ownership.num_experts;
  const int size = a.ownership.num_experts + a.ownership.num_ranks;
  ChoiceWalk walk(a, end);
  std::int32_t id = walk.load(a, end);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < end; round += walk.step()) {
    const bool is_valid = names_expert(a, id);
    const int rank = is_valid ? a.ownership.owner(id) : kMaxPushRanks;
    const unsigned same = __match_any_sync(0xFFFFFFFFu, walk.token * 2 * kMaxPushRanks + rank);
    walk.token += walk.step();
    const std::int32_t next = walk.load(a, end);
    if (is_valid) atomicAdd(counts + id, 1u);
    if (is_valid && (same & ((1u << lane) - 1)) == 0) atomicAdd(rank_counts + rank, 1u);
    id = next;
  }
  __syncthreads();
}

/// Tells every peer what comes: rows for it, tokens of this rank, rows for each of its experts.
__device__ __forceinline__ void announce(const DispatchArgs& a, std::uint64_t call,
                                         std::uint32_t* counts) {
  count_tokens(a, a.num_tokens, counts);
  const std::uint32_t* rank_counts = counts + a.ownership.num_experts;
  stamp(a, 1);
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
  stamp(a, 2);
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

/// Plans one token, by one warp; lane k is choice k. The highest choice of each rank leads it:
/// returned rows are summed in that order.
__device__ __forceinline__ void plan_token(const DispatchArgs& a, std::uint64_t call, int token,
                                           int lane, std::int32_t id, std::uint32_t* expert_counts,
                                           std::uint32_t* rank_counts, TokenPlan& plan) {
  constexpr int kAtOnce = 8;
  const bool is_valid = names_expert(a, id);
  const int rank = is_valid ? a.ownership.owner(id) : -1;
  unsigned same_expert = 0;
  unsigned same_rank = 0;
#pragma unroll 1
  for (int base = 0; base < a.num_topk; base += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = base + i;  // lanes beyond the choices have no expert
      same_expert |= __shfl_sync(0xFFFFFFFFu, id, k) == id ? 1u << (k % kLanes) : 0u;
      same_rank |= __shfl_sync(0xFFFFFFFFu, rank, k) == rank ? 1u << (k % kLanes) : 0u;
    }
  }
  const unsigned below = (1u << lane) - 1;
  const bool leads = is_valid && same_rank >> lane == 1;
  const unsigned leaders = __ballot_sync(0xFFFFFFFFu, leads);
  if (lane < a.num_topk) plan.ids[lane] = is_valid ? id : -1;
  if (lane == 0) plan.num_destinations = __popc(leaders);
  if (is_valid) {
    const auto place = static_cast<std::int32_t>(expert_counts[id]) + __popc(same_expert & below);
    plan.routes[lane] = {id - a.ownership.first(rank), place};
  }
  if (leads) {
    const auto slot = static_cast<std::int32_t>(rank_counts[rank]++);
    plan.destinations[__popc(leaders & below)] = {rank, slot, same_rank};
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

/// Token, ids two by two (as id + 1, so that "none" is 0), weights: to every destination.
__device__ __forceinline__ void send_details(const DispatchArgs& a, std::uint64_t call, int token,
                                             int lane, const TokenPlan& plan,
                                             std::uint32_t* words) {
  const int num_id_words = (a.num_topk + 1) / 2;
  if (lane == 0) words[0] = static_cast<std::uint32_t>(token);
  if (lane < num_id_words) {
    const std::uint32_t odd =
        2 * lane + 1 < a.num_topk ? static_cast<std::uint32_t>(plan.ids[2 * lane + 1] + 1) : 0;
    words[1 + lane] = (static_cast<std::uint32_t>(plan.ids[2 * lane] + 1) & 0xFFFFu) | odd << 16;
  }
  if (lane < a.num_topk) {
    const std::int64_t index = std::int64_t{token} * a.num_topk + lane;
    const bool has_weight = a.sends_weights && a.topk_weights != nullptr;
    words[1 + num_id_words + lane] =
        has_weight ? __float_as_uint(__ldg(a.topk_weights + index)) : __float_as_uint(1.0f);
  }
  __syncwarp();
  if (lane < num_detail_units(a.num_topk)) {
    const std::uint32_t unit[4] = {words[4 * lane], words[4 * lane + 1], words[4 * lane + 2],
                                   words[4 * lane + 3]};
#pragma unroll 1
    for (int d = 0; d < plan.num_destinations; ++d) {
      const std::size_t at = a.layout.row(call, a.rank, plan.destinations[d].slot) +
                             static_cast<std::size_t>(lane) * kUnitBytes;
      send_unit(a.windows.base[plan.destinations[d].rank], at, a.layout, call, unit);
    }
  }
  __syncwarp();
}

/// One unit with two routes: {expert, place, expert, place}; the first also counts them.
__device__ __forceinline__ void route_unit(const TokenPlan& plan, std::uint32_t choices, int unit,
                                           std::uint32_t (&words)[4]) {
  const int count = __popc(choices);
#pragma unroll 1
  for (int skip = 2 * unit; skip > 0; --skip) choices &= choices - 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Route route = choices != 0 ? plan.routes[__ffs(choices) - 1] : Route{0, 0};
    choices &= choices - 1;
    words[2 * i] = static_cast<std::uint32_t>(route.expert);
    words[2 * i + 1] = static_cast<std::uint32_t>(route.place);
  }
  if (unit == 0) words[0] |= static_cast<std::uint32_t>(count) << 16;
}

/// Sends a piece to its share of the ranks that want the token: elements, then, by the first lanes,
/// its scales and routes.
template <class Form>
__device__ __forceinline__ void send_piece(const DispatchArgs& a, std::uint64_t call, int piece,
                                           int share, int lane,
                                           const std::uint32_t (&words)[Form::kWords],
                                           const TokenPlan& plan, const std::uint8_t* scales) {
  constexpr int kUnitWords = Form::kWords < 4 ? Form::kWords : 4;
  const bool is_there = piece * kPieceElements + lane * kGrainElements < a.layout.shape.hidden;
  const int per_piece = a.layout.shape.piece_scale_bytes / static_cast<int>(kUnitBytes);
  const bool has_scales = lane < per_piece && piece * per_piece + lane < a.scale_units_per_row;
  const bool has_routes = a.layout.shape.sends_routes;
#pragma unroll 1
  for (int d = share; d < plan.num_destinations; d += a.shares) {
    const Destination to = plan.destinations[d];
    const std::size_t at = a.layout.piece(a.layout.row(call, a.rank, to.slot), piece);
    std::byte* base = a.windows.base[to.rank];
    if (is_there) {
#pragma unroll
      for (int u = 0; u < Form::kWords / kUnitWords; ++u) {
        std::uint32_t unit[kUnitWords];
#pragma unroll
        for (int i = 0; i < kUnitWords; ++i) unit[i] = words[u * kUnitWords + i];
        send_unit(base, at + static_cast<std::size_t>(u * kLanes + lane) * kUnitWords * 4, a.layout,
                  call, unit);
      }
    }
    const int route = lane - per_piece;
    if (has_scales || (route >= 0 && has_routes && 2 * route < __popc(to.choices))) {
      std::uint32_t unit[4];
      std::size_t offset = at + static_cast<std::size_t>(lane) * kUnitBytes;
      if (route < 0) {
        const auto* from = reinterpret_cast<const std::uint32_t*>(scales) + 4 * lane;
#pragma unroll
        for (int i = 0; i < 4; ++i) unit[i] = from[i];
        offset += a.layout.scales_in_piece;
      } else {
        route_unit(plan, to.choices, route, unit);
        offset += a.layout.scales_in_piece;  // routes follow the scales
      }
      send_unit(base, offset, a.layout, call, unit);
    }
  }
  __syncwarp();
}

/// What the senders of a CTA do: a run of tokens, or with few tokens a share of one token's pieces.
struct SendRange {
  int begin;
  int end;
  int part;
  int items;  ///< of a token, for this CTA: shares of pieces, and one for the details
};

__device__ __forceinline__ SendRange send_range(const DispatchArgs& a, int sender) {
  const int group = sender / a.ctas_per_token;
  const int part = sender - group * a.ctas_per_token;
  const int begin = group * a.tokens_per_group;
  const int pieces = (a.layout.num_pieces - part + a.ctas_per_token - 1) / a.ctas_per_token;
  return {begin, min(begin + a.tokens_per_group, a.num_tokens), part,
          pieces * a.shares + (part == 0 ? 1 : 0)};
}

/// Asks for the elements of a CTA's item before they are needed.
__device__ __forceinline__ void prefetch_piece(const DispatchArgs& a, const SendRange& range,
                                               int item, int lane) {
  const int nth = item / range.items;
  const int piece = range.part + (item - nth * range.items) / a.shares * a.ctas_per_token;
  const std::int64_t at =
      (std::int64_t{piece} * kPieceElements + lane * kGrainElements) * wire_bits(a.token_dtype) / 8;
  if (piece >= a.layout.num_pieces || at >= a.layout.shape.hidden * wire_bits(a.token_dtype) / 8) {
    return;
  }
  const std::byte* from = a.tokens + (range.begin + nth) * a.token_stride + at;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/// Ids of a batch, by all threads.
__device__ __forceinline__ void load_ids(const DispatchArgs& a, int batch, int size,
                                         std::int32_t* ids) {
  const auto i = static_cast<int>(threadIdx.x);
  static_assert(kBatchTokens * kMaxPushTopk <= kExchangeThreads);
  if (i < size * a.num_topk) ids[i] = load_id(a, std::int64_t{batch} * a.num_topk + i);
}

/// The last warp plans a batch of tokens while the others make their first pieces.
template <class Form>
__device__ __forceinline__ void send_tokens(const DispatchArgs& a, std::uint64_t call, int sender,
                                            SenderShared& shared, std::uint32_t* counts) {
  const SendRange range = send_range(a, sender);
  if (range.begin >= range.end || range.items <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool plans = warp == kExchangeWarps - 1;
  std::uint32_t* rank_counts = counts + a.ownership.num_experts;
  std::uint8_t* scales = shared.scales[warp];
  if (lane < kMaxPieceScaleBytes) scales[lane] = 0;
  load_ids(a, range.begin, min(kBatchTokens, range.end - range.begin), shared.ids);
  if (warp < (range.end - range.begin) * range.items) prefetch_piece(a, range, warp, lane);
  count_tokens(a, range.begin, counts);
  stamp(a, 1);
#pragma unroll 1
  for (int batch = range.begin; batch < range.end; batch += kBatchTokens) {
    const int size = min(kBatchTokens, range.end - batch);
    bool is_planned = false;
#pragma unroll 1
    for (int item = warp;; item += kExchangeWarps) {
      const bool is_item = item < size * range.items;
      const int nth = item / range.items;
      const int in_token = item - nth * range.items;
      const int nth_piece = in_token / a.shares;
      const int piece = range.part + nth_piece * a.ctas_per_token;
      const bool is_piece = is_item && piece < a.layout.num_pieces;
      std::uint32_t words[Form::kWords];
      if (is_piece && (is_planned || !plans)) {
        Form::make(a, batch + nth, piece, lane, words, scales);
      }
      if (!is_planned) {
        if (plans) {
#pragma unroll 1
          for (int i = 0; i < size; ++i) {
            const std::int32_t id = lane < a.num_topk ? shared.ids[i * a.num_topk + lane] : -1;
            plan_token(a, call, batch + i, lane, id, counts, rank_counts, shared.plans[i]);
          }
        }
        __syncthreads();
        stamp(a, 2);
        is_planned = true;
        if (plans && is_piece) Form::make(a, batch + nth, piece, lane, words, scales);
      }
      if (!is_item) break;
      const TokenPlan& plan = shared.plans[nth];
      if (is_piece) {
        send_piece<Form>(a, call, piece, in_token - nth_piece * a.shares, lane, words, plan,
                         scales);
      } else {
        send_details(a, call, batch + nth, lane, plan, shared.details[warp]);
      }
    }
    stamp(a, 3);
    if (plans && range.part == 0) {
#pragma unroll 1
      for (int i = 0; i < size; ++i) keep_terms(a, batch + i, lane, shared.plans[i]);
    }
    const int next = batch + kBatchTokens;
    if (next >= range.end) return;
    load_ids(a, next, min(kBatchTokens, range.end - next), shared.ids);
    __syncthreads();
  }
}

}  // namespace switchyard
