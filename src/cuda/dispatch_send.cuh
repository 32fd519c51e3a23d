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
      const Destination& to = plan.destinations[d];
      send_unit(a.windows.base[to.rank], to.row + lane * static_cast<int>(kUnitBytes), a.layout,
                call, unit);
    }
  }
  __syncwarp();
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
  const int route = a.layout.shape.sends_routes ? lane - per_piece : kLanes;
  const std::size_t at = a.layout.piece(0, piece);
  const std::size_t more_at =
      at + a.layout.scales_in_piece + static_cast<std::size_t>(lane) * kUnitBytes;
#pragma unroll 1
  for (int d = share; d < plan.num_destinations; d += a.shares) {
    const Destination to = plan.destinations[d];
    std::byte* window = a.windows.base[to.rank];
    if (is_there) {
#pragma unroll
      for (int u = 0; u < Form::kWords / kUnitWords; ++u) {
        std::uint32_t unit[kUnitWords];
#pragma unroll
        for (int i = 0; i < kUnitWords; ++i) unit[i] = words[u * kUnitWords + i];
        send_unit(window,
                  to.row + at + static_cast<std::size_t>(u * kLanes + lane) * kUnitWords * 4,
                  a.layout, call, unit);
      }
    }
    if (has_scales || (route >= 0 && route < to.num_units)) {
      const void* const from =
          has_scales ? static_cast<const void*>(scales + lane * static_cast<int>(kUnitBytes))
                     : plan.routes + 2 * (to.first_unit + route);
      const uint4 four = *static_cast<const uint4*>(from);
      const std::uint32_t unit[4] = {four.x, four.y, four.z, four.w};
      send_unit(window, to.row + more_at, a.layout, call, unit);
    }
  }
  __syncwarp();
}

/// What a sender does: a run of tokens, or with few tokens a share of one token's pieces.
struct SendRange {
  int begin;
  int end;
  int part;

  __device__ __forceinline__ SendRange(const DispatchArgs& a, int sender) {
    const int group = a.by_ctas.quotient(sender);
    part = sender - group * a.ctas_per_token;
    begin = group * a.tokens_per_group;
    end = min(begin + a.tokens_per_group, a.num_tokens);
  }
};

/// An item of a sender's batch of tokens, the work of one warp.
struct SendItem {
  int nth;    ///< token of the batch
  int piece;  ///< num_pieces or more: none
  int share;
  bool is_details;

  __device__ __forceinline__ SendItem(const DispatchArgs& a, const SendRange& range, int item) {
    nth = a.by_items.quotient(item);
    const int in_token = item - nth * a.items_per_token;
    const int nth_piece = a.by_shares.quotient(in_token);
    share = in_token - nth_piece * a.shares;
    is_details = in_token == a.items_per_token - 1;
    piece = is_details ? a.layout.num_pieces : range.part + nth_piece * a.ctas_per_token;
    is_details = is_details && range.part == 0;
  }
};

/// Asks for a lane's elements of the first item before they are needed: they are in the nearest
/// cache then. Pass the word that it returns to end_kernel.
__device__ __forceinline__ std::uint32_t ask_for_item(const DispatchArgs& a, const SendRange& range,
                                                      const SendItem& item, int lane) {
  const int element = item.piece * kPieceElements + lane * kGrainElements;
  if (range.begin + item.nth >= range.end || element >= a.layout.shape.hidden) return 0;
  const std::byte* row = a.tokens + (range.begin + item.nth) * a.token_stride;
  return __ldg(reinterpret_cast<const std::uint8_t*>(row) + element * wire_bits(a.token_dtype) / 8);
}

/// This thread's id of a batch.
__device__ __forceinline__ std::int32_t load_id_of_batch(const DispatchArgs& a, int batch,
                                                         int end) {
  const auto i = static_cast<int>(threadIdx.x);
  static_assert(kBatchTokens * kMaxPushTopk <= kExchangeThreads);
  const bool is_there = i < min(kBatchTokens, end - batch) * a.num_topk;
  return is_there ? load_id(a, std::int64_t{batch} * a.num_topk + i) : -1;
}

/// All threads of a sender, which wait here at two places of the code: a plan is there.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kExchangeThreads) : "memory");
}

/// What the last warp does with a batch: plans it while the others make their first pieces.
__device__ __forceinline__ void plan_batch(const DispatchArgs& a, std::uint64_t call, int batch,
                                           int size, bool keeps, SenderShared& shared,
                                           std::uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 1
  for (int i = 0; i < size; ++i) {
    const std::int32_t id = lane < a.num_topk ? shared.ids[i * a.num_topk + lane] : -1;
    plan_token(a, call, batch + i, lane, id, counts, counts + a.ownership.num_experts,
               shared.plans[i]);
  }
  meet();
#pragma unroll 1
  for (int i = 0; keeps && i < size; ++i) keep_terms(a, batch + i, lane, shared.plans[i]);
}

/// What the other warps do with it.
template <class Form>
__device__ __forceinline__ void send_batch(const DispatchArgs& a, std::uint64_t call,
                                           const SendRange& range, int batch, int size,
                                           SenderShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_items = size * a.items_per_token;
  std::uint8_t* scales = shared.scales[warp];
  bool is_planned = false;
#pragma unroll 1
  for (int i = warp; i < num_items || !is_planned; i += kMakerWarps) {
    const SendItem item(a, range, i);
    const bool is_piece = i < num_items && item.piece < a.layout.num_pieces;
    std::uint32_t words[Form::kWords];
    if (is_piece) Form::make(a, batch + item.nth, item.piece, lane, words, scales);
    if (!is_planned) meet();
    is_planned = true;
    if (i >= num_items) break;
    const TokenPlan& plan = shared.plans[item.nth];
    if (is_piece) {
      send_piece<Form>(a, call, item.piece, item.share, lane, words, plan, scales);
    } else if (item.is_details) {
      send_details(a, call, batch + item.nth, lane, plan, shared.details[warp]);
    }
  }
}

/// Sends a run of tokens, batch after batch. `counts`: of the tokens before. The ids of the first
/// batch are there.
template <class Form>
__device__ __forceinline__ void send_tokens(const DispatchArgs& a, std::uint64_t call,
                                            const SendRange& range, SenderShared& shared,
                                            std::uint32_t* counts) {
#pragma unroll 1
  for (int batch = range.begin; batch < range.end; batch += kBatchTokens) {
    const int size = min(kBatchTokens, range.end - batch);
    if (threadIdx.x / kLanes == kMakerWarps) {
      plan_batch(a, call, batch, size, range.part == 0, shared, counts);
    } else {
      send_batch<Form>(a, call, range, batch, size, shared);
    }
    const int next = batch + kBatchTokens;
    if (next >= range.end) return;
    __syncthreads();
    shared.ids[threadIdx.x] = load_id_of_batch(a, next, range.end);
    __syncthreads();
  }
}

}  // namespace switchyard
