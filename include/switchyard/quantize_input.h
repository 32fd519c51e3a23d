// SPDX-License-Identifier: Apache-2.0
//
// quantize_input.h: what a Mixture-of-Experts layer does to its input before the experts. One call
// turns the options of a configuration into values and scales. Mirrors vLLM's
// moe_kernel_quantize_input, including which options may be combined.
//
// Letters used for shapes in this header:
//   M  rows     H  elements per row     S  scales per row
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

/// Options under vLLM's names.
struct QuantizeInputConfig {
  /// "none" (or empty), "fp8_e4m3", "int8", "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8",
  /// or "fp8": activations of weight-only OCP schemes, rounded through fp8 and kept in their dtype.
  std::string quant_dtype = "none";
  bool per_act_token_quant = false;  ///< one scale per row
  /// Rows and columns of a block; activations use the columns.
  std::optional<std::array<std::int64_t, 2>> block_shape;
  bool is_scale_swizzled = true;        ///< nvfp4 and mxfp8: tiles of 128 x 4 instead of rows
  std::string ocp_mx_scheme;            ///< for example "w_mxfp4_a_fp8"; empty: none
  bool quantization_emulation = false;  ///< mxfp4 and mxfp6 require it: they are only simulated
  std::int64_t mx_alignment = 0;  ///< mxfp8: pads H with zeros to a multiple of it; 0: no padding
};

/// Values and their scales. Each view refers to the memory beside it or, where nothing was created,
/// to the caller's tensor, which must then outlive this object.
struct QuantizedInput {
  TensorView values;     ///< of the rows
  TensorView scales;     ///< absent when there are none
  Tensor values_memory;  ///< owns `values`, where they were made
  Tensor scales_memory;  ///< owns `scales`, likewise
};

/// Quantizes `x` [M, H] (bf16, f16 or f32, rows contiguous; for "none" any tensor) by the table of
/// docs/scale_layouts.md.
///
/// `scale` is f32: the static scale of fp8_e4m3 ([1], [M, 1], or [M, S] where S divides H), of int8
/// and fp8 ([1]), or the global scale of nvfp4 ([1], required). As in vLLM, it is ignored where
/// scales are computed per block, and for int8 per token. A static scale is returned as the scales.
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
/// Errors: kInvalidArgument when the options contradict each other; the message names the rule.
SWITCHYARD_API QuantizedInput quantize_input(const TensorView& x, const TensorView& scale,
                                             const QuantizeInputConfig& config);

/// The same for a scheme, with its scales in `layout` (kSwizzled: one-byte scales only).
/// `static_scale` is f32: [1] for kTensor, [M, 1] for fp8_token, [1] and required for nvfp4. With
/// kColumnMajorAligned, columns have up(M, 4) rows: values_memory and scales_memory then have as
/// many, zero-filled beyond M. With schemes::kFp8Ue8m0 this is vLLM's
/// per_token_group_quant_fp8_packed_for_deepgemm. Simulated schemes round as fake_quantize does.
SWITCHYARD_API QuantizedInput quantize_input(const TensorView& x, const QuantScheme& scheme,
                                             ScaleLayout layout = ScaleLayout::kRowMajor,
                                             const TensorView& static_scale = {});

/// Rounds `x` [M, H] to what `scheme` can represent: quantizes, then dequantizes.
///
///   y             [M, H], dtype of x, contiguous; written
///   static_scale  f32: [1] for kTensor, [M, 1] for fp8_token, [1] and required for nvfp4
///
/// Errors: kInvalidArgument (scheme, shape, dtype, scale).
SWITCHYARD_API void fake_quantize(const TensorView& x, const QuantScheme& scheme,
                                  const TensorView& y, const TensorView& static_scale = {});

}  // namespace switchyard
