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

/// Arguments of QuantConfig::make.
struct MakeQuantOptions {
  QuantDType quant_dtype = QuantDType::kNone;  ///< of activations
  bool per_act_token_quant = false;            ///< one scale per row
  bool per_out_ch_quant = false;               ///< weights: one scale per output channel
  std::optional<BlockShape> block_shape{};     ///< cannot be combined with either flag
  ScaleSource w1_scale{};                      ///< of the first GEMM's weights, gate and up
  ScaleSource w2_scale{};                      ///< of the second GEMM's weights, down
  TensorView a1_scale{};                       ///< static scales; absent: dynamic
  TensorView a2_scale{};                       ///< likewise, of the second GEMM's input
  TensorView g1_alphas{};  ///< nvfp4: global; int4 with fp8: per channel; fp8: w_scale * a_scale
  TensorView g2_alphas{};  ///< likewise, of the second GEMM
  TensorView a1_gscale{};  ///< 1 / a1_scale
  TensorView a2_gscale{};  ///< 1 / a2_scale
  TensorView w1_bias{};    ///< added to the first GEMM's output
  TensorView w2_bias{};    ///< added to the second GEMM's output
  TensorView w1_zp{};      ///< zero points of int4 and int8 weights
  TensorView w2_zp{};      ///< likewise
  std::optional<QuantDType> weight_dtype{};  ///< absent: quant_dtype
  QuantExtras extras{};                      ///< what only some formats and experts use
};

/// Arguments of QuantConfig::fp8_w8a8.
struct Fp8W8A8Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView a1_scale{};
  TensorView a2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  bool per_act_token_quant = false;
  bool per_out_ch_quant = false;
  std::optional<BlockShape> block_shape{};
  TensorView a1_gscale{};
  TensorView a2_gscale{};
  TensorView g1_alphas{};
  TensorView g2_alphas{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::int8_w8a8.
struct Int8W8A8Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView a1_scale{};
  TensorView a2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  bool per_act_token_quant = false;
  /// @}
};

/// Unquantized activations: mxfp4_w4a16 (no block) and fp8_w8a16.
struct WeightOnlyOptions {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  std::optional<BlockShape> block_shape{};
  QuantExtras extras{};
  /// @}
};

/// int4_w4a16 and int8_w8a16. The block may be {0, g}: groups along the input only; -1
/// is the full extent.
struct IntWeightOptions {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView w1_zp{};
  TensorView w2_zp{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  std::optional<BlockShape> block_shape{};
  TensorView a1_gscale{};
  TensorView a2_gscale{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::ocp_mx.
struct OcpMxOptions {
  QuantDType quant_dtype = QuantDType::kMxfp4;  ///< one of the OCP set
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  std::optional<QuantDType> weight_dtype{};
  TensorView a1_scale{};
  TensorView a2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  std::optional<BlockShape> block_shape{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::nvfp4.
struct Nvfp4Options {
  /// @{ As in MakeQuantOptions.
  TensorView g1_alphas{};
  TensorView g2_alphas{};
  TensorView a1_gscale{};
  TensorView a2_gscale{};
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::nvfp4_w4a16.
struct Nvfp4W4A16Options {
  /// @{ As in MakeQuantOptions.
  TensorView g1_alphas{};
  TensorView g2_alphas{};
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::biased.
struct BiasedOptions {
  /// @{ As in MakeQuantOptions.
  TensorView w1_bias{};
  TensorView w2_bias{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::gptq_marlin.
struct GptqMarlinOptions {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  /// @}
  std::int32_t weight_bits = 4;  ///< 4 or 8
  std::int32_t group_size = -1;  ///< inputs that share a scale; -1: all
  /// @{ As in MakeQuantOptions.
  TensorView w1_zp{};
  TensorView w2_zp{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  /// @}
};

/// Scales of mxfp8 activations are computed from the rows, so none can be given.
struct Mxfp4Mxfp8Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::mxfp4_w4a8.
struct Mxfp4W4A8Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView a1_scale{};
  TensorView a2_scale{};
  TensorView w1_bias{};
  TensorView w2_bias{};
  QuantExtras extras{};
  /// @}
};

/// Arguments of QuantConfig::mxfp4.
struct Mxfp4Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  /// @}
};

/// Arguments of QuantConfig::int4_w4afp8.
struct Int4W4AFp8Options {
  /// @{ As in MakeQuantOptions.
  ScaleSource w1_scale{};
  ScaleSource w2_scale{};
  TensorView g1_alphas{};
  TensorView g2_alphas{};
  bool per_act_token_quant = false;
  bool per_out_ch_quant = false;
  std::optional<BlockShape> block_shape{};
  /// @}
};

}  // namespace switchyard
