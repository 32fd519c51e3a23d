// SPDX-License-Identifier: Apache-2.0
//
// swiglu.h: what happens between the two GEMMs of an expert: h = silu(gate) * up, then h as the
// second GEMM sees it, rounded to bf16 or through a quantization format and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

namespace switchyard {

/// Scratch of round_intermediate for rows of `width` elements.
std::size_t intermediate_scratch_bytes(const QuantScheme& scheme, std::int64_t width);

/// h[r] = silu(gate[r]) * up[r] for `num_rows` rows; gate and up have rows `stride` floats apart, h
/// is contiguous.
void swiglu(const float* gate, const float* up, std::int64_t stride, std::int64_t num_rows,
            std::int64_t width, float* h);

/// Rounds h [num_rows][width] in place: to bf16 for kNone, else quantized by `scheme` and
/// dequantized, element * scale in f32. kTensor: one scale for all these rows.
void round_intermediate(const QuantScheme& scheme, std::int64_t num_rows, std::int64_t width,
                        float* h, std::byte* scratch);

}  // namespace switchyard
