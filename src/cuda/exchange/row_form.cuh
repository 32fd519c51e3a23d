// SPDX-License-Identifier: Apache-2.0
//
// row_form.cuh: how a lane's 16 elements of a token become words on the wire. A form is what one
// kernel can do: leave them unchanged, convert them, or quantize them by one of some schemes.
#pragma once

#include <cstdint>

#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/wire_form.h"
#include "cuda/quantize/encode.cuh"

namespace switchyard::cuda {

/// Slow path: the end of a row, or unaligned rows.
template <int kWords>
__device__ __noinline__ void load_bytes(const std::byte* from, int num_bytes,
                                        std::uint32_t* words) {
  for (int w = 0; w < kWords; ++w) words[w] = 0;
#pragma unroll 1
  for (int b = 0; b < num_bytes; ++b) {
    words[b / 4] |= static_cast<std::uint32_t>(from[b]) << (8 * (b % 4));
  }
}

__device__ __noinline__ inline void store_bytes(std::byte* to, int num_bytes,
                                                const std::uint32_t* words) {
#pragma unroll 1
  for (int b = 0; b < num_bytes; ++b) {
    to[b] = static_cast<std::byte>(words[b / 4] >> (8 * (b % 4)));
  }
}

/// Loads aligned words.
template <int kWords>
__device__ __forceinline__ void load_words(const std::byte* from, std::uint32_t (&words)[kWords]) {
  if constexpr (kWords >= 4) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[i];
      words[4 * i] = four.x, words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x, words[1] = two.y;
  }
}

/// Loads 16 elements of kBits each from `first` on; elements at `hidden` and beyond are 0.
template <int kBits>
__device__ __forceinline__ void load_vec(const std::byte* row, std::int64_t first,
                                         std::int64_t hidden, bool aligned,
                                         std::uint32_t (&words)[kBits / 2]) {
  constexpr int kWords = kBits / 2;
  const std::byte* from = row + first * kBits / 8;
  if (aligned && first + kVecElements <= hidden) {
    load_words(from, words);
    return;
  }
  const std::int64_t left = hidden - first < kVecElements ? hidden - first : kVecElements;
  std::uint32_t copy[kWords];  // so that `words` stays in registers
  load_bytes<kWords>(from, left > 0 ? static_cast<int>(left * kBits / 8) : 0, copy);
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = copy[w];
}

/// Widens 16 elements of 16 bits to f32. A NaN keeps its bits; what is made of it is canonical.
__device__ __forceinline__ void widen_vec(DType dtype, const std::uint32_t (&raw)[8], float* x) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 two = dtype == DType::kBF16 ? widen2_bf16(raw[i]) : widen2_f16(raw[i]);
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

/// Loads 16 elements of a token as f32; elements beyond its end are 0.
__device__ __forceinline__ void load_floats(const DispatchArgs& a, const std::byte* row,
                                            std::int64_t first, float (&x)[16]) {
  if (a.tokens.dtype == DType::kF32) {
    std::uint32_t words[16];
    load_vec<32>(row, first, a.layout.shape.hidden, a.tokens.are_aligned, words);
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = f32_from_bits(words[i]);
    return;
  }
  std::uint32_t raw[8];
  load_vec<16>(row, first, a.layout.shape.hidden, a.tokens.are_aligned, raw);
  widen_vec(a.tokens.dtype, raw, x);
}

/// The largest magnitude that a lane finds in the first `num_elements` of an aligned row of bf16 or
/// f16, a multiple of 16. Several chunks are on their way at once.
__device__ __forceinline__ float vec_magnitude(DType dtype, const std::byte* row, int num_elements,
                                               int lane) {
  constexpr int kTogether = 4;
  std::uint32_t amax = 0;
#pragma unroll 1
  for (int first = lane * kVecElements; first < num_elements; first += kTogether * kChunkElements) {
    std::uint32_t raw[kTogether][8] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * kChunkElements;
      if (at < num_elements) load_words(row + at * sizeof(std::uint16_t), raw[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (const std::uint32_t pair : raw[i]) amax = max_magnitude2(dtype, amax, pair);
    }
  }
  const float2 two = dtype == DType::kBF16 ? widen2_bf16(amax) : widen2_f16(amax);
  return fmaxf(two.x, two.y);
}

/// The largest magnitude in a row, computed by one warp. NaNs are ignored.
__device__ __forceinline__ float row_magnitude(const DispatchArgs& a, const std::byte* row,
                                               int lane) {
  const int hidden = static_cast<int>(a.layout.shape.hidden);
  const bool are_vecs = a.tokens.are_aligned && a.tokens.dtype != DType::kF32;
  const int num_in_vecs = are_vecs ? hidden / kVecElements * kVecElements : 0;
  float amax = vec_magnitude(a.tokens.dtype, row, num_in_vecs, lane);
#pragma unroll 1
  for (int first = num_in_vecs + lane * kVecElements; first < hidden; first += kChunkElements) {
    float x[16];
    load_floats(a, row, first, x);
#pragma unroll
    for (int i = 0; i < 16; ++i) amax = max_magnitude(amax, x[i]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, mask));
  }
  return amax;
}

