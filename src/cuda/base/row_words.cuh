// SPDX-License-Identifier: Apache-2.0
//
// row_words.cuh: what kernels over rows share: streaming loads and stores (a row is read or written
// once), elements as f32, and the count of rejected values.
#pragma once

#include <cstdint>

#include "cuda/base/ptx.cuh"
#include "quant/bf16.h"
#include "quant/f16.h"

#include <cuda_fp16.h>

namespace switchyard::cuda {

__device__ inline uint4 load_once(const uint4* from) { return __ldcs(from); }
__device__ inline uint2 load_once(const uint2* from) { return __ldcs(from); }
__device__ inline std::uint32_t load_once(const std::uint32_t* from) { return __ldcs(from); }
__device__ inline std::uint16_t load_once(const std::uint16_t* from) { return __ldcs(from); }
__device__ inline std::uint8_t load_once(const std::uint8_t* from) { return __ldcs(from); }

/// The word that moves kBytes in one access. More than 16 bytes take several words of 16.
template <int kBytes>
struct WordOf {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};

template <typename Element, int kCount>
struct alignas(sizeof(typename WordOf<sizeof(Element) * kCount>::Type)) Elements {
  using Word = typename WordOf<sizeof(Element) * kCount>::Type;
  static constexpr int kWords = sizeof(Element) * kCount / sizeof(Word);
  Element at[kCount];
};

template <typename Element, int kCount>
__device__ inline Elements<Element, kCount> load_elements(const std::byte* from) {
  using Moved = Elements<Element, kCount>;
  Moved elements;
#pragma unroll
  for (int w = 0; w < Moved::kWords; ++w) {
    reinterpret_cast<typename Moved::Word*>(&elements)[w] =
        load_once(reinterpret_cast<const typename Moved::Word*>(from) + w);
  }
  return elements;
}

template <typename Element, int kCount>
__device__ inline void store_elements(std::byte* to, const Elements<Element, kCount>& elements) {
  using Moved = Elements<Element, kCount>;
#pragma unroll
  for (int w = 0; w < Moved::kWords; ++w) {
    __stcs(reinterpret_cast<typename Moved::Word*>(to) + w,
           reinterpret_cast<const typename Moved::Word*>(&elements)[w]);
  }
}

/// Row dtypes. `widen` may turn a NaN into any NaN; sums make it canonical when they are rounded.
struct BF16 {
  using Bits = std::uint16_t;
  __device__ static float widen(Bits x) { return f32_from_bits(std::uint32_t{x} << 16); }
  __device__ static Bits narrow(float x) { return bf16_from_f32(x); }
};
struct F16 {
  using Bits = std::uint16_t;
  __device__ static float widen(Bits x) { return __half2float(__ushort_as_half(x)); }
  __device__ static Bits narrow(float x) { return f16_from_f32(x); }
};
struct F32 {
  using Bits = float;
  __device__ static float widen(Bits x) { return x; }
  __device__ static Bits narrow(float x) { return canonical_f32(x); }
};

__device__ inline void add_error(std::int32_t* num_errors) {
  if (num_errors != nullptr) atomicAdd(num_errors, 1);
}

}  // namespace switchyard::cuda
