// SPDX-License-Identifier: Apache-2.0
//
// wide_rules.cuh: scales, elements and codes of rows that 16-byte accesses cover, for the kernels
// of quantize_wide.cuh. Results are exact if the largest magnitude allows it (WideMap::is_good).
#pragma once

#include "core/round_up.h"
#include "cuda/quantize/quantize_rules.cuh"

namespace switchyard::cuda {

inline constexpr unsigned kWideThreads = 512;

/// Threads per block of quantize_wide_kernel, and its blocks per SM. Arithmetic takes about as long
/// as memory, and overlapping them takes many warps: high occupancy gains more than having few
/// registers costs.
inline constexpr unsigned kManyThreads = 256;
template <typename Source>
inline constexpr unsigned kManyBlocks = Source::kInput == DType::kF32 ? 5 : 8;

/// For quantize_wide_tokens_kernel. Activating 16-bit rows is limited to 72 registers, so that four
/// rows of 7168 fit one SM at 32 elements per thread; three rows at 16 elements took 3 % longer.
template <typename Source>
inline constexpr bool kActivates16 = Source::kInput == DType::kF32 ? false : Source::kActivates;
template <typename Source>
inline constexpr unsigned kTokenThreads = kActivates16<Source> ? 448 : kWideThreads;
template <typename Source>
inline constexpr unsigned kTokenBlocks = kActivates16<Source> ? 2 : 3;

inline constexpr std::uint32_t kMaxSharedBits = bits_from_f32(kMaxShared);

/// A scale, and the number that elements are multiplied or divided by. If is_good is false,
/// quantize_rare must find the scale.
struct WideMap {
  float scale;
  float factor;
  float reciprocal;
  bool is_good;
};

/// Mirrors the rules of scale_rules.h. `amax_bits` is the largest magnitude; NaN exceeds all.
template <typename Rule>
__device__ __forceinline__ WideMap wide_map(std::uint32_t amax_bits, const RuleInput& input,
                                            float inverse_given) {
  const float amax = f32_from_bits(amax_bits);
  const bool is_bounded = amax_bits <= kMaxSharedBits;
  if constexpr (Rule::kKind == RuleKind::kMx) {
    if constexpr (Rule::kCodec == Codec::kE4M3) {
      const std::uint32_t e = e8m0_ceil(shared_quotient(amax, kE4M3Max, 1.0f / kE4M3Max));
      const bool is_good = is_bounded && (amax_bits == 0 || amax >= 1.0f / kMaxShared);
      return {f32_from_bits(e << 23), f32_from_bits((254 - e) << 23), 0.0f, is_good};
    } else {
      const std::uint32_t e = mx_exponent(Rule::kCodec, amax);
      const float scale = e == 0 ? 0x1p-127f : f32_from_bits(e << 23);
      return {scale, f32_from_bits((254 - e) << 23), 0.0f, is_bounded};
    }
  } else if constexpr (Rule::kKind == RuleKind::kTwoLevel) {
    const float wanted = input.given * (amax * (1.0f / kE2M1Max));
    const float stored = round_e4m3(wanted);
    const float divisor = stored * inverse_given;
    const bool is_zero = stored == 0.0f;
    const bool is_good = is_bounded && (is_zero || is_shared(divisor));
    return {stored, is_zero ? 0.0f : near_reciprocal(divisor), 0.0f, is_good};
  } else if constexpr (Rule::kKind == RuleKind::kMultiply) {
    const float floored = fmaxf(amax, 1e-4f);
    const float scale = floored * (1.0f / kE4M3Max);
    if (input.rounds_up) {
      const float power = power_of_two_ceil(scale);
      return {power, near_reciprocal(power), 0.0f, is_bounded};
    }
    return {scale, shared_quotient(kE4M3Max, floored, near_reciprocal(floored)), 0.0f, is_bounded};
  } else if constexpr (Rule::kKind == RuleKind::kFused) {
    float scale = fmaxf(amax, 1e-10f) * (1.0f / kE4M3Max);
    if (input.rounds_up) scale = power_of_two_ceil(scale);
    return {scale, near_reciprocal(scale), 0.0f, is_bounded};
  } else if constexpr (Rule::kKind == RuleKind::kGiven) {
    // inverse_given is the factor if the map multiplies.
    return {input.given, Rule::kDivides ? input.given : inverse_given, inverse_given,
            is_bounded && is_shared(input.given)};
  } else if constexpr (Rule::kKind == RuleKind::kToken && Rule::kCodec == Codec::kI8HalfAway) {
    const float floored = fmaxf(amax, 1e-10f);
    return {shared_quotient(floored, kI8Max, 1.0f / kI8Max),
            shared_quotient(kI8Max, floored, near_reciprocal(floored)), 0.0f, is_bounded};
  } else {
    constexpr float kMaxValue = Rule::kCodec == Codec::kE4M3 ? kE4M3Max : kI8Max;
    float scale;
    if constexpr (Rule::kKind == RuleKind::kToken) {
      constexpr float kMinScale = 1.0f / (kE4M3Max * 512.0f);
      const float bounded = amax < input.scale_ub ? amax : input.scale_ub;
      scale = fmaxf(shared_quotient(bounded, kMaxValue, 1.0f / kMaxValue), kMinScale);
    } else {
      scale = shared_quotient(fmaxf(amax, 1e-10f), kMaxValue, 1.0f / kMaxValue);
      if (input.rounds_up) scale = power_of_two_ceil(fmaxf(scale, 1e-10f));
    }
    return {scale, scale, near_reciprocal(scale), is_bounded};
  }
}

template <typename Rule>
__device__ __forceinline__ float wide_scaled(const WideMap& m, float x) {
  return Rule::kDivides ? shared_quotient(x, m.factor, m.reciprocal) : x * m.factor;
}

/// kElements elements as loaded from memory; if they are to be activated, also those at the same
/// offset in the second half of the row.
template <typename Source, int kElements>
struct WideUnit {
  static constexpr DType kInput = Source::kInput;
  static constexpr int kWords = kElements * int{sizeof(ElementBits<kInput>)} / 4;
  std::uint32_t words[Source::kActivates ? 2 : 1][kWords];

