// SPDX-License-Identifier: Apache-2.0
//
// simd.h: the wide functions, each compiled once for every processor target by Highway and chosen
// at run time. rows.h is the interface for others; here is what rows.cpp puts together.
#pragma once

#include <cstdint>

#include "quant/scalar.h"

namespace switchyard::simd {

/// As scalar::quantize_row, same bits.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales);

/// y = e4m3 element * scale, for elements that share the scale.
void dequantize(const std::uint8_t* q, std::int64_t num_elements, float scale, float* y);

/// As scalar::max_magnitude from element 0.
float max_magnitude(const void* x, DType dtype, std::int64_t num_elements);

}  // namespace switchyard::simd
