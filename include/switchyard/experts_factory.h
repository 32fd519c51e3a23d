// SPDX-License-Identifier: Apache-2.0
//
// experts_factory.h: makes the experts of a layer from its quantization: the scales, alphas, biases
// and activation that a QuantConfig holds, around the two weights that vLLM has.
//
// Letters used for shapes in this header:
//   L  local experts     H  elements per row (hidden)     I  intermediate elements
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "switchyard/activation.h"
#include "switchyard/device.h"
#include "switchyard/experts.h"
#include "switchyard/export.h"
#include "switchyard/quant_config.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// make_experts with everything that `quant` says of weights and of the activation between the
/// GEMMs. All tensors are host memory, read once.
///
///   w1  [L, 2 I, H]  gate, then up (vLLM's w13): bf16, f16 or f32 for weights that are not
///                    quantized; e4m3, i8; e2m1, or u8 with two per byte, for nvfp4 and mxfp4
///   w2  [L, H, I]    down, as w1
///
///   w1_scale      per tensor [L]; per output [L, 2 I]; by block [L, outputs, inputs], where no
///                 block reaches from gate into up. Further sides of 1 are allowed; of mxfp4 and
///                 nvfp4 also u8; not swizzled. w2_scale likewise.
///   g1_alphas     nvfp4 only: [L] f32. With nvfp4 activations what vLLM multiplies the product by;
///                 the weight's own factor is g1_alphas * a1_gscale, in f32. g2_alphas likewise.
///   w1_bias       [L, 2 I]; w2_bias [L, H]
///   a2_scale      the static scale of the activation between the GEMMs; nvfp4: a2_gscale
///   gemm1_alpha, gemm1_beta, gemm1_clamp_limit
///                 any of them: kClampedSwiGlu with these; `activation`, if given, must agree
///
/// Errors: those of make_experts; kInvalidArgument also where weights, scales or `activation`
/// disagree with `quant`; kNotSupported for zero points, for weights of int4, mxfp6, mxfp8 and fp8
/// (the name without e4m3), for alphas of other formats, whose scales say the same.
SWITCHYARD_API std::unique_ptr<Experts> make_experts(
    std::string_view name, const TensorView& w1, const TensorView& w2, const QuantConfig& quant,
    const std::optional<Activation>& activation = {}, Device device = Device::cpu());

}  // namespace switchyard
