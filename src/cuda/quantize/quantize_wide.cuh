// SPDX-License-Identifier: Apache-2.0
//
// quantize_wide.cuh: kernels for rows that 16-byte accesses cover, which is nearly all rows. Memory
// bandwidth leaves about a dozen instructions per element, hence: no test per element, divisions of
// three instructions, and two 16-bit elements per instruction for the largest magnitude. Anything
// else (NaN, infinity, extreme magnitudes) shows in the largest magnitude; the lanes of that warp
// then redo their elements by the definition (quantize_rare.cuh).
#pragma once

#include "cuda/base/ptx.cuh"
#include "cuda/quantize/quantize_rare.cuh"
#include "cuda/quantize/wide_rules.cuh"

namespace switchyard::cuda {

template <typename Rule>
__device__ __forceinline__ float inverse_of_given(const RuleInput& input) {
  if constexpr (Rule::kKind != RuleKind::kTwoLevel && Rule::kKind != RuleKind::kGiven) return 0.0f;
  return 1.0f / input.given;
}

template <typename Rule, typename Source>
__device__ __forceinline__ void quantize_wide_row(const QuantizeJob& job, std::int64_t e,
                                                  std::int64_t n) {
  using Shape = WideShape<Rule, Source>;
  constexpr int kElements = Shape::kElements;
  const Source source = source_of<Source>(job, e, n);
  std::byte* codes = codes_of(job, e, n);
  const RuleInput input = rule_input(job, e, n);
  const float inverse_given = inverse_of_given<Rule>(input);
  const auto scales = ScaleRow::of<typename Shape::Scale>(job, e, n);
  if (Rule::kIsGiven && job.scheme.group == ScaleGroup::kToken && threadIdx.x == 0) {
    store_scale(job, e, n, 0, 1, input.given);
  }
  const auto hidden = static_cast<std::uint32_t>(job.hidden);
  const std::uint32_t step = blockDim.x * kElements;
  for (std::uint32_t base = 0; base < hidden; base += Shape::kUnits * step) {
    const std::uint32_t first = base + threadIdx.x * kElements;
    WideUnit<Source, kElements> units[Shape::kUnits];
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) units[u].fetch(source, first + u * step, hidden);
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) {
      const std::uint32_t h = first + u * step;
      float x[kElements];
      const bool is_near = units[u].is_near();
      units[u].values(x);
      const std::uint32_t amax_bits = max_bits_of_lanes<Shape::kLanes>(units[u].max_bits(x));
      const WideMap map = wide_map<Rule>(amax_bits, input, inverse_given);
      if (__any_sync(0xFFFFFFFFu, !(is_near && map.is_good))) [[unlikely]] {
        quantize_rare<Rule, Source, kElements, Shape::kLanes>(job, e, n, h);
        continue;
      }
      std::uint32_t words[Shape::kCodeWords];
      encode_wide<Rule, Source>(map, x, words);
      store_words<Shape::kCodeWords>(words, h < hidden ? 1 : 0, true,
                                     codes + h / kElements * Shape::kCodeBytesOfUnit);
      if constexpr (Rule::kStoresScales) {
        store_wide_scale<Rule, Shape::kLanes>(scales, h, map.scale);
      }
    }
  }
}

/// Blocks of 16, 32 or 128 elements, and rows whose scale is known in advance.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(kManyThreads, kManyBlocks<Source>)
    quantize_wide_kernel(const __grid_constant__ QuantizeJob job) {
  follow_kernel();
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t i) {
    // Walk backwards: a pass over the tensor may have left its last rows in the cache.
    const std::int64_t n = Rule::kIsGiven ? job.capacity - 1 - i : i;
    if (n < job.num_rows(e)) {
      quantize_wide_row<Rule, Source>(job, e, n);
    } else {
      clear_scale_row(job, e, n);
    }
  });
}

/// One scale per row, of at most kUnits units per thread.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(kTokenThreads<Source>, kTokenBlocks<Source>)
    quantize_wide_tokens_kernel(const __grid_constant__ QuantizeJob job) {
  using Shape = WideShape<Rule, Source>;
  constexpr int kElements = Shape::kElements;
  const auto hidden = static_cast<std::uint32_t>(job.hidden);
  const std::uint32_t first = threadIdx.x * kElements;
  const std::uint32_t step = blockDim.x * kElements;
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n >= job.num_rows(e)) return clear_scale_row(job, e, n);
    const Source source = source_of<Source>(job, e, n);
    WideUnit<Source, kElements> units[Shape::kUnits];
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) units[u].fetch(source, first + u * step, hidden);
    std::uint32_t amax_bits = 0;
    bool is_near = true;
    float x[Shape::kUnits][kElements];
