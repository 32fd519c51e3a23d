// SPDX-License-Identifier: Apache-2.0
//
// quantize_rare.cuh: quantizes by the definition what the wide kernels do not handle: NaN,
// infinities and magnitudes whose products would overflow or underflow. Small, and never inlined.
#pragma once

#include "cuda/quantize/quantize_kernels.cuh"
#include "quant/scalar.h"

namespace switchyard::cuda {

template <typename Source>
struct RareRow {
  Source source;
  std::uint8_t* codes;

  __device__ RareRow(const QuantizeJob& job, std::int64_t e, std::int64_t n)
      : source(source_of<Source>(job, e, n)),
        codes(reinterpret_cast<std::uint8_t*>(codes_of(job, e, n))) {}

  __device__ float magnitude(std::int64_t begin, std::int64_t end, std::int64_t step) const {
    float amax = 0.0f;
#pragma unroll 1
    for (std::int64_t h = begin; h < end; h += step) amax = max_magnitude(amax, source.at(h));
    return amax;
  }

  template <Codec kCodec>
  __device__ void encode(const ScaleAndMap& rule, std::int64_t begin, std::int64_t end,
                         std::int64_t step) const {
#pragma unroll 1
    for (std::int64_t h = begin; h < end; h += step) {
      const std::uint8_t code = quantize_element(source.at(h), rule.map);
      if constexpr (kCodec == Codec::kE2M3 || kCodec == Codec::kE3M2) {
        constexpr DType kDType = kCodec == Codec::kE2M3 ? DType::kE2M3 : DType::kE3M2;
        scalar::store(codes, Source::kInput, h, decode(kDType, code) * rule.scale);
      } else {
        scalar::store_code(kCodec, codes, h, code);
      }
    }
  }
};

/// Quantizes kElements elements from h on for each lane of a warp; kLanes lanes share a scale.
template <typename Rule, typename Source, int kElements, int kLanes>
__device__ __noinline__ void quantize_rare(const QuantizeJob& job, std::int64_t e, std::int64_t n,
                                           std::int64_t h) {
  const RareRow<Source> row(job, e, n);
  const std::int64_t end = h + kElements < job.hidden ? h + kElements : job.hidden;
  const float amax = max_of_lanes<kLanes>(row.magnitude(h, end, 1));
  const ScaleAndMap rule = Rule::of(amax, rule_input(job, e, n));
  row.template encode<Rule::kCodec>(rule, h, end, 1);
  if (Rule::kStoresScales && threadIdx.x % kLanes == 0 && h < job.hidden) {
    constexpr int kBlock = Rule::kLanes * kUnit;
    store_scale(job, e, n, h / kBlock, cdiv<std::int64_t>(job.hidden, kBlock), rule.scale);
  }
}

/// The thread block quantizes a whole row. A barrier must separate this from the last max_of_block.
template <typename Rule, typename Source>
__device__ __noinline__ void quantize_rare_token(const QuantizeJob& job, std::int64_t e,
                                                 std::int64_t n) {
  const RareRow<Source> row(job, e, n);
  const float amax = max_of_block(row.magnitude(threadIdx.x, job.hidden, blockDim.x));
  const ScaleAndMap rule = Rule::of(amax, rule_input(job, e, n));
  row.template encode<Rule::kCodec>(rule, threadIdx.x, job.hidden, blockDim.x);
  if (threadIdx.x == 0) store_scale(job, e, n, 0, 1, rule.scale);
}

template <DType kOutput, typename Source, int kElements>
__device__ __noinline__ void convert_rare(const QuantizeJob& job, std::int64_t e, std::int64_t n,
                                          std::int64_t h) {
  const Source source = source_of<Source>(job, e, n);
#pragma unroll 1
  for (int i = 0; i < kElements; ++i) {
    scalar::store(codes_of(job, e, n), kOutput, h + i, source.at(h + i));
  }
}

}  // namespace switchyard::cuda
