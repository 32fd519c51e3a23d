// SPDX-License-Identifier: Apache-2.0
//
// quantize_input.h: what a Mixture-of-Experts layer does to its input before the experts: one call
// from the options of a configuration to values and scales. Mirrors vLLM's
// moe_kernel_quantize_input, with its table of which options go together.
//
// Letters used for shapes in this header:
//   M  rows     H  elements of a row     S  scales of a row
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Options as vLLM names them.
struct QuantizeInputConfig {
  /// "none" (or empty), "fp8_e4m3", "int8", "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8",
  /// or "fp8": activations of weight-only OCP schemes, rounded through fp8 and kept in their dtype.
  std::string quant_dtype = "none";
  bool per_act_token_quant = false;
  /// Rows and columns of a block; the columns count for activations.
  std::optional<std::array<std::int64_t, 2>> block_shape;
  bool is_scale_swizzled = true;        ///< nvfp4 and mxfp8: tiles of 128 x 4 instead of rows
  std::string ocp_mx_scheme;            ///< for example "w_mxfp4_a_fp8"; empty: none
  bool quantization_emulation = false;  ///< mxfp4 and mxfp6 want it: they are only simulated here
  std::int64_t mx_alignment = 0;        ///< mxfp8: H is padded with zeros to a multiple; 0: not
};

/// Values and their scales. The views are of the memory beside them, or of what the caller gave
/// where nothing new was made; that must outlive them then.
struct QuantizedInput {
  TensorView values;
  TensorView scales;  ///< absent when there are none
  Tensor values_memory;
  Tensor scales_memory;
};

/// Quantizes `x` [M, H] (bf16, f16 or f32, rows contiguous; none: any tensor) by the table of
/// docs/scale_layouts.md.
///
/// `scale`, f32, is the static scale of fp8_e4m3 ([1], [M, 1], or [M, S] where S divides H), int8
/// and fp8 ([1]), or nvfp4's global scale ([1], mandatory); where the scales are taken per block,
/// or per token of int8, it is ignored, as in vLLM. A static scale is returned as the scales.
///
///   option                          values                       scales
///   none                            x                            scale
///   fp8_e4m3, scale given           [M, H] e4m3                  scale
///   fp8_e4m3, int8                  [M, H]                       [1] f32
///    .. and per_act_token_quant     [M, H]                       [M, 1] f32
///    .. and block_shape             [M, H]                       [M, cdiv(H, block)] f32
///   nvfp4                           [M, H] e2m1, packed          e4m3 [M, cdiv(H, 16)], or tiles
///   mxfp8                           [M, up(H, mx_alignment)]     e8m0 [M, cdiv(.., 32)], or tiles
///   mxfp4, mxfp6, fp8               [M, H] in x's dtype          none
///
/// Errors: kInvalidArgument, when the options contradict each other: the message names the rule.
SWITCHYARD_API QuantizedInput quantize_input(const TensorView& x, const TensorView& scale,
                                             const QuantizeInputConfig& config);

/// The same for a scheme, with its scales in `layout` (kSwizzled: one-byte scales). `static_scale`
/// is that of quantize. Columns of kColumnMajorAligned belong to up(M, 4) rows: values_memory then
/// has as many, zero-filled, and so have the scales. With schemes::kFp8Ue8m0 this is vLLM's
/// per_token_group_quant_fp8_packed_for_deepgemm. Simulated schemes are as fake_quantize.
SWITCHYARD_API QuantizedInput quantize_input(const TensorView& x, const QuantScheme& scheme,
                                             ScaleLayout layout = ScaleLayout::kRowMajor,
                                             const TensorView& static_scale = {});

/// Rounds `x` [M, H] to what `scheme` can hold and back: quantize, then dequantize.
///
///   y             [M, H], dtype of x, contiguous; written
///   static_scale  that of quantize
///
/// Errors: kInvalidArgument, as quantize.
SWITCHYARD_API void fake_quantize(const TensorView& x, const QuantScheme& scheme,
                                  const TensorView& y, const TensorView& static_scale = {});

}  // namespace switchyard
