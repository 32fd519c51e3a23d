// SPDX-License-Identifier: Apache-2.0
//
// rows.cuh: memory access of row kernels: eight elements of a row at a time, in 16-byte accesses
// where the address and the end of the row allow them, otherwise element by element. A grid is
// (rows, experts); kernels loop over both dimensions, so a grid of any size works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/quantize/encode.cuh"
#include "cuda/quantize/row_ranges.h"
#include "quant/exp.h"

namespace switchyard::cuda {

inline constexpr int kUnit = 8;   // elements that a thread processes at a time
inline constexpr int kUnits = 4;  // units in flight per thread

template <DType kDType>
using ElementBits = std::conditional_t<kDType == DType::kF32, float, std::uint16_t>;

template <int kBytes>
__device__ __forceinline__ bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % kBytes == 0;
}

template <DType kDType>
__device__ __forceinline__ float widen(ElementBits<kDType> bits) {
  if constexpr (kDType == DType::kF32) return bits;
  if constexpr (kDType == DType::kBF16) return f32_from_bits(std::uint32_t{bits} << 16);
  if constexpr (kDType == DType::kF16) return f32_from_f16(bits);
}

/// Loads kWords words. The first `num_bytes` bytes exist (the number may be negative or too large);
/// the rest become 0. Callers use the words only after issuing more loads, so many are in flight.
/// `is_wide`: the address allows one wide access, and either all words exist or none.
template <int kWords>
__device__ __forceinline__ void load_words(const void* from, std::int64_t num_bytes, bool is_wide,
                                           std::uint32_t* words) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = 0;
  if (is_wide) {
    if (num_bytes <= 0) return;
    if constexpr (kWords == 1) {
      words[0] = *static_cast<const std::uint32_t*>(from);
    } else if constexpr (kWords == 2) {
      const uint2 both = *static_cast<const uint2*>(from);
      words[0] = both.x, words[1] = both.y;
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += 4) {
        const uint4 four = static_cast<const uint4*>(from)[w / 4];
        words[w] = four.x, words[w + 1] = four.y, words[w + 2] = four.z, words[w + 3] = four.w;
      }
    }
    return;
  }
  const auto* bytes = static_cast<const std::uint8_t*>(from);
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) {
    if (i < num_bytes) words[i / 4] |= std::uint32_t{bytes[i]} << (8 * (i % 4));
  }
}

/// The inverse of load_words.
template <int kWords>
__device__ __forceinline__ void store_words(const std::uint32_t* words, std::int64_t num_bytes,
                                            bool is_wide, void* to) {
  if (is_wide) {
    if (num_bytes <= 0) return;
    if constexpr (kWords == 1) {
      *static_cast<std::uint32_t*>(to) = words[0];
    } else if constexpr (kWords == 2) {
      *static_cast<uint2*>(to) = {words[0], words[1]};
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += 4) {
        static_cast<uint4*>(to)[w / 4] = {words[w], words[w + 1], words[w + 2], words[w + 3]};
      }
    }
    return;
  }
  auto* bytes = static_cast<std::uint8_t*>(to);
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) {
    if (i < num_bytes) bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

template <int kWords>
__device__ __noinline__ void load_words_apart(const void* from, std::int64_t num_bytes,
                                              std::uint32_t* words) {
  std::uint32_t loaded[kWords];
  load_words<kWords>(from, num_bytes, false, loaded);
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = loaded[w];
}
template <int kWords>
__device__ __noinline__ void store_words_apart(const std::uint32_t* words, std::int64_t num_bytes,
                                               void* to) {
  store_words<kWords>(words, num_bytes, false, to);
}

/// load_words with its rare case out of line, for kernels that have several units in flight: with a
/// copy for each it would be most of their code.
template <int kWords>
__device__ __forceinline__ void load_unit_words(const void* from, std::int64_t num_bytes,
                                                bool is_wide, std::uint32_t* words) {
  if (is_wide) return load_words<kWords>(from, num_bytes, true, words);
  std::uint32_t copy[kWords];  // so that `words` stays in registers
  load_words_apart<kWords>(from, num_bytes, copy);
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = copy[w];
}

template <int kWords>
__device__ __forceinline__ void store_unit_words(const std::uint32_t* words, std::int64_t num_bytes,
                                                 bool is_wide, void* to) {
  if (is_wide) return store_words<kWords>(words, num_bytes, true, to);
  std::uint32_t copy[kWords];  // so that `words` stays in registers
#pragma unroll
  for (int w = 0; w < kWords; ++w) copy[w] = words[w];
  store_words_apart<kWords>(copy, num_bytes, to);
}

template <DType kDType>
inline constexpr int kWordsOfUnit = kDType == DType::kF32 ? 8 : 4;

/// Widens a unit, as loaded from memory, to f32 values. NaN keeps its bits.
template <DType kDType>
__device__ __forceinline__ void widen_unit(const std::uint32_t* words, float* x) {
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) x[i] = f32_from_bits(words[i]);
  } else {
    widen8<kDType>({words[0], words[1], words[2], words[3]}, x);
  }
}