#pragma unroll
    for (int u = 0; u < Shape::kUnits; ++u) is_near = units[u].is_near() && is_near;
    // This branch only keeps the loads from waiting for arithmetic.
    if (!kActivates16<Source> || __all_sync(0xFFFFFFFFu, is_near)) [[likely]] {
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) {
        units[u].values(x[u]);
        amax_bits = max(amax_bits, units[u].max_bits(x[u]));
      }
    }
    amax_bits = max_bits_of_block(is_near ? amax_bits : kF32NaN);
    const WideMap map = wide_map<Rule>(amax_bits, rule_input(job, e, n), 0.0f);
    if (!map.is_good) [[unlikely]] {
      quantize_rare_token<Rule, Source>(job, e, n);
    } else {
      std::byte* codes = codes_of(job, e, n);
#pragma unroll
      for (int u = 0; u < Shape::kUnits; ++u) {
        const std::uint32_t h = first + u * step;
        std::uint32_t words[Shape::kCodeWords];
        encode_wide<Rule, Source>(map, x[u], words);
        store_words<Shape::kCodeWords>(words, h < hidden ? 1 : 0, true, codes + h);
      }
      if (threadIdx.x == 0) store_scale(job, e, n, 0, 1, map.scale);
    }
    __syncthreads();  // before the next row uses max_bits_of_block
  });
}

/// The wide version of max_of_experts_kernel.
template <typename Source>
__global__ void __launch_bounds__(kWideThreads)
    max_of_experts_wide_kernel(const __grid_constant__ QuantizeJob job) {
  constexpr int kElements = Source::kInput == DType::kF32 ? 4 : 8;
  constexpr int kUnits = 32 / kElements;
  follow_kernel();
  const auto hidden = static_cast<std::uint32_t>(job.hidden);
  const std::uint32_t step = blockDim.x * kElements;
  for_each_valid_row(job, [&](std::int64_t e, std::int64_t at, std::int64_t n) {
    const Source source = source_of<Source>(job, at, n);
    std::uint32_t amax_bits = 0;
    for (std::uint32_t base = threadIdx.x * kElements; base < hidden; base += kUnits * step) {
      WideUnit<Source, kElements> units[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) units[u].fetch(source, base + u * step, hidden);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        std::uint32_t bits = max_bits_of<Source::kInput>(units[u].words[0]);
        if (bits > kF32Infinity) [[unlikely]] {
          const std::int64_t h = base + u * step;
          bits = bits_from_f32(RareRow<Source>(job, at, n).magnitude(h, h + kElements, 1));
        }
        amax_bits = max(amax_bits, bits);
      }
    }
    amax_bits = max_bits_of_block(amax_bits);
    auto* target = reinterpret_cast<int*>(job.scales.data) + job.scales.index(e, 0, 0);
    const int bits = static_cast<int>(amax_bits);
    if (threadIdx.x == 0 && bits > *const_cast<volatile int*>(target)) atomicMax(target, bits);
    __syncthreads();
  });
}

/// Rows without scales: each element is rounded once.
template <DType kOutput, typename Source>
__global__ void __launch_bounds__(kWideThreads)
    convert_wide_kernel(const __grid_constant__ QuantizeJob job) {
  constexpr int kElements = kOutput == DType::kF32 && Source::kInput != DType::kF32 ? 4 : 8;
  constexpr int kUnits = 32 / kElements;
  constexpr int kWords = kElements * int{sizeof(ElementBits<kOutput>)} / 4;
  const auto hidden = static_cast<std::uint32_t>(job.hidden);
  const std::uint32_t step = blockDim.x * kElements;
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n >= job.num_rows(e)) return;
    const Source source = source_of<Source>(job, e, n);
    auto* row = reinterpret_cast<ElementBits<kOutput>*>(codes_of(job, e, n));
    for (std::uint32_t base = threadIdx.x * kElements; base < hidden; base += kUnits * step) {
      WideUnit<Source, kElements> units[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) units[u].fetch(source, base + u * step, hidden);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const std::uint32_t h = base + u * step;
        float x[kElements];
        const bool is_near = units[u].is_near();
        units[u].values(x);
        if (!is_near || units[u].max_bits(x) > kF32Infinity) [[unlikely]] {
          convert_rare<kOutput, Source, kElements>(job, e, n, h);
          continue;
        }
        std::uint32_t words[kWords];
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          if constexpr (kOutput == DType::kF32) {
            words[w] = bits_from_f32(x[w]);
          } else {
            words[w] = narrow2_finite<kOutput>(x[2 * w], x[2 * w + 1]);
          }
        }
        store_words<kWords>(words, h < hidden ? 1 : 0, true, row + h);
      }
    }
  });
}

}  // namespace switchyard::cuda
