// SPDX-License-Identifier: Apache-2.0
//
// quant_config_options.h: arguments of QuantConfig's builders. All tensors are optional, because a
// rank that only moves rows has no weights.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "switchyard/group_shape.h"
#include "switchyard/quant.h"
#include "switchyard/quant_dtype.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Scales, or an object that only the user's own experts understand, kept alive by its own deleter
/// (vLLM: the PrecisionConfig of Triton kernels). Absent by default.
using ScaleSource = std::variant<TensorView, std::shared_ptr<void>>;

/// Options that only some formats and experts use.
struct QuantExtras {
  bool is_scale_swizzled = true;  ///< scales of nvfp4 and mxfp8 are in tiles (ScaleLayout)
  /// @{ Of the activation of GPT-OSS; the experts read them.
  std::optional<float> gemm1_alpha{};
  std::optional<float> gemm1_beta{};
  std::optional<float> gemm1_clamp_limit{};
  /// @}
  /// quantize_input pads mxfp8 rows to a multiple of it; classes refuse other H. 0: no padding.
  std::int32_t mx_alignment = 0;
  /// How fp8 block scales of activations are stored. kF32PowerOfTwo and kE8M0Packed (UE8M0) require
  /// blocks of 128 columns.
  ScaleFormat scale_format = ScaleFormat::kF32;
};

/// Arguments of QuantConfig's builders. Each takes those that docs/configuration.md lists for it
/// and refuses others: they keep their default.
struct QuantOptions {
  std::optional<QuantDType> quant_dtype{};  ///< of activations; absent: none, ocp_mx: mxfp4
  bool per_act_token_quant = false;         ///< one scale per row
  bool per_out_ch_quant = false;            ///< weights: one scale per output channel
  /// Cannot be combined with either flag. Integer weights: {0, g} is groups along the input only,
  /// and -1 the full extent.
  std::optional<BlockShape> block_shape{};
  ScaleSource w1_scale{};  ///< of the first GEMM's weights, gate and up
  ScaleSource w2_scale{};  ///< of the second GEMM's weights, down
  TensorView a1_scale{};   ///< static scales; absent: dynamic
  TensorView a2_scale{};   ///< likewise, of the second GEMM's input
  TensorView g1_alphas{};  ///< nvfp4: global; int4 with fp8: per channel; fp8: w_scale * a_scale
  TensorView g2_alphas{};  ///< likewise, of the second GEMM
  TensorView a1_gscale{};  ///< 1 / a1_scale
  TensorView a2_gscale{};  ///< 1 / a2_scale
  TensorView w1_bias{};    ///< added to the first GEMM's output
  TensorView w2_bias{};    ///< added to the second GEMM's output
  TensorView w1_zp{};      ///< zero points of int4 and int8 weights
  TensorView w2_zp{};      ///< likewise
  std::optional<QuantDType> weight_dtype{};  ///< absent: quant_dtype
  std::int32_t weight_bits = 4;              ///< gptq_marlin: 4 or 8
  std::int32_t group_size = -1;              ///< gptq_marlin: inputs that share a scale; -1: all
  QuantExtras extras{};                      ///< what only some formats and experts use
};

}  // namespace switchyard
