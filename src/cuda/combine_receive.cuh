// SPDX-License-Identifier: Apache-2.0
//
// combine_receive.cuh: the receive part of combine: the owner of a token adds bias, then what came
// back, in one chain in fixed order, and rounds once.
#pragma once

#include "cuda/combine_send.cuh"

namespace switchyard {

inline constexpr int kTermsAtOnce = 2;  // loads in flight

template <DType kDType>
__device__ __forceinline__ void put_sums(const CombineArgs& a, int token, std::int64_t first,
                                         const float (&x)[16]) {
  constexpr int kBytes = wire_bits(kDType) / 8;
  constexpr int kWords = wire_bits(kDType) / 2;
  std::uint32_t words[kWords];
  narrow_grain<kDType>(x, words);
  std::byte* to = a.output + token * a.output_stride + first * kBytes;
  if (a.aligned_output && first + kGrainElements <= a.layout.shape.hidden) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                         words[4 * i + 3]};
    }
    return;
  }
  std::uint32_t copy[kWords];  // the words themselves stay in registers
#pragma unroll
  for (int i = 0; i < kWords; ++i) copy[i] = words[i];
  const std::int64_t left = (a.layout.shape.hidden - first) * kBytes;
  put_bytes(to, left < 4 * kWords ? static_cast<int>(left) : 4 * kWords, copy);
}

__device__ __forceinline__ void add_bias(const CombineArgs& a, int token, std::int64_t first,
                                         float (&sum)[16]) {
#pragma unroll 1
  for (int b = 0; b < a.num_bias; ++b) {
    const auto* row = reinterpret_cast<const std::byte*>(a.bias[b] + token * a.bias_stride[b]);
    std::uint32_t words[8];
    float x[16];
    load_grain<16>(row, first, a.layout.shape.hidden, false, words);
    widen_grain(DType::kBF16, words, x);
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i] = __fmaf_rn(1.0f, x[i], sum[i]);
  }
}

template <DType kWire>
__device__ __forceinline__ void widen_words(const std::uint32_t (&words)[wire_bits(kWire) / 2],
                                            float (&x)[16]) {
  if constexpr (kWire == DType::kF32) {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = f32_from_bits(words[i]);
  } else {
    widen_grain(kWire, words, x);
  }
}

/// One piece of one own token, by one warp. Lane i knows term i. False: gave up.
template <DType kWire>
__device__ __forceinline__ bool sum_piece(const CombineArgs& a, std::uint64_t call, int token,
                                          int piece, int lane) {
  constexpr int kWords = wire_bits(kWire) / 2;
  constexpr int kUnits = kWords / 4;
  std::byte* own = a.windows.base[a.rank];
  const std::int64_t at = std::int64_t{token} * a.num_topk + lane;
  const int num_terms = a.state.num_terms[token];
  const bool has_term = lane < num_terms;
  const int column = has_term ? a.state.columns[at] : 0;
  float own_weight = 1.0f;
  if (a.reduce == Reduce::kPerExpert && has_term) {
    own_weight = a.topk_weights == nullptr
                     ? a.state.term_weights[at]
                     : __ldg(a.topk_weights + std::int64_t{token} * a.num_topk + column);
  }
  const std::int64_t first = std::int64_t{piece} * kPieceElements + lane * kGrainElements;
  const bool is_there = first < a.layout.shape.hidden;
  float sum[16] = {};
  if (is_there) add_bias(a, token, first, sum);
  bool is_good = true;
#pragma unroll 1
  for (int begin = 0; begin < num_terms; begin += kTermsAtOnce) {
    std::uint32_t words[kTermsAtOnce][kUnits][4];
    std::size_t rows[kTermsAtOnce];
    unsigned missing = 0;
#pragma unroll
    for (int i = 0; i < kTermsAtOnce; ++i) {
      rows[i] = return_unit<kWords>(
          a.layout.returned(call, token, __shfl_sync(0xFFFFFFFFu, column, begin + i)), piece, 0, lane);
      if (begin + i < num_terms && is_there) missing |= ((1u << kUnits) - 1) << (i * kUnits);
    }
    const unsigned present = missing;
    Spin spin;
    while (missing != 0) {
#pragma unroll
      for (int i = 0; i < kTermsAtOnce * kUnits; ++i) {
        const std::size_t at = rows[i / kUnits] + (i % kUnits) * kLanes * kUnitBytes;
        if ((missing >> i & 1) != 0) load_words(own + at, words[i / kUnits][i % kUnits]);
      }
#pragma unroll
      for (int i = 0; i < kTermsAtOnce * kUnits; ++i) {
        if (has_arrived(words[i / kUnits][i % kUnits])) missing &= ~(1u << i);
      }
      if (missing == 0) break;
      const int late = begin + (__ffs(missing) - 1) / kUnits;
      if (!spin.again(a.watch, {WaitPlace::kReturnedRow,
                                a.state.term_ranks[std::int64_t{token} * a.num_topk + late], token,
                                call})) {
        is_good = false;
        break;
      }
    }
    __syncwarp();
    if (__any_sync(0xFFFFFFFFu, !is_good)) return false;
#pragma unroll
    for (int i = 0; i < kTermsAtOnce; ++i) {
      const float weight = __shfl_sync(0xFFFFFFFFu, own_weight, begin + i);
      if ((present >> (i * kUnits) & 1) == 0) continue;
      std::uint32_t grain[kWords];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        is_good &= empty_unit(own, rows[i] + u * kLanes * kUnitBytes, a.layout, a.watch,
                              {WaitPlace::kReturnedRow, -1, token, call}, words[i][u]);
#pragma unroll
        for (int w = 0; w < 4; ++w) grain[4 * u + w] = words[i][u][w];
      }
      float x[16];
      widen_words<kWire>(grain, x);
#pragma unroll
      for (int e = 0; e < 16; ++e) sum[e] = __fmaf_rn(weight, x[e], sum[e]);
    }
  }
  if (__any_sync(0xFFFFFFFFu, !is_good)) return false;
  if (!is_there) return true;
  switch (a.output_dtype) {
    case DType::kF32: put_sums<DType::kF32>(a, token, first, sum); break;
    case DType::kF16: put_sums<DType::kF16>(a, token, first, sum); break;
    default: put_sums<DType::kBF16>(a, token, first, sum); break;
  }
  return true;
}

template <DType kWire>
__device__ __forceinline__ void sum_tokens(const CombineArgs& a, std::uint64_t call, int receiver) {
  const int warp = receiver * kExchangeWarps + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_receivers * kExchangeWarps;
  const int num_pieces = a.layout.num_pieces;
  const int num_items = a.num_tokens * num_pieces;
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    const int token = a.by_pieces.quotient(item);
    if (!sum_piece<kWire>(a, call, token, item - token * num_pieces, lane)) return;
  }
}

}  // namespace switchyard
