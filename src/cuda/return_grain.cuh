// SPDX-License-Identifier: Apache-2.0
//
// return_grain.cuh: 8 elements of a returned row, as memory, wire and sums hold them.
#pragma once

#include <cstdint>

#include "cuda/encode.cuh"
#include "cuda/exchange_args.h"
#include "cuda/row_form.cuh"

namespace switchyard {

template <DType kDType>
inline constexpr int kGrainWords = kReturnGrain* wire_bits(kDType) / 32;
template <DType kDType>
inline constexpr int kGrainUnits = kGrainWords<kDType> / 4;

/// A lane's first unit of a piece in a returned row; units of a lane lie a warp's units apart.
template <DType kWire>
__device__ __forceinline__ std::size_t return_unit(int piece, int lane) {
  return static_cast<std::size_t>(piece) * kReturnPiece * wire_bits(kWire) / 8 +
         static_cast<std::size_t>(lane) * kUnitBytes;
}

/// Rows of bf16, f16 or f32.
struct RowSource {
  const std::byte* rows;
  std::int64_t stride;  ///< bytes
  std::int64_t hidden;
  DType dtype;
  bool is_aligned;
};

struct RawGrain {
  std::uint32_t words[kReturnGrain];  ///< f32 needs all of them
};

__device__ __forceinline__ RawGrain load_raw(const RowSource& source, std::int32_t row,
                                             std::int32_t first, bool is_there) {
  RawGrain raw{};
  if (!is_there) return raw;
  const int bytes = source.dtype == DType::kF32 ? 4 : 2;
  const std::byte* from = source.rows + row * source.stride + first * bytes;
  if (source.is_aligned && first + kReturnGrain <= source.hidden) {
    const uint4 low = __ldg(reinterpret_cast<const uint4*>(from));
    raw.words[0] = low.x, raw.words[1] = low.y, raw.words[2] = low.z, raw.words[3] = low.w;
    if (bytes == 4) {
      const uint4 high = __ldg(reinterpret_cast<const uint4*>(from) + 1);
      raw.words[4] = high.x, raw.words[5] = high.y, raw.words[6] = high.z, raw.words[7] = high.w;
    }
    return raw;
  }
  const auto left = static_cast<int>(min(source.hidden - first, std::int64_t{kReturnGrain}));
  std::uint32_t copy[kReturnGrain];  // the words themselves stay in registers
  load_bytes<kReturnGrain>(from, left * bytes, copy);
#pragma unroll
  for (int w = 0; w < kReturnGrain; ++w) raw.words[w] = copy[w];
  return raw;
}

template <DType kDType>
__device__ __forceinline__ void widen_words(const std::uint32_t* words, float (&x)[kReturnGrain]) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kReturnGrain; ++i) x[i] = f32_from_bits(words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kReturnGrain / 2; ++i) {
      const float2 two = kDType == DType::kBF16 ? widen2_bf16(words[i]) : widen2_f16(words[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  }
}

__device__ __forceinline__ void widen_raw(const RowSource& source, const RawGrain& raw,
                                          float (&x)[kReturnGrain]) {
  switch (source.dtype) {
    case DType::kF32: return widen_words<DType::kF32>(raw.words, x);
    case DType::kF16: return widen_words<DType::kF16>(raw.words, x);
    default: return widen_words<DType::kBF16>(raw.words, x);
  }
}

/// The rare way: NaN becomes the canonical one.
template <DType kDType>
__device__ __noinline__ void narrow_with_nan(const float* x, std::uint32_t* words) {
#pragma unroll 1
  for (int i = 0; i < kReturnGrain / 2; ++i) words[i] = narrow2<kDType>(x[2 * i], x[2 * i + 1]);
}

/// Sums to memory words: rounded once, NaN canonical.
template <DType kDType>
__device__ __forceinline__ void narrow_grain(const float (&x)[kReturnGrain],
                                             std::uint32_t (&words)[kGrainWords<kDType>]) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kReturnGrain; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
  } else {
    std::uint32_t largest = 0;  // of the magnitudes, as bits: NaN is above all
#pragma unroll
    for (int i = 0; i < kReturnGrain; ++i) {
      largest = max(largest, bits_from_f32(x[i]) & ~kF32SignBit);
    }
#pragma unroll
    for (int i = 0; i < kReturnGrain / 2; ++i) {
      words[i] = narrow2_finite<kDType>(x[2 * i], x[2 * i + 1]);
    }
    if (largest > kF32Infinity) [[unlikely]] {
      float from[kReturnGrain];
      std::uint32_t to[kReturnGrain / 2];
#pragma unroll
      for (int i = 0; i < kReturnGrain; ++i) from[i] = x[i];
      narrow_with_nan<kDType>(from, to);
#pragma unroll
      for (int i = 0; i < kReturnGrain / 2; ++i) words[i] = to[i];
    }
  }
}

}  // namespace switchyard
