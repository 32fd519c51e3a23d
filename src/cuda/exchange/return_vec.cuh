// SPDX-License-Identifier: Apache-2.0
//
// return_vec.cuh: 8 elements of a returned row as they are in memory, on the wire and in sums.
//
// Kernels with kIsCommon may assume that rows and sums have the dtype of returned rows (bf16 where
// those are codes), consist of whole chunks and are aligned, and that no bias or shared rows are
// added. Most calls are like that, and every instruction of a lane counts.
#pragma once

#include <cstdint>

#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/row_form.cuh"
#include "cuda/quantize/encode.cuh"

namespace switchyard::cuda {

template <DType kDType>
inline constexpr int kVecWords = kReturnVecElements* wire_bits(kDType) / 32;
template <DType kDType>
inline constexpr int kVecUnits = kVecWords<kDType> / 4;

/// Offsets of returned rows in a window. What does not change is computed once.
struct ReturnSlots {
  std::size_t first;  ///< offset of token 0
  std::uint32_t num_columns;

  __device__ __forceinline__ explicit ReturnSlots(const PushLayout& layout)
      : first(layout.returned(0, 0)),
        num_columns(static_cast<std::uint32_t>(layout.num_columns())) {}

  /// Offset of a chunk in the token's first column.
  __device__ __forceinline__ std::size_t at(const PushLayout& layout, int token, int chunk) const {
    const std::uint32_t row = static_cast<std::uint32_t>(token) * num_columns;
    return first + std::uint64_t{row} * layout.return_stride +
           std::uint64_t{static_cast<std::uint32_t>(chunk)} * layout.return_chunk_stride;
  }
};

/// row * stride in one instruction, for a row >= 0 and a stride below 2^32.
__device__ __forceinline__ std::uint64_t product_of(std::int32_t row, std::int64_t stride) {
  return std::uint64_t{static_cast<std::uint32_t>(row)} * static_cast<std::uint32_t>(stride);
}

/// Rows of bf16, f16 or f32.
struct ReturnRowSource {
  const std::byte* rows;
  std::int64_t stride;  ///< bytes
  std::int64_t hidden;
  DType dtype;
  bool is_aligned;
};

/// A vector as it is in memory: 4 words, or 8 for f32.
template <int kWords>
struct RawVec {
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const std::byte* from) {
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[w / 4];
      words[w] = four.x, words[w + 1] = four.y, words[w + 2] = four.z, words[w + 3] = four.w;
    }
  }
};
using AnyVec = RawVec<kReturnVecElements>;

__device__ __forceinline__ AnyVec load_raw(const ReturnRowSource& source, std::int32_t row,
                                           std::int32_t first, bool is_there) {
  AnyVec raw{};
  if (!is_there) return raw;
  const int bytes = source.dtype == DType::kF32 ? 4 : 2;
  const std::byte* from = source.rows + row * source.stride + first * bytes;
  if (source.is_aligned && first + kReturnVecElements <= source.hidden) {
    if (bytes == 4) {
      raw.load(from);
    } else {
      RawVec<kReturnVecElements / 2> half;
      half.load(from);
#pragma unroll
      for (int w = 0; w < kReturnVecElements / 2; ++w) raw.words[w] = half.words[w];
    }
    return raw;
  }
  const auto left = static_cast<int>(min(source.hidden - first, std::int64_t{kReturnVecElements}));
  std::uint32_t copy[kReturnVecElements];  // so that `raw` stays in registers
  load_bytes<kReturnVecElements>(from, left * bytes, copy);
#pragma unroll
  for (int w = 0; w < kReturnVecElements; ++w) raw.words[w] = copy[w];
  return raw;
}

template <DType kDType>
__device__ __forceinline__ void widen_words(const std::uint32_t* words,
                                            float (&x)[kReturnVecElements]) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kReturnVecElements; ++i) x[i] = f32_from_bits(words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kReturnVecElements / 2; ++i) {
      const float2 two = kDType == DType::kBF16 ? widen2_bf16(words[i]) : widen2_f16(words[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  }
}

__device__ __forceinline__ void widen_raw(DType dtype, const AnyVec& raw,
                                          float (&x)[kReturnVecElements]) {
  switch (dtype) {
    case DType::kF32: return widen_words<DType::kF32>(raw.words, x);
    case DType::kF16: return widen_words<DType::kF16>(raw.words, x);
    default: return widen_words<DType::kBF16>(raw.words, x);
  }
}

/// Replaces the NaN 7FFF, which the hardware writes when it converts pairs, with the canonical NaN.
template <DType kDType>
__device__ __forceinline__ void fix_nans(std::uint32_t (&words)[kReturnVecElements / 2]) {
  constexpr std::uint32_t kHardwareNaN = 0x7FFFu;
  constexpr std::uint32_t kNaN = kDType == DType::kBF16 ? 0x7FC0u : 0x7E00u;
  static_assert(kReturnVecElements == 8);
  // As signed 16 bits, no number exceeds 7FFF, and adding one to it sets the sign bit.
  std::uint32_t max_magnitude = __vimax3_s16x2(words[0], words[1], words[2]);
  max_magnitude = __vimax3_s16x2(max_magnitude, words[3], words[3]) & 0x7FFF7FFFu;
  if (((max_magnitude + 0x00010001u) & 0x80008000u) == 0) [[likely]]
    return;
#pragma unroll
  for (int i = 0; i < kReturnVecElements / 2; ++i) {
    const std::uint32_t word = words[i];
    if ((word & 0xFFFFu) == kHardwareNaN) words[i] = (words[i] & 0xFFFF0000u) | kNaN;
    if (word >> 16 == kHardwareNaN) words[i] = (words[i] & 0xFFFFu) | kNaN << 16;
  }
}

/// Converts sums to words: rounded once, with a canonical NaN, so that no word is one that the wire
/// reserves.
template <DType kDType>
__device__ __forceinline__ void narrow_vec(const float (&x)[kReturnVecElements],
                                           std::uint32_t (&words)[kVecWords<kDType>]) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kReturnVecElements; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < kReturnVecElements / 2; ++i) {
      words[i] = narrow2_finite<kDType>(x[2 * i], x[2 * i + 1]);
    }
    fix_nans<kDType>(words);
  }
}

}  // namespace switchyard::cuda