/// Quantizes four elements by the scalar definition.
__device__ __noinline__ inline std::uint32_t quantize4_defined(ElementMap map, const float* x) {
  std::uint32_t codes = 0;
  for (int i = 0; i < 4; ++i) {
    codes |= static_cast<std::uint32_t>(quantize_element(x[i], map)) << (8 * i);
  }
  return codes;
}

inline constexpr int kMaxChunkScaleBytes = 32;

/// Splits a lane's kWords words of a chunk into units, which lie one warp of units apart.
template <int kWords>
struct VecUnits {
  static constexpr int kUnitWords = kWords < 4 ? kWords : 4;
  static constexpr int kUnits = kWords / kUnitWords;
  static constexpr std::size_t kLaneBytes = kUnitWords * sizeof(std::uint32_t);  ///< per unit
};

/// Where a lane's elements of a chunk lie.
struct VecSource {
  std::int32_t number;  ///< of the row
  const std::byte* row;
  std::int32_t chunk;
  std::int32_t first;  ///< element of the row

  __device__ __forceinline__ VecSource(const DispatchArgs& a, int token, int of_chunk, int lane)
      : number(number_of(a.tokens, token)),
        row(a.tokens.data + number * a.tokens.stride),
        chunk(of_chunk),
        first(of_chunk * kChunkElements + lane * kVecElements) {}
  __device__ __forceinline__ void advance() {
    ++chunk;
    first += kChunkElements;
  }

 private:
  /// Of a token without a row: any.
  __device__ static __forceinline__ int number_of(const TokenInput& tokens, int token) {
    if (tokens.numbers == nullptr || token >= tokens.count) return token;
    return max(tokens.numbers[token], 0);
  }
};

/// Rounds 16 elements to bf16 or f16.
template <DType kDType>
__device__ __forceinline__ void narrow_all(const float (&x)[16], std::uint32_t (&words)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) words[i] = narrow2<kDType>(x[2 * i], x[2 * i + 1]);
}

/// bf16, f16 or f32 on the wire, of kBits; tokens of another dtype are converted.
template <int kBits>
struct PlainForm {
  static constexpr int kWords = kBits / 2;

  __device__ static __forceinline__ bool serves(const DispatchArgs& a) {
    return a.scheme.group == ScaleGroup::kNone;
  }
  __device__ static void make(const DispatchArgs& a, const VecSource& from, int,
                              std::uint32_t (&words)[kWords], std::uint8_t*) {
    if (a.tokens.dtype == a.scheme.dtype) {
      load_vec<kBits>(from.row, from.first, a.layout.shape.hidden, a.tokens.are_aligned, words);
      return;
    }
    float x[16];
    load_floats(a, from.row, from.first, x);
    if constexpr (kBits == 32) {
#pragma unroll
      for (int i = 0; i < 16; ++i) words[i] = bits_from_f32(canonical_f32(x[i]));
    } else if (a.scheme.dtype == DType::kF16) {
      narrow_all<DType::kF16>(x, words);
    } else {
      narrow_all<DType::kBF16>(x, words);
    }
  }
};

/// Tokens that are already quantized, with scales in memory.
template <int kBits>
struct StoredForm {
  static constexpr int kWords = kBits / 2;

