// SPDX-License-Identifier: Apache-2.0
//
// combine_send.cuh: the send part of combine: results go to the slot (token, column) of the token's
// owner. per_rank sums the rows that this rank has of a token first, k ascending, and rounds once;
// per_expert sends each row as it is.
#pragma once

#include "cuda/encode.cuh"
#include "cuda/exchange_args.h"
#include "cuda/row_form.cuh"
#include "cuda/wire.cuh"

namespace switchyard {

/// 16 elements of a row of results as f32.
__device__ __forceinline__ void load_result(const CombineArgs& a, std::int64_t row,
                                            std::int64_t first, float (&x)[16]) {
  const std::byte* from = a.rows + row * a.row_stride;
  if (a.row_dtype == DType::kF32) {
    std::uint32_t words[16];
    load_grain<32>(from, first, a.layout.shape.hidden, a.aligned_rows, words);
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = f32_from_bits(words[i]);
  } else {
    std::uint32_t words[8];
    load_grain<16>(from, first, a.layout.shape.hidden, a.aligned_rows, words);
    widen_grain(a.row_dtype, words, x);
  }
}

/// 16 sums to words of the wire: rounded once, NaN canonical.
template <DType kWire>
__device__ __forceinline__ void narrow_grain(const float (&x)[16],
                                             std::uint32_t (&words)[wire_bits(kWire) / 2]) {
  if constexpr (kWire == DType::kF32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = narrow2<kWire>(x[2 * i], x[2 * i + 1]);
  }
}

/// A lane's unit u of a strip in a returned row.
template <int kWords>
__device__ __forceinline__ std::size_t return_unit(std::size_t row, int strip, int unit, int lane) {
  constexpr std::size_t kStripBytes = kLanes * kWords * 4;
  return row + static_cast<std::size_t>(strip) * kStripBytes +
         static_cast<std::size_t>(unit * kLanes + lane) * kUnitBytes;
}

template <int kWords>
__device__ __forceinline__ void send_return(const CombineArgs& a, std::uint64_t call, int owner,
                                            int token, int column, int strip, int lane,
                                            const std::uint32_t (&words)[kWords]) {
  std::byte* base = a.windows.base[owner];
  const std::size_t row = a.layout.returned(call, token, column);
#pragma unroll
  for (int u = 0; u < kWords / 4; ++u) {
    const std::uint32_t unit[4] = {words[4 * u], words[4 * u + 1], words[4 * u + 2],
                                   words[4 * u + 3]};
    const std::size_t at = return_unit<kWords>(row, strip, u, lane);
    send_unit(base + at, base + a.layout.mark(call, at), unit);
  }
}

/// One strip of one arrived token, by one warp. Lane k has the row and weight of choice k.
template <DType kWire>
__device__ __forceinline__ void return_strip(const CombineArgs& a, std::uint64_t call, int owner,
                                             std::int64_t arrival, int strip, int lane) {
  constexpr int kWords = wire_bits(kWire) / 2;
  const std::int64_t at = arrival * a.num_topk + lane;
  const std::int32_t own_row = lane < a.num_topk ? a.state.arrival_rows[at] : -1;
  const float own_weight = lane < a.num_topk ? a.state.arrival_weights[at] : 0.0f;
  const std::int32_t token = a.state.arrival_token[arrival];
  const std::int64_t first = std::int64_t{strip} * kStripElements + lane * kGrainElements;
  const bool is_there = first < a.layout.shape.hidden;
  unsigned choices = __ballot_sync(0xFFFFFFFFu, own_row >= 0);
  if (choices == 0) return;
  const int highest = 31 - __clz(choices);
  float x[16];
  std::uint32_t words[kWords];
  if (a.reduce == Reduce::kPerExpert) {
    for (; choices != 0; choices &= choices - 1) {
      const int k = __ffs(choices) - 1;
      const std::int32_t row = __shfl_sync(0xFFFFFFFFu, own_row, k);
      if (!is_there) continue;
      load_result(a, row, first, x);
      narrow_grain<kWire>(x, words);
      send_return<kWords>(a, call, owner, token, a.layout.column(a.rank, k), strip, lane, words);
    }
    return;
  }
  float sum[16] = {};
  if (!a.layout.shape.sends_routes) {
    // A row a token: the caller has summed it.
    const std::int32_t row = __shfl_sync(0xFFFFFFFFu, own_row, highest);
    if (is_there) load_result(a, row, first, sum);
    choices = 0;
  }
  while (choices != 0) {
    const int k = __ffs(choices) - 1;
    choices &= choices - 1;
    const std::int32_t row = __shfl_sync(0xFFFFFFFFu, own_row, k);
    const float weight = a.applies_weights ? __shfl_sync(0xFFFFFFFFu, own_weight, k) : 1.0f;
    if (!is_there) continue;
    load_result(a, row, first, x);
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i] = __fmaf_rn(weight, x[i], sum[i]);
  }
  if (!is_there) return;
  narrow_grain<kWire>(sum, words);
  send_return<kWords>(a, call, owner, token, a.layout.column(a.rank, highest), strip, lane, words);
}

template <DType kWire>
__device__ __forceinline__ void return_tokens(const CombineArgs& a, std::uint64_t call, int sender) {
  const int warp = sender * kExchangeWarps + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_senders * kExchangeWarps;
  const int num_ranks = a.ownership.num_ranks;
  const auto num_strips = static_cast<int>((a.layout.shape.hidden + kStripElements - 1) / kStripElements);
  // Lane s knows how many rows came of ranks s and s + 32.
  const std::int32_t low = lane < num_ranks ? a.state.num_arrivals[lane] : 0;
  const std::int32_t high = lane + kLanes < num_ranks ? a.state.num_arrivals[lane + kLanes] : 0;
  const int most = __reduce_max_sync(0xFFFFFFFFu, max(low, high));
  const int per_slot = num_ranks * num_strips;
  const std::int64_t num_items = std::int64_t{most} * per_slot;
  for (std::int64_t item = warp; item < num_items; item += num_warps) {
    const auto slot = static_cast<std::int32_t>(item / per_slot);
    const auto rest = static_cast<int>(item % per_slot);
    const int owner = (rest / num_strips + a.rank) % num_ranks;
    const std::int32_t from_low = __shfl_sync(0xFFFFFFFFu, low, owner % kLanes);
    const std::int32_t from_high = __shfl_sync(0xFFFFFFFFu, high, owner % kLanes);
    if (slot >= (owner < kLanes ? from_low : from_high)) continue;
    return_strip<kWire>(a, call, owner, owner * a.layout.shape.max_tokens + slot,
                        rest % num_strips, lane);
  }
}

}  // namespace switchyard
