// SPDX-License-Identifier: Apache-2.0
//
// rows.h: the wide versions of the row formats: one row at a time, chosen for this processor at run
// time, bit-equal to the scalar definitions (scalar.h). This is what exchange and cpu call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

namespace switchyard {

/// Quantizes one row of `hidden` elements of `dtype` (bf16, f16 or f32).
///   q       hidden elements of scheme.dtype
///   scales  num_scales(scheme, hidden) words of 4 bytes: f32, or packed E8M0
/// For kTensor the scale is an input: scales[0] is read, not written.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::byte* q, void* scales);

/// One row back to f32: element * scale. For an unquantized row of bf16, f16 or f32: widening only.
void dequantize_row(const QuantScheme& scheme, const std::byte* q, const void* scales, DType dtype,
                    std::int64_t hidden, float* y);

/// Largest magnitude of a row, NaN ignored; +0 for an empty row.
float max_magnitude(const void* x, DType dtype, std::int64_t hidden);

void bf16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y);
/// To nearest, ties to even; NaN becomes 7FC0.
void f32_to_bf16(const float* x, std::int64_t num_elements, std::uint16_t* y);
void f16_to_f32(const std::uint16_t* x, std::int64_t num_elements, float* y);
/// To nearest, ties to even; NaN becomes 7E00; too large becomes infinity.
void f32_to_f16(const float* x, std::int64_t num_elements, std::uint16_t* y);

}  // namespace switchyard
