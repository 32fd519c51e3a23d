// SPDX-License-Identifier: Apache-2.0
//
// dispatch_send.cuh: the send part of dispatch. A warp makes a piece of a token and sends it to the
// ranks that want the token, with the routes that say where it goes there.
#pragma once

#include "cuda/dispatch_plan.cuh"
#include "cuda/row_form.cuh"

namespace switchyard {

/// In dynamic shared memory, after it: counts of experts [E], then of ranks [P].
struct SenderShared {
  TokenPlan plans[kBatchTokens];
  std::int32_t ids[kBatchTokens * kMaxPushTopk];
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxPieceScaleBytes];
  alignas(16) std::uint32_t details[kExchangeWarps][4 * kMaxDetailUnits];
};

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