  __device__ static __forceinline__ bool serves(const DispatchArgs& a) {
    return a.tokens.dtype == a.scheme.dtype;
  }
  __device__ static void make(const DispatchArgs& a, const VecSource& from, int lane,
                              std::uint32_t (&words)[kWords], std::uint8_t* scales) {
    load_vec<kBits>(from.row, from.first, a.layout.shape.hidden, a.tokens.are_aligned, words);
    const int bytes = static_cast<int>(a.scales.block.element_bytes);
    if (a.tokens.scales != nullptr && lane < kMaxChunkScaleBytes / bytes) {
      const std::int64_t s = std::int64_t{from.chunk} * a.scales.per_chunk + lane;
      const bool is_given = lane < a.scales.per_chunk && s < a.scales.block.num_scales;
      const std::int64_t at = from.number * a.tokens.scale_stride[0] + s * a.tokens.scale_stride[1];
      for (int b = 0; b < bytes; ++b) {
        scales[lane * bytes + b] =
            is_given ? static_cast<std::uint8_t>(a.tokens.scales[at * bytes + b]) : std::uint8_t{0};
      }
    }
    __syncwarp();
  }
};

/// Identifies a scheme that has kernels, except for its scale format.
__device__ __forceinline__ constexpr std::uint32_t key_of(const QuantScheme& scheme) {
  return static_cast<std::uint32_t>(scheme.dtype) | static_cast<std::uint32_t>(scheme.group) << 8 |
         static_cast<std::uint32_t>(scheme.rule) << 16;
}

/// Runs `task` for the one of kFirst and kRest that `scheme` is, but for the scale format. A grid
/// takes one of the branches; in each the scheme is a constant, see encode.cuh.
template <QuantScheme kFirst, QuantScheme... kRest, class Task>
__device__ __forceinline__ void with_scheme(const QuantScheme& scheme, const Task& task) {
  if constexpr (sizeof...(kRest) != 0) {
    constexpr std::uint32_t kDiffers = (... | (key_of(kRest) ^ key_of(kFirst)));
    if (((key_of(scheme) ^ key_of(kFirst)) & kDiffers) != 0) {
      return with_scheme<kRest...>(scheme, task);
    }
  }
  task.template operator()<kFirst>();
}

/// kScheme; fp8 blocks take `format`.
template <QuantScheme kScheme>
__device__ __forceinline__ constexpr QuantScheme with_format(ScaleFormat format) {
  QuantScheme scheme = kScheme;
  if constexpr (is_fp8_block(kScheme)) scheme.scale_format = format;
  return scheme;
}

/// How a lane's 16 elements are quantized by kScheme. The scale format of 128 e4m3 elements is that
/// of the arguments. `amax` is that of the row where a token has one scale.
template <QuantScheme kScheme>
struct ChunkCodes {
  static constexpr bool kIsSimulated =
      kScheme.dtype == DType::kE2M3 || kScheme.dtype == DType::kE3M2;
  static constexpr bool kIsBlock = kScheme.group == ScaleGroup::kBlock;
  static constexpr int kWords = kIsSimulated ? 8 : wire_bits(kScheme.dtype) / 2;
  static constexpr bool kHasScales = chunk_scale_bytes(kScheme) > 0;
  static constexpr int kLanesPerBlock = kIsBlock ? kScheme.block / kVecElements : kLanes;

