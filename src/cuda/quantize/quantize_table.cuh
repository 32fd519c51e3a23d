// SPDX-License-Identifier: Apache-2.0
//
// quantize_table.cuh: silu(gate) * up of bf16 to e2m1. This is limited by instructions, not by
// memory, and silu is more than half of them. A bf16 gate has few values, so each block tabulates
// silu of the common ones in shared memory while its first rows are loading. It then walks over
// many rows and loads the next ones while it rounds.
#pragma once

#include "core/round_up.h"
#include "cuda/quantize/quantize_wide.cuh"

namespace switchyard::cuda {

/// One block per SM, so that a table is written once and registers hold two rows.
inline constexpr unsigned kTableThreads = 896;
inline constexpr std::int64_t kTableRounds = 4;  // minimum rounds of rows per block

template <typename Rule, typename Source>
inline constexpr bool kHasTable =
    Rule::kCodec == Codec::kE2M1&& Source::kActivates&& Source::kInput == DType::kBF16;

/// Whole warps per row, and the number of rows that fit one block; 0: none fits.
struct TableShape {
  std::uint32_t row_threads;
  std::uint32_t rows_at_once;

  TableShape(std::int64_t hidden, std::int64_t elements_of_thread) {
    constexpr std::int64_t kMax = kTableThreads;
    const std::int64_t threads = align_up<std::int64_t>(cdiv(hidden, elements_of_thread), 32);
    row_threads = static_cast<std::uint32_t>(threads < kMax ? threads : kMax);
    rows_at_once = threads == 0 ? 0 : static_cast<std::uint32_t>(kMax / threads);
  }
};

/// silu of every bf16 with a magnitude from 2^-13 to kSiluNear, ordered by magnitude, each positive
/// value before its negative.
struct SiluTable {
  static constexpr std::uint32_t kFirst = bits_from_f32(0x1p-13f) >> 16;
  static constexpr std::uint32_t kLast = bits_from_f32(kSiluNear) >> 16;
  static constexpr std::uint32_t kSize = 2 * (kLast - kFirst + 1);
  float* silu;

  /// All threads of the block call it.
  __device__ __forceinline__ void fill() const {
    for (std::uint32_t i = threadIdx.x; i < kSize; i += blockDim.x) {
      const std::uint32_t gate = (i / 2 + kFirst) << 16 | i % 2 << 31;
      silu[i] = silu_near<DType::kBF16>(f32_from_bits(gate));
    }
  }

  /// silu(gate) * up. Falls back to silu_near if a lane of the warp has a gate that is too small
  /// for the table. Returns false if some gate is too large for both.
  template <typename Unit, int kElements>
  __device__ __forceinline__ bool values(const Unit& unit, float (&x)[kElements]) const {
    std::uint32_t least = 0x7FFF7FFFu;
    std::uint32_t largest = 0;
#pragma unroll
    for (int w = 0; w < Unit::kWords; ++w) {
      const std::uint32_t pair = unit.words[0][w] & 0x7FFF7FFFu;
      least = __vminu2(least, pair);
      largest = __vmaxu2(largest, pair);
    }
    const bool is_near = max(largest & 0xFFFFu, largest >> 16) <= kLast;
    const bool is_known = min(least & 0xFFFFu, least >> 16) >= kFirst;
    if (!__all_sync(0xFFFFFFFFu, is_near)) return false;
    if (!__all_sync(0xFFFFFFFFu, is_known)) {
      unit.values(x);
      return true;
    }
#pragma unroll
    for (int w = 0; w < Unit::kWords; ++w) {
      const std::uint32_t gates = unit.words[0][w];
      // The sign becomes the lowest bit of each half.
      const std::uint32_t at = (gates << 1 & 0xFFFEFFFEu) | (gates >> 15 & 0x00010001u);
      const float2 up = widen2_bf16(unit.words[1][w]);
      x[2 * w] = silu[(at & 0xFFFFu) - 2 * kFirst] * up.x;
      x[2 * w + 1] = silu[(at >> 16) - 2 * kFirst] * up.y;
    }
    return true;
  }
};

/// One unit per thread; for rows of one matrix, with at most one tensor scale, which they share.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(kTableThreads, 1)
    quantize_table_kernel(const __grid_constant__ QuantizeJob job, std::uint32_t row_threads) {
  using Shape = WideShape<Rule, Source>;
  constexpr int kElements = Shape::kElements;
  __shared__ float silu[SiluTable::kSize];
  const SiluTable table{silu};
  const auto hidden = static_cast<std::uint32_t>(job.hidden);
  const std::uint32_t h = threadIdx.x % row_threads * kElements;
  const std::int64_t rows_at_once = blockDim.x / row_threads;
  const std::int64_t step = gridDim.x * rows_at_once;
  std::int64_t n = blockIdx.x * rows_at_once + threadIdx.x / row_threads;
  const auto* row = source_of<Source>(job, 0, n).row;
  WideUnit<Source, kElements> unit;
  if (n < job.capacity) unit.fetch(Source(row, hidden), h, hidden);
  table.fill();
  __syncthreads();
  std::byte* codes = codes_of(job, 0, n) + h / kElements * Shape::kCodeBytesOfUnit;
  const RuleInput input = rule_input(job, 0, 0);
  const float inverse_given = inverse_of_given<Rule>(input);
#pragma unroll 1
  for (; n < job.capacity; n += step) {
    float x[kElements];
    const bool is_near = table.values(unit, x);
    row += step * job.x.row_stride;
    if (n + step < job.capacity) unit.fetch(Source(row, hidden), h, hidden);
    const auto& bits = reinterpret_cast<const std::uint32_t(&)[kElements]>(x);
    const std::uint32_t amax_bits =
        max_bits_of_lanes<Shape::kLanes>(is_near ? max_bits_of<DType::kF32>(bits) : kF32NaN);
    const WideMap map = wide_map<Rule>(amax_bits, input, inverse_given);
    if (__any_sync(0xFFFFFFFFu, !map.is_good)) [[unlikely]] {
      quantize_rare<Rule, Source, kElements, Shape::kLanes>(job, 0, n, h);
    } else {
      std::uint32_t words[Shape::kCodeWords];
      encode_wide<Rule, Source>(map, x, words);
      store_words<Shape::kCodeWords>(words, h < hidden ? 1 : 0, true, codes);
      const auto scales = ScaleRow::of<typename Shape::Scale>(job, 0, n);
      store_wide_scale<Rule, Shape::kLanes>(scales, h, map.scale);
    }
    codes += step * job.q_row_bytes;
  }
}

}  // namespace switchyard::cuda
