// SPDX-License-Identifier: Apache-2.0
//
// quantize_kernels.cuh: one thread block per row, eight elements per thread at a time. Lanes that
// share a scale agree on it by shuffles. A row with one scale stays in registers between its two
// passes unless it is too long.
#pragma once

#include "core/round_up.h"
#include "cuda/quantize/quantize_rules.cuh"

namespace switchyard::cuda {

template <typename Source>
__device__ __forceinline__ Source source_of(const QuantizeJob& job, std::int64_t e,
                                            std::int64_t n) {
  const auto* data = static_cast<const ElementBits<Source::kInput>*>(job.x.data);
  return Source(data + e * job.x.expert_stride + n * job.x.row_stride, job.hidden);
}

__device__ __forceinline__ std::byte* codes_of(const QuantizeJob& job, std::int64_t e,
                                               std::int64_t n) {
  return job.q + (e * job.capacity + n) * job.q_row_bytes;
}

__device__ __forceinline__ RuleInput rule_input(const QuantizeJob& job, std::int64_t e,
                                                std::int64_t n) {
  const float given = job.given == nullptr
                          ? 1.0f
                          : job.given[e * job.given_expert_stride + n * job.given_row_stride];
  const ScaleFormat format = job.scheme.scale_format;
  return {given, format != ScaleFormat::kF32, job.scale_ub};
}

/// Loads the units of this thread from `base` on. All loads are issued before the first is used.
template <typename Source>
__device__ __forceinline__ void load_units(const Source& source, std::int64_t base,
                                           float (&x)[kUnits][kUnit]) {
  typename Source::Raw raw[kUnits];
  for_each_unit(base, [&](int u, std::int64_t h) { raw[u] = source.fetch(h); });
#pragma unroll
  for (int u = 0; u < kUnits; ++u) Source::values(raw[u], x[u]);
}

template <typename Rule, typename Source>
__device__ __forceinline__ void quantize_blocks_of_row(const QuantizeJob& job, std::int64_t e,
                                                       std::int64_t n) {
  constexpr int kBlock = Rule::kLanes * kUnit;
  const Source source = source_of<Source>(job, e, n);
  const CodeRow<Rule::kCodec, Source::kInput> codes(codes_of(job, e, n), job.hidden);
  const RuleInput input = rule_input(job, e, n);
  const std::int64_t num_blocks = cdiv<std::int64_t>(job.hidden, kBlock);
  PreparedMap shared{};
  if constexpr (Rule::kIsGiven) {
    const ScaleAndMap rule = Rule::of(0.0f, input);
    shared = prepare_map(rule.map, 0.0f);
    if (job.scheme.group == ScaleGroup::kToken && threadIdx.x == 0) {
      store_scale(job, e, n, 0, 1, rule.scale);
    }
  }
  for (std::int64_t base = 0; base < job.hidden; base += elements_of_block()) {
    typename Source::Raw raw[kUnits];
    for_each_unit(base, [&](int u, std::int64_t h) { raw[u] = source.fetch(h); });
    for_each_unit(base, [&](int u, std::int64_t h) {
      float x[kUnit];
      Source::values(raw[u], x);
      if constexpr (Rule::kIsGiven) {
        PreparedMap map = shared;
        if (map.map.divides) map.is_exact = map.is_exact && max_of_unit(x) <= kMaxShared;
        codes.quantize(map, 1.0f, x, h);
      } else {
        const float amax = max_of_lanes<Rule::kLanes>(max_of_unit(x));
        const ScaleAndMap rule = Rule::of(amax, input);
        codes.quantize(prepare_map(rule.map, amax), rule.scale, x, h);
        if (Rule::kStoresScales && threadIdx.x % Rule::kLanes == 0 && h < job.hidden) {
          store_scale(job, e, n, h / kBlock, num_blocks, rule.scale);
        }
      }
    });
  }
}

/// Blocks of 16, 32 or 128 elements, and rows whose scale is known in advance.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(256)
    quantize_blocks_kernel(const __grid_constant__ QuantizeJob job) {
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t i) {
    // Walk backwards: a pass over the tensor may have left its last rows in the cache.
    const std::int64_t n = Rule::kIsGiven ? job.capacity - 1 - i : i;
    if (n < job.num_rows(e)) {
      quantize_blocks_of_row<Rule, Source>(job, e, n);
    } else {
      clear_scale_row(job, e, n);
    }
  });
}