  __device__ static __forceinline__ void make(const DispatchArgs& a, const VecSource& from,
                                              int lane, float amax, const float (&x)[16],
                                              std::uint32_t (&words)[kWords],
                                              std::uint8_t* scales) {
    if constexpr (kScheme.group != ScaleGroup::kToken) {
      amax = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) amax = max_magnitude(amax, x[i]);
    }
    if constexpr (kIsBlock) {
#pragma unroll
      for (int mask = 1; mask < kLanesPerBlock; mask *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, mask));
      }
    }
    const float tensor_scale = a.tokens.tensor_scale == nullptr ? 1.0f : *a.tokens.tensor_scale;
    const QuantScheme scheme = with_format<kScheme>(a.scheme.scale_format);
    const ScaleAndMap rule = scale_rule(scheme, amax, tensor_scale);
    encode(rule, amax, x, words);
    if (kHasScales && lane % kLanesPerBlock == 0) {
      keep_scale(scheme.scale_format, rule.scale, from.first < a.layout.shape.hidden,
                 lane / kLanesPerBlock, scales);
    }
  }

 private:
  __device__ static void encode(const ScaleAndMap& rule, float amax, const float (&x)[16],
                                std::uint32_t (&words)[kWords]) {
    const PreparedMap map = prepare_map(rule.map, amax);
    if constexpr (kIsSimulated) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const auto value = [&](float v) {
          return decode(kScheme.dtype, quantize_element(v, rule.map)) * rule.scale;
        };
        words[i] = narrow2<DType::kBF16>(value(x[2 * i]), value(x[2 * i + 1]));
      }
    } else if constexpr (kScheme.dtype == DType::kE2M1) {
      words[0] = quantize8_e2m1(map, x);
      words[1] = quantize8_e2m1(map, x + 8);
    } else {
      if (!map.is_exact) [[unlikely]] {
        float copy[16];
        for (int i = 0; i < 16; ++i) copy[i] = x[i];
        for (int i = 0; i < 4; ++i) words[i] = quantize4_defined(map.map, copy + 4 * i);
        return;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = encode4(map.map.codec, map.map.nan_code, scaled(map, x[4 * i]),
                           scaled(map, x[4 * i + 1]), scaled(map, x[4 * i + 2]),
                           scaled(map, x[4 * i + 3]));
      }
    }
  }
  __device__ static void keep_scale(ScaleFormat format, float scale, bool is_there, int index,
                                    std::uint8_t* scales) {
    if constexpr (kScheme.rule == ScaleRule::kTwoLevel) {
      scales[index] = e4m3_from_f32(scale);
    } else if (is_f32_scale(format)) {
      reinterpret_cast<float*>(scales)[index] = scale;
    } else {
      scales[index] = is_there ? static_cast<std::uint8_t>(bits_from_f32(scale) >> 23) : 0;
    }
  }
};

/// Tokens that are quantized while they are sent, by one of some schemes whose codes have as many
/// bits.
template <QuantScheme kFirst, QuantScheme... kOthers>
struct QuantizedForm {
  static constexpr int kWords = ChunkCodes<kFirst>::kWords;
  static constexpr bool kHasTokens =
      kFirst.group == ScaleGroup::kToken || (... || (kOthers.group == ScaleGroup::kToken));

  __device__ static __forceinline__ bool serves(const DispatchArgs& a) {
    const std::uint32_t key = key_of(a.scheme);
    return key == key_of(kFirst) || (... || (key == key_of(kOthers)));
  }
  __device__ static void make(const DispatchArgs& a, const VecSource& from, int lane,
                              std::uint32_t (&words)[kWords], std::uint8_t* scales) {
    // Before the lane's own elements are loaded, so that their registers are free.
    float amax = 0.0f;
    if constexpr (kHasTokens) {
      if (a.scheme.group == ScaleGroup::kToken) amax = row_magnitude(a, from.row, lane);
    }
    float x[16];
    load_floats(a, from.row, from.first, x);
    with_scheme<kFirst, kOthers...>(a.scheme, [&]<QuantScheme kScheme>() {
      ChunkCodes<kScheme>::make(a, from, lane, amax, x, words, scales);
    });
    __syncwarp();
  }
};

/// The first of some forms that serves the arguments; the last one is not asked.
template <class First, class... Rest>
struct AnyForm {
  static constexpr int kWords = First::kWords;

  __device__ static __forceinline__ void make(const DispatchArgs& a, const VecSource& from,
                                              int lane, std::uint32_t (&words)[kWords],
                                              std::uint8_t* scales) {
    if constexpr (sizeof...(Rest) != 0) {
      if (!First::serves(a)) return AnyForm<Rest...>::make(a, from, lane, words, scales);
    }
    First::make(a, from, lane, words, scales);
  }
};

// The forms that have kernels of their own.
using PlainForm16 = PlainForm<16>;  ///< bf16 and f16
using PlainForm32 = PlainForm<32>;
using StoredForm8 = StoredForm<8>;
using Fp8BlockForm = QuantizedForm<schemes::kFp8Block, schemes::kFp8BlockDeepEp>;
using OtherForm8 = QuantizedForm<schemes::kMxfp8, schemes::kFp8Token, schemes::kFp8Tensor,
                                 schemes::kInt8Block, schemes::kInt8Token, schemes::kInt8Tensor>;
using Form4 = AnyForm<StoredForm<4>, QuantizedForm<schemes::kNvfp4, schemes::kMxfp4>>;
using SimulatedForm = QuantizedForm<schemes::kMxfp6E3M2, schemes::kMxfp6E2M3>;

}  // namespace switchyard::cuda
