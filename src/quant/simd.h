// SPDX-License-Identifier: Apache-2.0
//
// simd.h: the vectorized functions, which Highway compiles once per target and selects at run time.
// Other folders use rows.h; these are the parts that rows.cpp combines.
#pragma once

#include <cstdint>

#include "quant/scalar.h"

namespace switchyard::simd {

/// The bits of scalar::quantize_row, for e4m3 and int8 with one scale per tensor, token or block of
/// any size.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale);

/// The bits of scalar::quantize_row, for small blocks with one-byte scales: nvfp4, mxfp4, mxfp8.
void quantize_small_blocks(const QuantScheme& scheme, const void* x, DType dtype,
                           std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale);

/// The bits of scalar::quantize_row, for simulated schemes: mxfp6. `y` may be `x`.
void simulate_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  void* y);

/// The bits of scalar::dequantize_row, for schemes that are not simulated.
void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale);

/// The bits of scalar::max_magnitude over all elements.
float max_magnitude(const void* x, DType dtype, std::int64_t num_elements);

}  // namespace switchyard::simd