template <typename Rule, typename Source>
__device__ __forceinline__ void quantize_token(const QuantizeJob& job, std::int64_t e,
                                               std::int64_t n) {
  const Source source = source_of<Source>(job, e, n);
  const CodeRow<Rule::kCodec, Source::kInput> codes(codes_of(job, e, n), job.hidden);
  const std::int64_t step = elements_of_block();
  const std::int64_t last = job.hidden == 0 ? 0 : (job.hidden - 1) / step * step;
  float x[kUnits][kUnit];
  float amax = 0.0f;
  for (std::int64_t base = 0; base <= last; base += step) {
    load_units(source, base, x);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) amax = fmaxf(amax, max_of_unit(x[u]));
  }
  amax = max_of_block(amax);
  const ScaleAndMap rule = Rule::of(amax, rule_input(job, e, n));
  const PreparedMap map = prepare_map(rule.map, amax);
  // Walk backwards: the last part of the row is still in registers.
  for (std::int64_t base = last; base >= 0; base -= step) {
    if (base != last) load_units(source, base, x);
    for_each_unit(base, [&](int u, std::int64_t h) { codes.quantize(map, rule.scale, x[u], h); });
  }
  if (threadIdx.x == 0) store_scale(job, e, n, 0, 1, rule.scale);
  __syncthreads();  // before the next row uses max_of_block
}

/// One scale per row.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(512)
    quantize_tokens_kernel(const __grid_constant__ QuantizeJob job) {
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n < job.num_rows(e)) {
      quantize_token<Rule, Source>(job, e, n);
    } else {
      clear_scale_row(job, e, n);
    }
  });
}

/// Blocks of any size, by the definition: one warp per block, one element per lane.
template <typename Rule, typename Source>
__global__ void __launch_bounds__(256)
    quantize_any_blocks_kernel(const __grid_constant__ QuantizeJob job) {
  const std::int64_t block = job.scheme.block;
  const std::int64_t num_blocks = job.hidden / block + (job.hidden % block != 0 ? 1 : 0);
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n >= job.num_rows(e)) return clear_scale_row(job, e, n);
    const Source source = source_of<Source>(job, e, n);
    auto* codes = reinterpret_cast<std::uint8_t*>(codes_of(job, e, n));
    const RuleInput input = rule_input(job, e, n);
    for (std::int64_t b = threadIdx.x / 32; b < num_blocks; b += blockDim.x / 32) {
      const std::int64_t begin = b * block + threadIdx.x % 32;
      const std::int64_t end = job.hidden - b * block < block ? job.hidden : (b + 1) * block;
      float amax = 0.0f;
      for (std::int64_t h = begin; h < end; h += 32) amax = max_magnitude(amax, source.at(h));
      amax = max_of_lanes<32>(amax);
      const ScaleAndMap rule = Rule::of(amax, input);
      for (std::int64_t h = begin; h < end; h += 32) {
        codes[h] = quantize_element(source.at(h), rule.map);
      }
      if (threadIdx.x % 32 == 0) store_scale(job, e, n, b, num_blocks, rule.scale);
    }
  });
}

/// Calls visit(e, at, n) for each valid row of expert e: row n of x, in block `at` of its strides.
template <typename Visit>
__device__ __forceinline__ void for_each_valid_row(const QuantizeJob& job, Visit visit) {
  for (std::int64_t e = blockIdx.y; e < job.num_experts; e += gridDim.y) {
    const std::int64_t count = job.num_rows(e);
    const bool is_block = job.first_row == nullptr;
    const std::int64_t first = is_block ? 0 : job.first_row[e];
    for (std::int64_t n = blockIdx.x; n < count; n += gridDim.x) {
      visit(e, is_block ? e : 0, first + n);
    }
  }
}

/// Writes the largest magnitude of each expert's rows, as bits, to its scale, which must be 0
/// before. The result does not depend on the order in which thread blocks arrive.
template <typename Source>
__global__ void __launch_bounds__(256)
    max_of_experts_kernel(const __grid_constant__ QuantizeJob job) {
  for_each_valid_row(job, [&](std::int64_t e, std::int64_t at, std::int64_t n) {
    const Source source = source_of<Source>(job, at, n);
    float amax = 0.0f;
    for (std::int64_t base = 0; base < job.hidden; base += elements_of_block()) {
      float x[kUnits][kUnit];
      load_units(source, base, x);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) amax = fmaxf(amax, max_of_unit(x[u]));
    }
    amax = max_of_block(amax);
    auto* target = reinterpret_cast<int*>(job.scales.data) + job.scales.index(e, 0, 0);
    const int bits = static_cast<int>(bits_from_f32(amax));
    if (threadIdx.x == 0 && bits > *const_cast<volatile int*>(target)) atomicMax(target, bits);
    __syncthreads();
  });
}

/// Rows without scales: each element is rounded once; if the dtype does not change, bytes are kept.
template <DType kOutput, typename Source>
__global__ void __launch_bounds__(256) convert_kernel(const __grid_constant__ QuantizeJob job) {
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n >= job.num_rows(e)) return;
    const Source source = source_of<Source>(job, e, n);
    auto* row = reinterpret_cast<ElementBits<kOutput>*>(codes_of(job, e, n));
    const bool is_wide = job.hidden % kUnit == 0 && is_aligned<16>(row);
    for (std::int64_t base = 0; base < job.hidden; base += elements_of_block()) {
      float x[kUnits][kUnit];
      load_units(source, base, x);
      for_each_unit(base, [&](int u, std::int64_t h) {
        store_unit<kOutput>(x[u], job.hidden - h, is_wide, row + h);
      });
    }
  });
}

}  // namespace switchyard::cuda
