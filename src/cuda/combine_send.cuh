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

/// The rare way: NaN among 16 values becomes the canonical one.
template <DType kDType>
__device__ __noinline__ void narrow_with_nan(const float* x, std::uint32_t* words) {
#pragma unroll 1
  for (int i = 0; i < 8; ++i) words[i] = narrow2<kDType>(x[2 * i], x[2 * i + 1]);
}

/// 16 sums to memory words: rounded once, NaN canonical.
template <DType kDType>
__device__ __forceinline__ void narrow_grain(const float (&x)[16],
                                             std::uint32_t (&words)[wire_bits(kDType) / 2]) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
  } else {
    bool has_nan = false;
#pragma unroll
    for (int i = 0; i < 8; ++i) has_nan |= isunordered(x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = narrow2_finite<kDType>(x[2 * i], x[2 * i + 1]);
    if (has_nan) [[unlikely]] {
      float from[16];
      std::uint32_t to[8];
#pragma unroll
      for (int i = 0; i < 16; ++i) from[i] = x[i];
      narrow_with_nan<kDType>(from, to);
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i] = to[i];
    }
  }
}

/// A lane's unit u of a piece in a returned row.
template <int kWords>
__device__ __forceinline__ std::size_t return_unit(std::size_t row, int piece, int unit, int lane) {
  constexpr std::size_t kPieceBytes = kLanes * kWords * 4;
  return row + static_cast<std::size_t>(piece) * kPieceBytes +
         static_cast<std::size_t>(unit * kLanes + lane) * kUnitBytes;
}

template <int kWords>
__device__ __forceinline__ void send_return(const CombineArgs& a, std::uint64_t call, int owner,
                                            int token, int column, int piece, int lane,
                                            const std::uint32_t (&words)[kWords]) {
  std::byte* base = a.windows.base[owner];
  const std::size_t row = a.layout.returned(call, token, column);
#pragma unroll
  for (int u = 0; u < kWords / 4; ++u) {
    const std::uint32_t unit[4] = {words[4 * u], words[4 * u + 1], words[4 * u + 2],
                                   words[4 * u + 3]};
    const std::size_t at = return_unit<kWords>(row, piece, u, lane);
    send_unit(base, at, a.layout, call, unit);
  }
}

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

/// One piece of one arrived token, by one warp.
template <DType kWire>
__device__ __forceinline__ void return_piece(const CombineArgs& a, std::uint64_t call, int owner,
                                             const ArrivedToken& from, int piece, int lane) {
  constexpr int kWords = wire_bits(kWire) / 2;
  const std::int32_t first = piece * kPieceElements + lane * kGrainElements;
  const bool is_there = first < a.layout.shape.hidden;
  unsigned choices = __ballot_sync(0xFFFFFFFFu, from.row >= 0);
  const int highest = 31 - __clz(choices);
  const bool by_choice = a.reduce == Reduce::kPerExpert;
  // A row a token: the caller has summed it.
  if (!a.layout.shape.sends_routes) choices &= 1u << highest;
  float sum[16] = {};
#pragma unroll 1
  while (choices != 0) {
    const int k = __ffs(choices) - 1;
    choices &= choices - 1;
    const std::int32_t row = __shfl_sync(0xFFFFFFFFu, from.row, k);
    float weight = __shfl_sync(0xFFFFFFFFu, from.weight, k);
    if (by_choice || !a.layout.shape.sends_routes) weight = 1.0f;
    if (is_there) {
      float x[16];
      load_result(a, row, first, x);
#pragma unroll
      for (int i = 0; i < 16; ++i) sum[i] = by_choice ? x[i] : __fmaf_rn(weight, x[i], sum[i]);
    }
    if (choices != 0 && !by_choice) continue;
    if (is_there) {
      std::uint32_t words[kWords];
      narrow_grain<kWire>(sum, words);
      const int column = a.layout.column(a.rank, by_choice ? k : highest);
      send_return<kWords>(a, call, owner, from.token, column, piece, lane, words);
    }
  }
}

template <DType kWire>
__device__ __forceinline__ void return_tokens(const CombineArgs& a, std::uint64_t call, int sender) {
  const int warp = sender * kExchangeWarps + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_senders * kExchangeWarps;
  const int num_ranks = a.ownership.num_ranks;
  const int num_pieces = a.layout.num_pieces;
  // Lane s knows how many rows came of ranks s and s + 32.
  const std::int32_t low = lane < num_ranks ? a.state.num_arrivals[lane] : 0;
  const std::int32_t high = lane + kLanes < num_ranks ? a.state.num_arrivals[lane + kLanes] : 0;
  const int per_slot = num_ranks * num_pieces;
  const auto max_tokens = static_cast<std::int32_t>(a.layout.shape.max_tokens);
#pragma unroll 1
  for (int item = warp;; item += num_warps) {
    const int slot = a.by_slot.quotient(item);
    if (slot >= max_tokens) return;
    const int rest = item - slot * per_slot;
    const int nth = a.by_pieces.quotient(rest);
    const int owner = nth + a.rank < num_ranks ? nth + a.rank : nth + a.rank - num_ranks;
    // Before it is known whether there is such a token: loads of one wait are one wait.
    const ArrivedToken from(a, owner * max_tokens + slot, lane);
    const std::int32_t from_low = __shfl_sync(0xFFFFFFFFu, low, owner % kLanes);
    const std::int32_t from_high = __shfl_sync(0xFFFFFFFFu, high, owner % kLanes);
    if (slot < (owner < kLanes ? from_low : from_high)) {
      return_piece<kWire>(a, call, owner, from, rest - nth * num_pieces, lane);
    } else if (slot >= __reduce_max_sync(0xFFFFFFFFu, max(low, high))) {
      return;
    }
  }
}

}  // namespace switchyard
