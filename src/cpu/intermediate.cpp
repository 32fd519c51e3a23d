// SPDX-License-Identifier: Apache-2.0

#include "cpu/intermediate.h"

#include "core/bytes.h"
#include "quant/activation.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 64;

// Scratch holds the quantized row, then its scales. Simulated elements stay f32.
std::size_t aligned_row_bytes(const QuantScheme& scheme, std::int64_t width) {
  return align_up(row_bytes(scheme, width, DType::kF32), kAlignment);
}

float scale_of_rows(const QuantScheme& scheme, const float* h, std::int64_t num_elements,
                    std::optional<float> static_scale) {
  if (static_scale.has_value()) return *static_scale;
  if (scheme.group != ScaleGroup::kTensor) return 1.0f;
  return tensor_scale(max_magnitude(h, DType::kF32, num_elements), scheme.dtype);
}

}  // namespace

void add_bias(const float* bias, std::int64_t width, std::int64_t num_rows, float* y,
              std::int64_t stride) {
  for (float* row = y; row < y + num_rows * stride; row += stride) {
    for (std::int64_t i = 0; i < width; ++i) row[i] += bias[i];
  }
}

void activate_rows(const Activation& activation, const float* gate, const float* up,
                   std::int64_t stride, std::int64_t num_rows, std::int64_t width, float* h) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    activate(activation, gate + r * stride, up + r * stride, width, h + r * width);
  }
}

std::size_t intermediate_scratch_bytes(const QuantScheme& scheme, std::int64_t width) {
  return aligned_row_bytes(scheme, width) + align_up(scale_row_bytes(scheme, width), kAlignment);
}

void round_intermediate(const QuantScheme& scheme, std::int64_t num_rows, std::int64_t width,
                        float* h, std::byte* scratch, std::optional<float> static_scale) {
  void* scales = scratch + aligned_row_bytes(scheme, width);
  const float whole = scale_of_rows(scheme, h, num_rows * width, static_scale);
  const DType stored = stored_dtype(scheme, DType::kF32);
  for (float* row = h; row < h + num_rows * width; row += width) {
    quantize_row(scheme, row, DType::kF32, width, scratch, scales, whole);
    dequantize_row(scheme, scratch, scales, stored, width, row, whole);
  }
}

}  // namespace switchyard
