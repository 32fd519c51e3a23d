// SPDX-License-Identifier: Apache-2.0

#include "quant/scalar.h"

#include <algorithm>

namespace switchyard::scalar {

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales) {
  if (scheme.group == ScaleGroup::kTensor) {
    encode(x, dtype, 0, hidden, tensor_rule(*static_cast<const float*>(scales)), q);
    return;
  }
  if (scheme.group == ScaleGroup::kToken) {
    const ScaleAndMap row = token_rule(max_magnitude(x, dtype, 0, hidden));
    encode(x, dtype, 0, hidden, row.map, q);
    *static_cast<float*>(scales) = row.scale;
    return;
  }
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += scheme.block, ++b) {
    const std::int64_t end = std::min(begin + scheme.block, hidden);
    const ScaleAndMap block =
        block_rule(scheme.rule, scheme.scale_format, max_magnitude(x, dtype, begin, end));
    encode(x, dtype, begin, end, block.map, q);
    store_scale(scheme.scale_format, scales, b, block.scale);
  }
}

void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y) {
  const std::int64_t group = elements_per_scale(scheme, hidden);
  for (std::int64_t h = 0; h < hidden; ++h) {
    const float scale = load_scale(scheme.scale_format, scales, h / group);
    y[h] = canonical_f32(f32_from_e4m3(q[h]) * scale);
  }
}

}  // namespace switchyard::scalar