  __device__ __forceinline__ void fetch(const Source& source, std::uint32_t h,
                                        std::uint32_t hidden) {
    const int num_bytes = h < hidden ? 4 * kWords : 0;
    load_words<kWords>(source.row + h, num_bytes, true, words[0]);
    if constexpr (Source::kActivates) {
      load_words<kWords>(source.row + hidden + h, num_bytes, true, words[1]);
    }
  }

  /// Whether silu_near covers all gates.
  __device__ __forceinline__ bool is_near() const {
    if constexpr (!Source::kActivates) return true;
    return max_bits_of<kInput>(words[0]) <= bits_from_f32(kSiluNear);
  }

  /// Meaningful only if is_near().
  __device__ __forceinline__ void values(float (&x)[kElements]) const {
    widen(words[0], x);
    if constexpr (Source::kActivates) {
      float up[kElements];
      widen(words[1], up);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = silu_near<kInput>(x[i]) * up[i];
    }
  }

  __device__ __forceinline__ std::uint32_t max_bits(const float (&x)[kElements]) const {
    if constexpr (!Source::kActivates) return max_bits_of<kInput>(words[0]);
    return max_bits_of<DType::kF32>(reinterpret_cast<const std::uint32_t(&)[kElements]>(x));
  }

 private:
  static __device__ __forceinline__ void widen(const std::uint32_t (&from)[kWords], float* x) {
    if constexpr (kInput == DType::kF32) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = f32_from_bits(from[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float2 pair = kInput == DType::kBF16 ? widen2_bf16(from[i]) : widen2_f16(from[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
      }
    }
  }
};

/// Elements per unit of a thread, and units that it loads before it uses the first.
template <typename Rule, typename Source>
struct WideShape {
  static constexpr bool kIsSimulated = Rule::kCodec == Codec::kE2M3 || Rule::kCodec == Codec::kE3M2;
  static constexpr bool kIsF32 = Source::kInput == DType::kF32;
  static constexpr int kElements = kIsSimulated || kIsF32 ? 8 : 16;
  static constexpr int kUnits = kActivates16<Source> && Rule::kKind != RuleKind::kToken ? 1 : 2;
  static constexpr int kLanes = Rule::kLanes == 1 ? 1 : cdiv(Rule::kLanes * kUnit, kElements);
  static constexpr int kCodeWords = kIsSimulated
                                        ? kElements * int{sizeof(ElementBits<Source::kInput>)} / 4
                                    : Rule::kCodec == Codec::kE2M1 ? kElements / 8
                                                                   : kElements / 4;
  using Scale =
      std::conditional_t<Rule::kKind == RuleKind::kMx || Rule::kKind == RuleKind::kTwoLevel,
                         std::uint8_t, float>;
  static constexpr int kCodeBytesOfUnit = 4 * kCodeWords;
};

/// Encodes finite elements into words of codes.
template <typename Rule, typename Source, int kElements, int kCodeWords>
__device__ __forceinline__ void encode_wide(const WideMap& m, const float (&x)[kElements],
                                            std::uint32_t (&words)[kCodeWords]) {
  if constexpr (Rule::kCodec == Codec::kE2M1) {
    const float eighth = m.factor * 0.125f;
#pragma unroll
    for (int w = 0; w < kCodeWords; ++w) {
      float eighths[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) eighths[i] = __saturatef(fabsf(x[8 * w + i]) * eighth);
      words[w] = encode8_e2m1(eighths, x + 8 * w);
    }
  } else if constexpr (WideShape<Rule, Source>::kIsSimulated) {
    float y[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      y[i] = round_fp6<Rule::kCodec>(x[i] * m.factor) * m.scale;
      if constexpr (Source::kInput == DType::kF32) words[i] = bits_from_f32(y[i]);
    }
    if constexpr (Source::kInput != DType::kF32) {
#pragma unroll
      for (int w = 0; w < kCodeWords; ++w) {
        words[w] = narrow2_finite<Source::kInput>(y[2 * w], y[2 * w + 1]);
      }
    }
  } else {
#pragma unroll
    for (int w = 0; w < kCodeWords; ++w) {
      words[w] = encode4(Rule::kCodec, kE4M3NaN, wide_scaled<Rule>(m, x[4 * w]),
                         wide_scaled<Rule>(m, x[4 * w + 1]), wide_scaled<Rule>(m, x[4 * w + 2]),
                         wide_scaled<Rule>(m, x[4 * w + 3]));
    }
  }
}

/// Stores the scales of a warp's blocks; each group of kLanes lanes holds one.
template <typename Rule, int kLanes>
__device__ __forceinline__ void store_wide_scale(const ScaleRow& row, std::uint32_t h,
                                                 float scale) {
  constexpr int kBlock = Rule::kLanes * kUnit;
  const std::uint32_t b = h / kBlock;
  const std::uint32_t exponent = bits_from_f32(scale) >> 23;
  const bool is_there = h < row.hidden;
  const unsigned lane = threadIdx.x % 32;
  if constexpr (Rule::kCodec == Codec::kE4M3 && kLanes >= 8) {
    if (row.job.scheme.scale_format == ScaleFormat::kE8M0Packed) {
      // The first lane collects the scales of the warp's blocks: a word, or half of one.
      constexpr int kBlocks = 32 / kLanes;
      std::uint32_t word = is_there ? exponent << (lane / kLanes * 8) : 0;
#pragma unroll
      for (int mask = kLanes; mask < 32; mask *= 2) {
        word |= __shfl_xor_sync(0xFFFFFFFFu, word, mask);
      }
      if (lane == 0 && is_there) row.store_packed<kBlocks>(b, word);
      return;
    }
  }
  if (lane % kLanes != 0 || !is_there) return;
  if constexpr (Rule::kKind == RuleKind::kMx) {
    row.store(b, static_cast<std::uint8_t>(exponent));
  } else if constexpr (Rule::kKind == RuleKind::kTwoLevel) {
    row.store(b, static_cast<std::uint8_t>(encode4_e4m3(kE4M3NaN, scale, 0.0f, 0.0f, 0.0f)));
  } else {
    row.store(b, scale);
  }
}

}  // namespace switchyard::cuda
