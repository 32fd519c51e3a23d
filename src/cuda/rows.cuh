// SPDX-License-Identifier: Apache-2.0
//
// rows.cuh: how row kernels touch memory: eight elements of a row at a time, in 16-byte accesses
// where the address and the end of the row allow, else element by element. A grid is (rows,
// experts); both loop, so that any size fits any grid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/encode.cuh"
#include "quant/exp.h"

namespace switchyard {

inline constexpr int kUnit = 8;   // elements that a thread takes at a time
inline constexpr int kUnits = 4;  // units of a thread in flight

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

/// Elements of `from`, of which `count` (any, negative too) exist; the rest is 0. NaN keeps its
/// bits.
template <DType kDType>
__device__ __forceinline__ void load8(const ElementBits<kDType>* from, std::int64_t count,
                                      float* x) {
  if (count >= kUnit && is_aligned<16>(from)) {
    if constexpr (kDType == DType::kF32) {
      const float4 low = reinterpret_cast<const float4*>(from)[0];
      const float4 high = reinterpret_cast<const float4*>(from)[1];
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
      widen8<kDType>(*reinterpret_cast<const uint4*>(from), x);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) x[i] = i < count ? widen<kDType>(from[i]) : 0.0f;
}

/// Rounds and stores the first `count` of eight values; NaN becomes the canonical one.
template <DType kDType>
__device__ __forceinline__ void store8(const float* x, std::int64_t count,
                                       ElementBits<kDType>* to) {
  if constexpr (kDType == DType::kF32) {
    float y[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) y[i] = canonical_f32(x[i]);
    if (count >= kUnit && is_aligned<16>(to)) {
      reinterpret_cast<float4*>(to)[0] = {y[0], y[1], y[2], y[3]};
      reinterpret_cast<float4*>(to)[1] = {y[4], y[5], y[6], y[7]};
      return;
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (i < count) to[i] = y[i];
    }
  } else {
    const uint4 words = narrow8<kDType>(x);
    if (count >= kUnit && is_aligned<16>(to)) {
      *reinterpret_cast<uint4*>(to) = words;
      return;
    }
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (i < count) to[i] = static_cast<std::uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
    }
  }
}

/// The first `num_bytes` of eight bytes, or of four.
__device__ __forceinline__ void store_bytes(uint2 words, std::int64_t num_bytes, std::byte* to) {
  if (num_bytes >= 8 && is_aligned<8>(to)) {
    *reinterpret_cast<uint2*>(to) = words;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < num_bytes) to[i] = static_cast<std::byte>((i < 4 ? words.x : words.y) >> (8 * (i % 4)));
  }
}

__device__ __forceinline__ void store_bytes(std::uint32_t word, std::int64_t num_bytes,
                                            std::byte* to) {
  if (num_bytes >= 4 && is_aligned<4>(to)) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < num_bytes) to[i] = static_cast<std::byte>(word >> (8 * i));
  }
}

/// kWords words of bytes of a row, of which `num_bytes` exist; the rest is 0.
template <int kWords>
__device__ __forceinline__ void load_bytes(const std::byte* from, std::int64_t num_bytes,
                                           std::uint32_t* words) {
  if (num_bytes >= 4 * kWords && is_aligned<4 * kWords>(from)) {
    if constexpr (kWords == 2) {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      words[0] = both.x, words[1] = both.y;
    } else {
      words[0] = *reinterpret_cast<const std::uint32_t*>(from);
    }
    return;
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = 0;
#pragma unroll
  for (int i = 0; i < 4 * kWords; ++i) {
    if (i < num_bytes) words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
  }
}

/// Where the elements of a row come from: memory, or silu(gate) * up of memory.
template <DType kDType, bool kIsActivated>
struct RowSource {
  static constexpr DType kInput = kDType;
  static constexpr bool kActivates = kIsActivated;
  const ElementBits<kDType>* row;
  std::int64_t hidden;

  /// Elements h to h + 7; 0 from `hidden` on.
  __device__ __forceinline__ void load(std::int64_t h, float* x) const {
    load8<kDType>(row + h, hidden - h, x);
    if constexpr (kIsActivated) {
      float up[kUnit];
      load8<kDType>(row + hidden + h, hidden - h, up);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) x[i] = silu_mul(x[i], up[i]);
    }
  }

  __device__ __forceinline__ float at(std::int64_t h) const {
    const float x = widen<kDType>(row[h]);
    if constexpr (kIsActivated) return silu_mul(x, widen<kDType>(row[hidden + h]));
    return x;
  }
};

/// Largest of the lanes that share all but the lowest bits of their number.
template <int kLanes>
__device__ __forceinline__ float max_of_lanes(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
  }
  return x;
}

/// Largest of a block of whole warps. All threads call it; again only after another barrier.
__device__ __forceinline__ float max_of_block(float x) {
  __shared__ float of_warps[32];
  x = max_of_lanes<32>(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned num_warps = blockDim.x / 32;
  return max_of_lanes<32>(threadIdx.x % 32 < num_warps ? of_warps[threadIdx.x % 32] : 0.0f);
}

/// visit(e, n) for each row that this block of the grid does.
template <typename Visit>
__device__ __forceinline__ void for_each_row(std::int64_t num_experts, std::int64_t capacity,
                                             Visit visit) {
  for (std::int64_t e = blockIdx.y; e < num_experts; e += gridDim.y) {
    for (std::int64_t n = blockIdx.x; n < capacity; n += gridDim.x) visit(e, n);
  }
}

/// visit(u, h) for the kUnits units of this thread from element `base` on.
template <typename Visit>
__device__ __forceinline__ void for_each_unit(std::int64_t base, Visit visit) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) visit(u, base + (u * blockDim.x + threadIdx.x) * kUnit);
}

/// Elements between two bases.
__device__ __forceinline__ std::int64_t elements_of_block() {
  return std::int64_t{kUnit} * kUnits * blockDim.x;
}

}  // namespace switchyard