/// Rounds and stores those of eight values that lie before the end of the row, `count` elements
/// away. NaN becomes the canonical one.
template <DType kDType>
__device__ __forceinline__ void store_unit(const float* x, std::int64_t count, bool is_wide,
                                           ElementBits<kDType>* to) {
  std::uint32_t words[kWordsOfUnit<kDType>];
  if constexpr (kDType == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = narrow2<kDType>(x[2 * i], x[2 * i + 1]);
  }
  store_unit_words<kWordsOfUnit<kDType>>(words, count * std::int64_t{sizeof(ElementBits<kDType>)},
                                         is_wide, to);
}

/// Gates up to this magnitude may use silu_near instead of silu.
inline constexpr float kSiluNear = 86.0f;

/// silu for |x| <= 86: the operations of silu in exp.h without those that such an x does not need.
/// exp(-x) is normal, so 2^n is added to its exponent directly. For all 16-bit gates, the
/// reciprocal estimate of sm_90 yields the IEEE quotient (tests/cuda/encode_test.cu compares every
/// one); one f32 gate needs a better estimate. Other architectures have not been tested.
template <DType kGate>
__device__ __forceinline__ float silu_near(float x) {
  namespace c = exp_constants;
  const float shifted = __fmaf_rn(-x, c::kLog2E, c::kRound);
  const float n = shifted - c::kRound;
  const float r = __fmaf_rn(n, c::kMinusLn2Low, __fmaf_rn(n, c::kMinusLn2High, -x));
  float p = __fmaf_rn(c::kC4, r, c::kC3);
  p = __fmaf_rn(p, r, c::kC2);
  p = __fmaf_rn(p, r, c::kC1);
  p = __fmaf_rn(p, r, c::kC0);
  p = __fmaf_rn(p, r, 1.0f);
  const float y = __fmaf_rn(p, r, 1.0f);
  const float divisor = 1.0f + f32_from_bits(bits_from_f32(y) + (bits_from_f32(shifted) << 23));
#if __CUDA_ARCH__ == 900
  constexpr bool kEstimateSuffices = kGate != DType::kF32;
#else
  constexpr bool kEstimateSuffices = false;
#endif
  const float reciprocal =
      kEstimateSuffices ? reciprocal_estimate(divisor) : near_reciprocal(divisor);
  return shared_quotient(x, divisor, reciprocal);
}

/// Out of line: the kernels that use it serve rare rows, and most of their code would be this.
__device__ __noinline__ inline void silu_mul_apart(const float* gate, const float* up, float* x) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) x[i] = silu_mul(gate[i], up[i]);
}

/// Source of the elements of a row: memory, or silu(gate) * up of what is in memory.
template <DType kDType, bool kIsActivated>
struct RowSource {
  static constexpr DType kInput = kDType;
  static constexpr bool kActivates = kIsActivated;
  const ElementBits<kDType>* row;
  std::int64_t hidden;
  bool is_wide;

  __device__ RowSource(const ElementBits<kDType>* of, std::int64_t num_elements)
      : row(of), hidden(num_elements), is_wide(num_elements % kUnit == 0 && is_aligned<16>(of)) {}

