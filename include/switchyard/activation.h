// SPDX-License-Identifier: Apache-2.0
//
// activation.h: what stands between the two matrices of an expert: a gate and a value that it
// scales.
#pragma once

#include <cstdint>
#include <limits>

#include "switchyard/export.h"

namespace switchyard {

enum class ActivationKind : std::uint8_t {
  kSiluMul,        ///< silu(gate) * up: SwiGLU, of most models
  kClampedSwiGlu,  ///< g / (1 + exp(-alpha * g)) * (u + beta), with g = min(gate, limit) and
                   ///< u = up between -limit and limit: GPT-OSS
};

/// An activation. A plain value; compare with ==. The numbers are those of kClampedSwiGlu;
/// kSiluMul does not look at them. With alpha 1 and beta 0 it is SwiGLU with limits.
struct Activation {
  ActivationKind kind = ActivationKind::kSiluMul;
  float alpha = 1.0f;                                    ///< finite
  float beta = 0.0f;                                     ///< finite
  float limit = std::numeric_limits<float>::infinity();  ///< above 0; infinity for none

  friend bool operator==(const Activation&, const Activation&) = default;
};

namespace activations {
inline constexpr Activation kSiluMul{};
/// As published with GPT-OSS. Its checkpoints interleave gate and up; here they are two matrices.
inline constexpr Activation kGptOss{ActivationKind::kClampedSwiGlu, 1.702f, 1.0f, 7.0f};
}  // namespace activations

}  // namespace switchyard
