// SPDX-License-Identifier: Apache-2.0
//
// quantize_rules.cuh: the schemes as kernels see them: how many lanes share a scale, which scale
// and map follow from their largest magnitude, and how eight codes are stored.
#pragma once

#include "cuda/quantize/quantize.h"
#include "cuda/quantize/rows.cuh"

namespace switchyard::cuda {

/// What a rule needs besides the largest magnitude; the same for all blocks of a row.
struct RuleInput {
  float given;     ///< the global scale of nvfp4, or the scale itself
  bool rounds_up;  ///< the scale, to a power of two
  float scale_ub;
};

/// two_level_rule with the conversions of encode.cuh.
__device__ __forceinline__ ScaleAndMap two_level_rule_wide(float amax, float global_scale) {
  const float wanted = global_scale * (amax * (1.0f / kE2M1Max));
  const float stored = round_e4m3(wanted);
  const float factor = stored != 0.0f ? 1.0f / (stored * (1.0f / global_scale)) : 0.0f;
  return {stored, {factor, false, kE2M1MaxCode, Codec::kE2M1}};
}

/// vLLM's fused activation: see ActivationScale::kFused.
__device__ __forceinline__ ScaleAndMap fused_rule(float amax, bool rounds_up) {
  float scale = (amax > 1e-10f ? amax : 1e-10f) * (1.0f / kE4M3Max);
  if (rounds_up) scale = power_of_two_ceil(scale);
  return {scale, {1.0f / scale, false, kE4M3MinCode}};
}

enum class RuleKind : std::uint8_t { kDivide, kMultiply, kTwoLevel, kMx, kFused, kToken, kGiven };

constexpr RuleKind kind_of(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::kMultiply: return RuleKind::kMultiply;
    case ScaleRule::kTwoLevel: return RuleKind::kTwoLevel;
    case ScaleRule::kMx: return RuleKind::kMx;
    default: return RuleKind::kDivide;
  }
}

/// One scale per block. In the named schemes, kLanes threads of eight elements make up a block.
template <Codec kTheCodec, ScaleRule kRule, bool kIsFused = false>
struct BlockRule {
  static constexpr Codec kCodec = kTheCodec;
  static constexpr int kLanes = kRule == ScaleRule::kTwoLevel ? 2
                                : kRule == ScaleRule::kMx     ? 4
                                                              : 16;
  static constexpr RuleKind kKind = kIsFused ? RuleKind::kFused : kind_of(kRule);
  static constexpr bool kIsGiven = false;
  static constexpr bool kDivides = kKind == RuleKind::kDivide;
  static constexpr bool kStoresScales = kCodec != Codec::kE2M3 && kCodec != Codec::kE3M2;

  static __device__ __forceinline__ ScaleAndMap of(float amax, const RuleInput& input) {
    if constexpr (kIsFused) return fused_rule(amax, input.rounds_up);
    if constexpr (kRule == ScaleRule::kMx) return mx_rule(kCodec, amax);
    if constexpr (kRule == ScaleRule::kTwoLevel) return two_level_rule_wide(amax, input.given);
    if constexpr (kRule == ScaleRule::kMultiply) return multiply_rule(amax, input.rounds_up);
    if constexpr (kCodec == Codec::kI8Truncate) return int8_block_rule(amax);
    return divide_rule(amax, input.rounds_up);
  }
};

/// One scale per token.
template <Codec kTheCodec>
struct TokenRule {
  static constexpr Codec kCodec = kTheCodec;
  static constexpr RuleKind kKind = RuleKind::kToken;
  static constexpr bool kDivides = kCodec == Codec::kE4M3;
  static constexpr int kLanes = 1;
  static constexpr bool kIsGiven = false;
  static constexpr bool kStoresScales = true;

  static __device__ __forceinline__ ScaleAndMap of(float amax, const RuleInput& input) {
    if constexpr (kCodec == Codec::kI8HalfAway) return int8_token_rule(amax);
    return token_rule(amax < input.scale_ub ? amax : input.scale_ub);
  }
};

/// A scale known in advance: given by the caller, or computed for the whole tensor.
template <Codec kTheCodec>
struct GivenRule {
  static constexpr Codec kCodec = kTheCodec;
  static constexpr RuleKind kKind = RuleKind::kGiven;
  static constexpr bool kDivides = kCodec == Codec::kI8HalfEven;
  static constexpr int kLanes = 1;
  static constexpr bool kIsGiven = true;
  static constexpr bool kStoresScales = false;

  static __device__ __forceinline__ ScaleAndMap of(float, const RuleInput& input) {
    return {input.given, kCodec == Codec::kI8HalfEven ? int8_tensor_rule(input.given)
                                                      : tensor_rule(input.given)};
  }
};