  /// A unit as loaded, before it is used.
  struct Raw {
    std::uint32_t words[kIsActivated ? 2 : 1][kWordsOfUnit<kDType>];
  };

  /// Loads elements h to h + 7; elements from `hidden` on are 0.
  __device__ __forceinline__ Raw fetch(std::int64_t h) const {
    constexpr int kWords = kWordsOfUnit<kDType>;
    const std::int64_t num_bytes = (hidden - h) * std::int64_t{sizeof(*row)};
    Raw raw;
    load_unit_words<kWords>(row + h, num_bytes, is_wide, raw.words[0]);
    if constexpr (kIsActivated) {
      load_unit_words<kWords>(row + hidden + h, num_bytes, is_wide, raw.words[1]);
    }
    return raw;
  }

  static __device__ __forceinline__ void values(const Raw& raw, float* x) {
    if constexpr (kIsActivated) {
      float gate[kUnit];
      float up[kUnit];
      float activated[kUnit];
      widen_unit<kDType>(raw.words[0], gate);
      widen_unit<kDType>(raw.words[1], up);
      silu_mul_apart(gate, up, activated);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) x[i] = activated[i];
    } else {
      widen_unit<kDType>(raw.words[0], x);
    }
  }

  __device__ __forceinline__ float at(std::int64_t h) const {
    const float x = widen<kDType>(row[h]);
    if constexpr (kIsActivated) return silu_mul(x, widen<kDType>(row[hidden + h]));
    return x;
  }
};

/// The maximum over each aligned group of kLanes lanes.
template <int kLanes>
__device__ __forceinline__ float max_of_lanes(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
  }
  return x;
}

/// The maximum over a thread block of whole warps. All threads call it, with a barrier in between.
__device__ __forceinline__ float max_of_block(float x) {
  __shared__ float of_warps[32];
  x = max_of_lanes<32>(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned num_warps = blockDim.x / 32;
  return max_of_lanes<32>(threadIdx.x % 32 < num_warps ? of_warps[threadIdx.x % 32] : 0.0f);
}

/// The same maximum for bits without a sign.
template <int kLanes>
__device__ __forceinline__ std::uint32_t max_bits_of_lanes(std::uint32_t bits) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, distance));
  }
  return bits;
}

__device__ __forceinline__ std::uint32_t max_bits_of_block(std::uint32_t bits) {
  __shared__ std::uint32_t of_warps[32];
  bits = __reduce_max_sync(0xFFFFFFFFu, bits);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = bits;
  __syncthreads();
  const unsigned num_warps = blockDim.x / 32;
  return __reduce_max_sync(0xFFFFFFFFu,
                           threadIdx.x % 32 < num_warps ? of_warps[threadIdx.x % 32] : 0u);
}

/// Calls visit(e, n) for each row that this thread block handles.
template <typename Visit>
__device__ __forceinline__ void for_each_row(std::int64_t num_experts, std::int64_t capacity,
                                             Visit visit) {
  for (std::int64_t e = blockIdx.y; e < num_experts; e += gridDim.y) {
    for (std::int64_t n = blockIdx.x; n < capacity; n += gridDim.x) visit(e, n);
  }
}

/// Calls visit(e, row) for each row of the buffer that this thread block handles.
template <typename Visit>
__device__ __forceinline__ void for_each_row_of(const RowRanges& ranges, Visit visit) {
  for (std::int64_t e = blockIdx.y; e < ranges.num_experts; e += gridDim.y) {
    const RowRange range = ranges.of(e);
    for (std::int64_t n = blockIdx.x; n < range.count; n += gridDim.x) visit(e, range.first + n);
  }
}

/// Calls visit(u, h) for the kUnits units of this thread from element `base` on.
template <typename Visit>
__device__ __forceinline__ void for_each_unit(std::int64_t base, Visit visit) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) visit(u, base + (u * blockDim.x + threadIdx.x) * kUnit);
}

/// The step from one `base` to the next.
__device__ __forceinline__ std::int64_t elements_of_block() {
  return std::int64_t{kUnit} * kUnits * blockDim.x;
}

}  // namespace switchyard::cuda
