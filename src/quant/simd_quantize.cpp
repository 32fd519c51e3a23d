// SPDX-License-Identifier: Apache-2.0
//
// simd_quantize.cpp: vectorized quantization to e4m3 or int8. The largest magnitude is an integer
// maximum over bit patterns. If it reveals NaN or infinity, or the scale is not a finite positive
// number, the scalar definition is used, so the vector code sees only finite elements.

#include <algorithm>
#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_quantize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/bytes.h"
#include "quant/codes-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
// The scales of up to kChunk blocks are computed first. Their maxima and divisions are independent
// and overlap, which they would not if each block's elements waited for its scale.
constexpr std::int64_t kChunk = 64;

template <typename Source, typename Coder>
void quantize_chunk(const QuantScheme& scheme, const typename Source::Element* x, std::int64_t n,
                    std::uint8_t* q, std::array<ScaleAndMap, kChunk>& blocks) {
  std::array<bool, kChunk> is_finite;
  std::size_t b = 0;
  for (std::int64_t begin = 0; begin < n; begin += scheme.block, ++b) {
    const std::int64_t count = std::min<std::int64_t>(scheme.block, n - begin);
    const std::uint32_t bits = max_bits(x + begin, count);
    is_finite[b] = bits < Source::kInfinity;
    const float amax = is_finite[b] ? Source::widen_one(bits)
                                    : scalar::max_magnitude(x + begin, Source::kDType, 0, count);
    blocks[b] = block_rule(scheme, amax, 1.0f);
  }
  b = 0;
  for (std::int64_t begin = 0; begin < n; begin += scheme.block, ++b) {
    const std::int64_t count = std::min<std::int64_t>(scheme.block, n - begin);
    prefetch_ahead(x + begin, count, n);
    if (is_finite[b]) {
      encode<Source, Coder>(x + begin, count, blocks[b].map, q + begin);
    } else {
      scalar::encode(x + begin, Source::kDType, 0, count, blocks[b].map, q + begin);
    }
  }
}

template <typename Source, typename Coder>
void quantize_blocks(const QuantScheme& scheme, const typename Source::Element* x,
                     std::int64_t hidden, std::uint8_t* q, void* scales) {
  std::array<ScaleAndMap, kChunk> blocks;
  std::int64_t b = 0;
  for (std::int64_t begin = 0; begin < hidden; begin += kChunk * scheme.block) {
    const std::int64_t n = std::min<std::int64_t>(kChunk * scheme.block, hidden - begin);
    quantize_chunk<Source, Coder>(scheme, x + begin, n, q + begin, blocks);
    const std::int64_t end = b + cdiv(n, std::int64_t{scheme.block});
    for (std::size_t i = 0; b < end; ++b, ++i) {
      scalar::store_scale(scheme.scale_format, scales, b, blocks[i].scale);
    }
  }
}

constexpr std::int64_t kStride = 256;  // elements between two rounds of prefetching

// One scale for the row: its own, or the tensor's.
template <typename Source, typename Coder>
void quantize_whole(const QuantScheme& scheme, const typename Source::Element* x,
                    std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale) {
  const std::uint32_t bits = max_bits(x, hidden);
  const bool is_token = scheme.group == ScaleGroup::kToken;
  const ScaleAndMap row = scale_rule(scheme, Source::widen_one(bits), tensor_scale);
  const bool is_ordinary = row.map.factor > 0.0f && row.map.factor < f32_from_bits(kF32Infinity);
  if (bits >= Source::kInfinity || !is_ordinary) {
    scalar::quantize_row(scheme, x, Source::kDType, hidden, q, scales, tensor_scale);
    return;
  }
  for (std::int64_t begin = 0; begin < hidden; begin += kStride) {
    const std::int64_t count = std::min(kStride, hidden - begin);
    prefetch_ahead(x + begin, count, hidden);
    if (is_token) {
      encode<Source, Coder>(x + begin, count, row.map, q + begin);
    } else {
      encode_clamped<Source, Coder>(x + begin, count, row.map, q + begin);
    }
  }
  if (is_token) *static_cast<float*>(scales) = row.scale;
}

template <typename Source>
void quantize_source(const QuantScheme& scheme, const void* data, std::int64_t hidden,
                     std::uint8_t* q, void* scales, float tensor_scale) {
  const auto* x = static_cast<const typename Source::Element*>(data);
  switch (codec_of(scheme)) {
    case Codec::kI8HalfAway:
      return quantize_whole<Source, I8Coder<HalfAway>>(scheme, x, hidden, q, scales, tensor_scale);
    case Codec::kI8HalfEven:
      return quantize_whole<Source, I8Coder<HalfEven>>(scheme, x, hidden, q, scales, tensor_scale);
    case Codec::kI8Truncate:
      return quantize_blocks<Source, I8Coder<Truncation>>(scheme, x, hidden, q, scales);
    default: break;
  }
  if (scheme.group == ScaleGroup::kBlock) {
    return quantize_blocks<Source, E4M3Coder>(scheme, x, hidden, q, scales);
  }
  quantize_whole<Source, E4M3Coder>(scheme, x, hidden, q, scales, tensor_scale);
}

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale) {
  switch (dtype) {
    case DType::kBF16: return quantize_source<Bf16>(scheme, x, hidden, q, scales, tensor_scale);
    case DType::kF16: return quantize_source<F16>(scheme, x, hidden, q, scales, tensor_scale);
    default: return quantize_source<F32>(scheme, x, hidden, q, scales, tensor_scale);
  }
}

template <typename Source>
float max_magnitude_of(const void* data, std::int64_t n) {
  const std::uint32_t bits = max_bits(static_cast<const typename Source::Element*>(data), n);
  return bits <= Source::kInfinity ? Source::widen_one(bits)
                                   : scalar::max_magnitude(data, Source::kDType, 0, n);
}

float max_magnitude(const void* x, DType dtype, std::int64_t num_elements) {
  switch (dtype) {
    case DType::kBF16: return max_magnitude_of<Bf16>(x, num_elements);
    case DType::kF16: return max_magnitude_of<F16>(x, num_elements);
    default: return max_magnitude_of<F32>(x, num_elements);
  }
}

#else  // no vectors: the scalar definition

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale) {
  scalar::quantize_row(scheme, x, dtype, hidden, q, scales, tensor_scale);
}

float max_magnitude(const void* x, DType dtype, std::int64_t num_elements) {
  return scalar::max_magnitude(x, dtype, 0, num_elements);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard::simd {

HWY_EXPORT(quantize_row);
HWY_EXPORT(max_magnitude);

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale) {
  HWY_DYNAMIC_DISPATCH(quantize_row)(scheme, x, dtype, hidden, q, scales, tensor_scale);
}

float max_magnitude(const void* x, DType dtype, std::int64_t num_elements) {
  return HWY_DYNAMIC_DISPATCH(max_magnitude)(x, dtype, num_elements);
}

}  // namespace switchyard::simd
#endif
