// SPDX-License-Identifier: Apache-2.0
//
// intermediate.h: the step between the two GEMMs of an expert: biases, the activation, and its
// rounding for the second GEMM, to bf16 or through a quantization format and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "switchyard/activation.h"
#include "switchyard/quant.h"

namespace switchyard {

/// y[r][i] += bias[i], in f32, for `num_rows` rows, `stride` floats apart.
void add_bias(const float* bias, std::int64_t width, std::int64_t num_rows, float* y,
              std::int64_t stride);

/// h[r] = activation(gate[r], up[r]) for `num_rows` rows. Rows of gate and up are `stride` floats
/// apart; h is contiguous.
void activate_rows(const Activation& activation, const float* gate, const float* up,
                   std::int64_t stride, std::int64_t num_rows, std::int64_t width, float* h);

/// Scratch of round_intermediate, in bytes, for rows of `width` elements.
std::size_t intermediate_scratch_bytes(const QuantScheme& scheme, std::int64_t width);

/// Rounds h [num_rows][width] in place: to the dtype of a scheme without scales, otherwise by
/// quantizing with `scheme` and dequantizing. kTensor uses `static_scale` or, without it, one scale
/// for all these rows; for nvfp4, `static_scale` is the global scale.
void round_intermediate(const QuantScheme& scheme, std::int64_t num_rows, std::int64_t width,
                        float* h, std::byte* scratch, std::optional<float> static_scale = {});

}  // namespace switchyard
