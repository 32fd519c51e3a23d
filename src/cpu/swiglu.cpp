// SPDX-License-Identifier: Apache-2.0

#include "cpu/swiglu.h"

#include "core/bytes.h"
#include "quant/activation.h"
#include "quant/rows.h"
#include "quant/scalar.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 64;

// The quantized row first, its scales after it.
std::size_t row_bytes(const QuantScheme& scheme, std::int64_t width) {
  const auto bits = static_cast<std::size_t>(width * bits_of(scheme.dtype));
  return align_up(cdiv(bits, std::size_t{8}), kAlignment);
}

}  // namespace

std::size_t intermediate_scratch_bytes(const QuantScheme& scheme, std::int64_t width) {
  const auto scales = static_cast<std::size_t>(num_scales(scheme, width)) * sizeof(float);
  return row_bytes(scheme, width) + align_up(scales, kAlignment);
}

void swiglu(const float* gate, const float* up, std::int64_t stride, std::int64_t num_rows,
            std::int64_t width, float* h) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    silu_mul(gate + r * stride, up + r * stride, width, h + r * width);
  }
}

void round_intermediate(const QuantScheme& scheme, std::int64_t num_rows, std::int64_t width,
                        float* h, std::byte* scratch) {
  if (!scheme.is_quantized()) {
    auto* bf16 = reinterpret_cast<std::uint16_t*>(scratch);
    for (float* row = h; row < h + num_rows * width; row += width) {
      f32_to_bf16(row, width, bf16);
      bf16_to_f32(bf16, width, row);
    }
    return;
  }
  auto* scales = reinterpret_cast<float*>(scratch + row_bytes(scheme, width));
  const float whole = scheme.group == ScaleGroup::kTensor
                          ? tensor_scale(max_magnitude(h, DType::kF32, num_rows * width))
                          : 1.0f;
  for (float* row = h; row < h + num_rows * width; row += width) {
    quantize_row(scheme, row, DType::kF32, width, scratch, scales, whole);
    dequantize_row(scheme, scratch, scales, scheme.dtype, width, row, whole);
  }
}

}  // namespace switchyard
