// SPDX-License-Identifier: Apache-2.0
//
// intermediate.h: what happens between the two GEMMs of an expert: biases, the activation, and its
// rounding, as the second GEMM sees it, to bf16 or through a quantization format and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "switchyard/activation.h"
#include "switchyard/quant.h"

namespace switchyard {

/// y[r][i] += bias[i], in f32, for `num_rows` rows that are `stride` floats apart.
void add_bias(const float* bias, std::int64_t width, std::int64_t num_rows, float* y,
              std::int64_t stride);

/// h[r] = activation(gate[r], up[r]) for `num_rows` rows; gate and up have rows `stride` floats
/// apart, h is contiguous.
void activate_rows(const Activation& activation, const float* gate, const float* up,
                   std::int64_t stride, std::int64_t num_rows, std::int64_t width, float* h);

/// Scratch of round_intermediate for rows of `width` elements.
std::size_t intermediate_scratch_bytes(const QuantScheme& scheme, std::int64_t width);

/// Rounds h [num_rows][width] in place: to bf16 for kNone, else quantized by `scheme` and
/// dequantized. kTensor: `static_scale`, or one scale for all these rows; nvfp4: `static_scale` is
/// its global scale.
void round_intermediate(const QuantScheme& scheme, std::int64_t num_rows, std::int64_t width,
                        float* h, std::byte* scratch, std::optional<float> static_scale = {});

}  // namespace switchyard
