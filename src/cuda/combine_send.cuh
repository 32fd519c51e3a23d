// SPDX-License-Identifier: Apache-2.0
//
// combine_send.cuh: the send part of combine: results go to the slot (token, column) of the token's
// owner. per_rank sums the rows that this rank has of a token first, k ascending, and rounds once;
// per_expert sends each row as it is.
#pragma once

#include "cuda/call.cuh"
#include "cuda/exchange_args.h"
#include "cuda/return_grain.cuh"
#include "cuda/wire.cuh"

namespace switchyard {

/// What a lane knows of an arrived token: row and weight of choice k.
struct ArrivedToken {
  std::int32_t row;
  float weight;
  std::int32_t token;

  __device__ __forceinline__ ArrivedToken(const CombineArgs& a, std::int32_t arrival, int lane) {
    const std::int64_t at = std::int64_t{arrival} * a.num_topk + lane;
    row = lane < a.num_topk ? a.state.arrival_rows[at] : -1;
    weight = lane < a.num_topk && a.applies_weights ? a.state.arrival_weights[at] : 1.0f;
    token = a.state.arrival_token[arrival];
  }
};

/// Where a piece of a returned row goes.
struct ReturnTo {
  std::byte* window;  ///< of the token's owner
  std::byte* piece;
};

template <DType kWire>
__device__ __forceinline__ void send_return(const CombineArgs& a, std::uint64_t call,
                                            const ReturnTo& to, int lane,
                                            const float (&sum)[kReturnGrain]) {
  std::uint32_t words[kGrainWords<kWire>];
  narrow_grain<kWire>(sum, words);
#pragma unroll
  for (int u = 0; u < kGrainUnits<kWire>; ++u) {
    const std::uint32_t unit[4] = {words[4 * u], words[4 * u + 1], words[4 * u + 2],
                                   words[4 * u + 3]};
    send_unit(to.window, to.piece + (u * kLanes + lane) * kUnitBytes, a.layout, call, unit);
  }
}

/// One piece of one arrived token, by one warp. The next row is on its way while one is added.
template <class Wire>
__device__ __forceinline__ void return_piece(const CombineArgs& a, std::uint64_t call, int owner,
                                             const ArrivedToken& from, int piece, int lane) {
  const std::int32_t first = piece * kReturnPiece + lane * kReturnGrain;
  const bool is_there = first < a.layout.shape.hidden;
  const bool by_choice = a.reduce == Reduce::kPerExpert;
  unsigned choices = __ballot_sync(kAllLanes, from.row >= 0);
  const int highest = 31 - __clz(choices);
  // A row a token: the caller has summed it.
  if (!a.layout.shape.sends_routes) choices &= 1u << highest;
  const RowSource rows{a.rows, a.row_stride, a.layout.shape.hidden, a.row_dtype, a.aligned_rows};
  int k = __ffs(choices) - 1;
  RawGrain raw = load_raw(rows, __shfl_sync(kAllLanes, from.row, k), first, is_there);
  // On its way, where it goes: into the column of the rank, or of each choice.
  std::byte* window = a.windows.base[owner];
  std::byte* own = window + a.layout.returned(call, from.token, 0) +
                   static_cast<unsigned>(piece) * a.layout.return_piece_stride;
  float sum[kReturnGrain] = {};
#pragma unroll 1
  for (;;) {
    choices &= choices - 1;
    const int next = choices == 0 ? k : __ffs(choices) - 1;
    const float weight = __shfl_sync(kAllLanes, from.weight, k);
    const std::int32_t next_row = __shfl_sync(kAllLanes, from.row, next);
    RawGrain ahead = raw;
    if (choices != 0) ahead = load_raw(rows, next_row, first, is_there);
    float x[kReturnGrain];
    widen_raw(rows, raw, x);
    const bool is_plain = by_choice || !a.layout.shape.sends_routes;
#pragma unroll
    for (int i = 0; i < kReturnGrain; ++i) {
      sum[i] = is_plain ? x[i] : __fmaf_rn(weight, x[i], sum[i]);
    }
    if (by_choice || choices == 0) {
      const auto column =
          static_cast<std::uint32_t>(a.layout.column(a.rank, by_choice ? k : highest));
      Wire::send(a, call, {window, own + column * a.layout.return_stride}, lane, is_there, sum);
    }
    if (choices == 0) return;
    raw = ahead;
    k = next;
  }
}

/// A piece of an arrived token.
struct ArrivedPiece {
  std::int32_t owner;
  std::int32_t slot;
  std::int32_t piece;
};

/// `next_call` and `num_arrivals` are shared memory.
template <class Wire>
__device__ __forceinline__ void return_tokens(const CombineArgs& a, CallOfCta& next_call,
                                              int sender, std::int32_t* num_arrivals) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes * a.num_senders + sender;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_senders * a.num_warps;
  const int num_ranks = a.ownership.num_ranks;
  const auto max_tokens = static_cast<std::int32_t>(a.layout.shape.max_tokens);
  if (max_tokens == 0) return;
  const auto at = [&](int item) {
    const int slot = min(a.by_slot.quotient(item), max_tokens - 1);
    const int rest = item - a.by_slot.quotient(item) * static_cast<int>(a.by_slot.divisor);
    const int nth = a.by_pieces.quotient(rest);
    const int owner = nth + a.rank < num_ranks ? nth + a.rank : nth + a.rank - num_ranks;
    return ArrivedPiece{owner, slot, rest - nth * a.layout.num_return_pieces};
  };
  // Before it is known whether there is such a token, and while the one before is returned: loads
  // of one wait are one wait.
  ArrivedPiece now = at(warp);
  ArrivedToken from(a, now.owner * max_tokens + now.slot, lane);
  next_call.ask(a);
  static_assert(kMaxPushRanks <= kLeastExchangeThreads);
  if (threadIdx.x < kMaxPushRanks) {
    const auto s = static_cast<int>(threadIdx.x);
    num_arrivals[s] = s < num_ranks ? a.state.num_arrivals[s] : 0;
  }
  __syncthreads();
  if (next_call.has_failed != 0) return;
  const std::uint64_t call = next_call.number - 1;
  const std::int32_t most = __reduce_max_sync(
      kAllLanes, max(num_arrivals[lane], num_arrivals[lane + kMaxPushRanks - kLanes]));
  const int num_items = most * static_cast<int>(a.by_slot.divisor);
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    ArrivedPiece next = now;
    ArrivedToken from_next = from;
    if (item + num_warps < num_items) {
      next = at(item + num_warps);
      from_next = ArrivedToken(a, next.owner * max_tokens + next.slot, lane);
    }
    if (now.slot < num_arrivals[now.owner]) {
      return_piece<Wire>(a, call, now.owner, from, now.piece, lane);
    }
    now = next;
    from = from_next;
  }
}

}  // namespace switchyard
