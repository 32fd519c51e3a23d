// SPDX-License-Identifier: Apache-2.0

#include "quant/scalar.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard::scalar {

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale) {
  const std::int64_t group = elements_per_scale(scheme, hidden);
  const bool is_block = scheme.group == ScaleGroup::kBlock;
  const bool has_row_scales = scheme.group != ScaleGroup::kTensor && !scheme.is_simulated();
  const std::int64_t num_groups = is_block ? cdiv(hidden, group) : 1;
  for (std::int64_t b = 0; b < num_groups; ++b) {
    const std::int64_t begin = b * group;
    const std::int64_t end = std::min(begin + group, hidden);
    const float amax =
        scheme.group == ScaleGroup::kTensor ? 0.0f : max_magnitude(x, dtype, begin, end);
    const ScaleAndMap block = scale_rule(scheme, amax, tensor_scale);
    if (scheme.is_simulated()) {
      simulate(scheme.dtype, x, dtype, begin, end, block, q);
    } else {
      encode(x, dtype, begin, end, block.map, q);
    }
    if (has_row_scales) store_scale(scheme.scale_format, scales, b, block.scale);
  }
}

void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale, DType dtype) {
  const std::int64_t group = elements_per_scale(scheme, hidden);
  for (std::int64_t h = 0; h < hidden; ++h) {
    if (scheme.is_simulated()) {
      y[h] = load(q, dtype, h);
      continue;
    }
    const float stored = scheme.group == ScaleGroup::kTensor
                             ? tensor_scale
                             : load_scale(scheme.scale_format, scales, h / group);
    const float scale = effective_scale(scheme, stored, tensor_scale);
    y[h] = canonical_f32(decode(scheme.dtype, load_code(scheme.dtype, q, h)) * scale);
  }
}

}  // namespace switchyard::scalar
