// SPDX-License-Identifier: Apache-2.0
//
// quant_config.h: how the activations and weights of one MoE layer are quantized, as a checked
// value.
//
// A configuration has four descriptors, one each for the inputs and the weights of the two GEMMs,
// and is made by a named builder. Scales and biases are views: their memory must outlive the
// configuration.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/group_shape.h"
#include "switchyard/quant.h"
#include "switchyard/quant_config_options.h"
#include "switchyard/quant_dtype.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Group shapes of activations and weights.
struct QuantShapes {
  std::optional<GroupShape> activation;  ///< of a1 and a2; absent: not quantized
  std::optional<GroupShape> weight;      ///< of w1 and w2
};

/// The group shapes that the flags of QuantConfig::make stand for. A block is stored for both
/// sides, although activations use only its columns; per_out_ch_quant is stored as per token.
/// Mirrors vLLM's _quant_flags_to_group_shape.
///
/// Errors: kInvalidArgument (a block together with a flag, a block side below 1).
SWITCHYARD_API QuantShapes quant_flags_to_group_shape(QuantDType dtype, bool per_act_token_quant,
                                                      bool per_out_ch_quant,
                                                      const std::optional<BlockShape>& block_shape);

/// Describes one of a1, a2 (inputs of the first and second GEMM), w1 and w2 (their weights).
/// Mirrors vLLM's FusedMoEQuantDesc.
struct QuantDesc {
  QuantDType dtype = QuantDType::kNone;  ///< of the elements
  std::optional<GroupShape> shape;       ///< elements that share a scale; absent: none does
  ScaleSource scale;                     ///< scales, or an opaque precision object
  TensorView alpha_or_gscale;            ///< global scale (activations) or alpha (weights)
  TensorView zp;                         ///< zero points of int4 and int8 weights
  TensorView bias;                       ///< of weights: added to the GEMM's output
};

/// Mirrors vLLM's FusedMoEQuantConfig. Immutable; copies are cheap.
class SWITCHYARD_API QuantConfig {
 public:
  /// Not quantized.
  QuantConfig() = default;

  /// From descriptors, for combinations that no builder makes.
  ///
  /// Errors: kInvalidArgument (the two activations, or the two weights, differ in dtype or shape;
  /// an invalid shape; an activation dtype that is for weights only; extras that do not fit).
  QuantConfig(QuantDesc a1, QuantDesc a2, QuantDesc w1, QuantDesc w2,
              const QuantExtras& extras = {});

  /// Any pair. quant_dtype: none, fp8_e4m3, int8, nvfp4, mxfp4, mxfp6_*, mxfp8. weight_dtype: any
  /// of these or int4; absent: quant_dtype.
  static QuantConfig make(const QuantOptions& options);
  /// @{ One builder per pair of activations and weights; docs/configuration.md has the table. Each
  /// throws kInvalidArgument with a message that names the broken rule, or the option that it does
  /// not take.
  static QuantConfig unquantized();
  static QuantConfig fp8_w8a8(const QuantOptions& options);
  static QuantConfig int8_w8a8(const QuantOptions& options);
  static QuantConfig mxfp4_w4a16(const QuantOptions& options);
  static QuantConfig ocp_mx(const QuantOptions& options);
  static QuantConfig nvfp4(const QuantOptions& options);
  static QuantConfig int4_w4a16(const QuantOptions& options);
  static QuantConfig int8_w8a16(const QuantOptions& options);
  static QuantConfig biased(const QuantOptions& options);
  static QuantConfig gptq_marlin(const QuantOptions& options);
  static QuantConfig mxfp4_mxfp8(const QuantOptions& options);
  static QuantConfig mxfp4_w4a8(const QuantOptions& options);
  static QuantConfig mxfp4(const QuantOptions& options);
  static QuantConfig nvfp4_w4a16(const QuantOptions& options);
  static QuantConfig fp8_w8a16(const QuantOptions& options);
  static QuantConfig int4_w4afp8(const QuantOptions& options);
  /// @}

  /// @{ Inputs (a) and weights (w) of the first and the second GEMM.
  const QuantDesc& a1() const { return a1_; }
  const QuantDesc& a2() const { return a2_; }
  const QuantDesc& w1() const { return w1_; }
  const QuantDesc& w2() const { return w2_; }
  /// @}

  /// @{ As in vLLM: the dtypes and group shapes of activations and weights.
  QuantDType quant_dtype() const { return a1_.dtype; }
  QuantDType weight_quant_dtype() const { return w1_.dtype; }
  bool is_quantized() const { return quant_dtype() != QuantDType::kNone; }
  bool per_act_token_quant() const { return a1_.shape == group_shapes::kPerToken; }
  bool per_out_ch_quant() const { return w1_.shape == group_shapes::kPerToken; }
  bool is_per_tensor() const { return a1_.shape == group_shapes::kPerTensor; }
  /// @}
  /// Set when the shape of the activations is neither per tensor nor per token, even if activations
  /// are not quantized (int4_w4a16 with a block).
  std::optional<BlockShape> block_shape() const;
  bool is_block_quantized() const { return block_shape().has_value(); }  ///< as vLLM's

