// SPDX-License-Identifier: Apache-2.0
//
// simd.h: the wide functions, each compiled once for every processor target by Highway and chosen
// at run time. rows.h is the interface for others; here is what rows.cpp puts together.
#pragma once

#include <cstdint>

#include "quant/scalar.h"

namespace switchyard::simd {

/// As scalar::quantize_row, same bits, for e4m3 and int8 with one scale a tensor, token or block of
/// any size.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale);

/// As scalar::quantize_row, same bits, for small blocks with one-byte scales: nvfp4, mxfp4, mxfp8.
void quantize_small_blocks(const QuantScheme& scheme, const void* x, DType dtype,
                           std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale);

/// As scalar::dequantize_row, same bits, for schemes that are not simulated.
void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale);

/// As scalar::max_magnitude from element 0.
float max_magnitude(const void* x, DType dtype, std::int64_t num_elements);

}  // namespace switchyard::simd