/// Stores scale `b` of a row of `num_blocks`. The last scale also clears the rest of its word.
__device__ __forceinline__ void store_scale(const QuantizeJob& job, std::int64_t e, std::int64_t n,
                                            std::int64_t b, std::int64_t num_blocks, float scale) {
  const ScaleMemory& to = job.scales;
  const ScaleFormat format = job.scheme.scale_format;
  const auto exponent = static_cast<std::byte>(bits_from_f32(scale) >> 23);
  if (format == ScaleFormat::kE8M0Packed) {
    std::byte* word = to.data + 4 * to.index(e, n, b / 4);
    word[b % 4] = exponent;
    for (std::int64_t i = b + 1; b == num_blocks - 1 && i % 4 != 0; ++i) word[i % 4] = std::byte{0};
  } else if (format == ScaleFormat::kE8M0) {
    to.data[to.index(e, n, b)] = exponent;
  } else if (format == ScaleFormat::kE4M3) {
    to.data[to.index(e, n, b)] =
        static_cast<std::byte>(encode4_e4m3(kE4M3NaN, scale, 0.0f, 0.0f, 0.0f));
  } else {
    reinterpret_cast<float*>(to.data)[to.index(e, n, b)] = scale;
  }
}

/// The scales of one row of fewer than 2^31 elements.
struct ScaleRow {
  const QuantizeJob& job;
  std::int64_t e;
  std::int64_t n;
  std::uint32_t hidden;
  std::byte* first;  ///< unused for tiles

  template <typename Element>
  static __device__ __forceinline__ ScaleRow of(const QuantizeJob& job, std::int64_t e,
                                                std::int64_t n) {
    const ScaleMemory& to = job.scales;
    const std::int64_t i = e * to.expert_stride + n * to.row_stride;
    return {job, e, n, static_cast<std::uint32_t>(job.hidden),
            to.data + i * static_cast<std::int64_t>(sizeof(Element))};
  }

  template <typename Element>
  __device__ __forceinline__ void store(std::uint32_t b, Element scale) const {
    if (sizeof(Element) == 1 && job.scales.padded_scales != 0) {
      reinterpret_cast<Element*>(job.scales.data)[job.scales.index(e, n, b)] = scale;
    } else {
      reinterpret_cast<Element*>(first)[b * job.scales.step] = scale;
    }
  }

  /// Stores the bytes of kBlocks blocks from b on in their word; the last of a row clears the rest
  /// of it.
  template <int kBlocks>
  __device__ __forceinline__ void store_packed(std::uint32_t b, std::uint32_t bytes) const {
    auto* word = reinterpret_cast<std::uint32_t*>(first) + b / 4 * job.scales.step;
    if constexpr (kBlocks == 4) {
      *word = bytes;
    } else {
      auto* halves = reinterpret_cast<std::uint16_t*>(word);
      halves[b / 2 % 2] = static_cast<std::uint16_t>(bytes);
      constexpr std::uint32_t kElements = 2 * 128;
      if (b % 4 == 0 && hidden - b * 128 <= kElements) halves[1] = 0;
    }
  }
};

/// Clears all scales of a row beyond its expert's count.
__device__ __forceinline__ void clear_scale_row(const QuantizeJob& job, std::int64_t e,
                                                std::int64_t n) {
  const ScaleMemory& to = job.scales;
  if (to.data == nullptr || job.scheme.group == ScaleGroup::kTensor) return;
  const int bytes =
      job.scheme.scale_format == ScaleFormat::kE8M0 || job.scheme.scale_format == ScaleFormat::kE4M3
          ? 1
          : 4;
  for (std::int64_t s = threadIdx.x; s < job.num_scales; s += blockDim.x) {
    const std::int64_t i = to.index(e, n, s);
    if (bytes == 1) {
      to.data[i] = std::byte{0};
    } else {
      reinterpret_cast<std::uint32_t*>(to.data)[i] = 0;
    }
  }
}

/// Destination of the codes of a row.
template <Codec kCodec, DType kInput>
struct CodeRow {
  static constexpr bool kIsSimulated = kCodec == Codec::kE2M3 || kCodec == Codec::kE3M2;
  static constexpr int kUnitBytes = kIsSimulated ? kUnit * int{sizeof(ElementBits<kInput>)}
                                    : kCodec == Codec::kE2M1 ? 4
                                                             : 8;
  std::byte* row;
  std::int64_t hidden;
  bool is_wide;

  __device__ CodeRow(std::byte* of, std::int64_t num_elements)
      : row(of),
        hidden(num_elements),
        is_wide(num_elements % kUnit == 0 && is_aligned < kUnitBytes < 16 ? kUnitBytes
                                                                          : 16 > (of)) {}

  /// Quantizes eight elements from h on; only those below `hidden` exist.
  __device__ __forceinline__ void quantize(const PreparedMap& m, float scale, const float* x,
                                           std::int64_t h) const {
    if constexpr (kCodec == Codec::kE2M1) {
      const std::uint32_t word = quantize8_e2m1(m, x);
      store_unit_words<1>(&word, (hidden - h) / 2, is_wide, row + h / 2);
    } else if constexpr (kIsSimulated) {
      float y[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) y[i] = round_fp6<kCodec>(scaled(m, x[i])) * scale;
      store_unit<kInput>(y, hidden - h, is_wide, reinterpret_cast<ElementBits<kInput>*>(row) + h);
    } else {
      const std::uint32_t words[2] = {quantize4(m, x[0], x[1], x[2], x[3]),
                                      quantize4(m, x[4], x[5], x[6], x[7])};
      store_unit_words<2>(words, hidden - h, is_wide, row + h);
    }
  }
};

__device__ __forceinline__ float max_of_unit(const float* x) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) amax = max_magnitude(amax, x[i]);
  return amax;
}

}  // namespace switchyard::cuda
