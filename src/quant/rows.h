// SPDX-License-Identifier: Apache-2.0
//
// rows.h: vectorized versions of the row formats: one row at a time, selected for the processor at
// run time, with the bits of the scalar definitions (scalar.h). exchange and cpu call these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

namespace switchyard {

/// Quantizes one row of `hidden` elements of `dtype` (bf16, f16 or f32).
///   q             row_bytes(scheme, hidden, dtype) bytes
///   scales        scale_row_bytes(scheme, hidden) bytes; unused for kTensor
///   tensor_scale  the scale of the whole tensor: for kTensor, and for nvfp4 its global scale
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::byte* q, void* scales, float tensor_scale = 1.0f);

/// Dequantizes one row to f32: element * scale. An unquantized or simulated row of `dtype` (bf16,
/// f16 or f32) is only widened.
void dequantize_row(const QuantScheme& scheme, const std::byte* q, const void* scales, DType dtype,
                    std::int64_t hidden, float* y, float tensor_scale = 1.0f);

/// The largest magnitude of a row; NaN is ignored, and an empty row gives +0.
float max_magnitude(const void* x, DType dtype, std::int64_t hidden);

void bf16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y);
/// Rounds to nearest, ties to even; NaN becomes 7FC0.
void f32_to_bf16(const float* x, std::int64_t num_elements, std::uint16_t* y);
void f16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y);
/// Rounds to nearest, ties to even; NaN becomes 7E00; overflow becomes infinity.
void f32_to_f16(const float* x, std::int64_t num_elements, std::uint16_t* y);

}  // namespace switchyard
