// SPDX-License-Identifier: Apache-2.0
//
// activation.h: the function between the two matrices of an expert, which scales a value by its
// gate.
#pragma once

#include <cstdint>
#include <limits>

#include "switchyard/export.h"

namespace switchyard {

/// The functions between the two matrices of an expert.
enum class ActivationKind : std::uint8_t {
  kSiluMul,        ///< silu(gate) * up: SwiGLU, the choice of most models
  kClampedSwiGlu,  ///< g / (1 + exp(-alpha * g)) * (u + beta), where g = min(gate, limit) and u is
                   ///< up clamped to [-limit, limit]: GPT-OSS
};

/// An activation: a plain value, compared with ==. alpha, beta and limit belong to kClampedSwiGlu;
/// kSiluMul ignores them. With alpha 1 and beta 0, kClampedSwiGlu is SwiGLU with limits.
struct Activation {
  ActivationKind kind = ActivationKind::kSiluMul;        ///< which function
  float alpha = 1.0f;                                    ///< finite
  float beta = 0.0f;                                     ///< finite
  float limit = std::numeric_limits<float>::infinity();  ///< above 0; infinity: no limit

  friend bool operator==(const Activation&, const Activation&) = default;
};

namespace activations {
inline constexpr Activation kSiluMul{};  ///< SwiGLU
/// The constants published with GPT-OSS. Its checkpoints interleave gate and up; here they are two
/// matrices.
inline constexpr Activation kGptOss{ActivationKind::kClampedSwiGlu, 1.702f, 1.0f, 7.0f};
}  // namespace activations

}  // namespace switchyard
