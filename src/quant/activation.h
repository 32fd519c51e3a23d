// SPDX-License-Identifier: Apache-2.0
//
// activation.h: exp and the gated activation over arrays, with the bits of exp.h for each element
// on every processor. Processors without fma run the scalar functions.
#pragma once

#include <cstdint>

#include "switchyard/activation.h"

namespace switchyard {

/// y = exp(x). x and y may be the same array.
void exp_f32(const float* x, std::int64_t num_elements, float* y);

/// y = silu(gate) * up; NaN becomes 7FC00000. y may be gate or up.
void silu_mul(const float* gate, const float* up, std::int64_t num_elements, float* y);

/// y = activation(gate, up), defined by silu_mul and clamped_swiglu of exp.h. y may be gate or up.
void activate(const Activation& activation, const float* gate, const float* up,
              std::int64_t num_elements, float* y);

}  // namespace switchyard