  /// @{ Absent when not given. Errors: kInvalidArgument when the field holds a precision object.
  TensorView a1_scale() const;
  TensorView a2_scale() const;
  TensorView w1_scale() const;
  TensorView w2_scale() const;
  /// @}
  /// @{ Null when not given. Errors: kInvalidArgument when the field holds scales.
  std::shared_ptr<void> w1_precision() const;
  std::shared_ptr<void> w2_precision() const;
  /// @}
  /// @{ As given to the builder; absent when not given.
  TensorView a1_gscale() const { return a1_.alpha_or_gscale; }
  TensorView a2_gscale() const { return a2_.alpha_or_gscale; }
  TensorView g1_alphas() const { return w1_.alpha_or_gscale; }
  TensorView g2_alphas() const { return w2_.alpha_or_gscale; }
  TensorView w1_zp() const { return w1_.zp; }
  TensorView w2_zp() const { return w2_.zp; }
  TensorView w1_bias() const { return w1_.bias; }
  TensorView w2_bias() const { return w2_.bias; }
  /// @}

  /// @{ See QuantExtras.
  const QuantExtras& extras() const { return extras_; }
  bool is_scale_swizzled() const { return extras_.is_scale_swizzled; }
  std::int32_t mx_alignment() const { return extras_.mx_alignment; }
  /// @}

  /// @{ As vLLM's predicates: which pair of activations (a) and weights (w) this is.
  bool use_fp8_w8a8() const { return has(QuantDType::kFp8E4M3); }
  bool use_int8_w8a8() const { return has(QuantDType::kInt8); }
  bool use_nvfp4_w4a4() const { return has(QuantDType::kNvfp4); }
  bool use_int8_w8a16() const { return has(QuantDType::kNone, QuantDType::kInt8); }
  bool use_fp8_w8a16() const { return has(QuantDType::kNone, QuantDType::kFp8E4M3); }
  bool use_int4_w4a16() const { return has(QuantDType::kNone, QuantDType::kInt4); }
  bool use_nvfp4_w4a16() const { return has(QuantDType::kNone, QuantDType::kNvfp4); }
  bool use_mxfp4_w4a16() const { return has(QuantDType::kNone, QuantDType::kMxfp4); }
  bool use_mxfp4_w4a4() const { return has(QuantDType::kMxfp4, QuantDType::kMxfp4); }
  bool use_mxfp4_w4a8() const { return has(QuantDType::kFp8, QuantDType::kMxfp4); }
  /// @}

  /// The OCP MX scheme of the two dtypes; absent for other pairs.
  std::optional<OcpMxScheme> ocp_mx_scheme() const {
    return switchyard::ocp_mx_scheme(a1_.dtype, w1_.dtype);
  }

  /// Part of the file name of tuned kernel configurations: "fp8_w8a8", "fp8_w8a16", "int8_w8a16",
  /// "int4_w4a16", or "float32" when in_dtype is f32; otherwise absent.
  std::optional<std::string> config_name(DType in_dtype) const;

  /// [rows, columns] of the scales of max_tokens rows; absent when activations are not quantized.
  /// Errors: kInvalidArgument for a negative size.
  std::optional<std::array<std::int64_t, 2>> scale_shape(std::int64_t max_tokens,
                                                         std::int64_t hidden) const;
  /// The same for a batch: [num_experts, rows, columns].
  std::optional<std::array<std::int64_t, 3>> batched_scale_shape(std::int64_t num_experts,
                                                                 std::int64_t max_tokens,
                                                                 std::int64_t hidden) const;

 private:
  bool has(QuantDType activation) const { return a1_.dtype == activation; }
  bool has(QuantDType activation, QuantDType weight) const {
    return a1_.dtype == activation && w1_.dtype == weight;
  }

  QuantDesc a1_;
  QuantDesc a2_;
  QuantDesc w1_;
  QuantDesc w2_;
  QuantExtras extras_;
};

/// The scheme by which Exchange and PrepareFinalize quantize rows of activations. Blocks use the
/// columns of the block shape. The format "fp8" (mxfp4_w4a8) means one fp8 scale for the tensor.
///
/// Errors: kNotSupported for mxfp8_e5m2 and mxint8, which have no quantizer.
SWITCHYARD_API QuantScheme activation_scheme(const QuantConfig& config);

/// File name of tuned kernel configurations, as in vLLM's fused_moe:
/// `E=8,N=14336,device_name=NVIDIA_H200`, then `,dtype=` and `,block_shape=[128,128]` where given,
/// then `.json`. Spaces in the device name become underscores, and a name that contains the token
/// H200 becomes NVIDIA_H200. A block with a side of 0 is omitted.
///
/// Errors: kInvalidArgument (num_experts or intermediate below 1, an empty device name).
SWITCHYARD_API std::string get_config_file_name(std::int64_t num_experts, std::int64_t intermediate,
                                                const std::optional<std::string>& config_name,
                                                const std::optional<BlockShape>& block_shape,
                                                const std::string& device_name);

}  // namespace switchyard
