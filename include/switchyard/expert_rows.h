// SPDX-License-Identifier: Apache-2.0
//
// expert_rows.h: what dispatch hands to the experts.
//
// Letters: L local experts, N rows of the receive buffer, H elements per row, S scales per row.
#pragma once

#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Rows grouped by local expert; all tensors lie on one device. `batched` and `expanded` layouts
/// differ only in first_row: there is one code path for both. Row n of a buffer [B, R, ...] is row
/// n % R of block n / R: in the `batched` layout B = L and R is the capacity.
///
/// Shapes of scales, by their number of dimensions:
///   [N, S]                                    any strides
///   [B, R, S]                                 any strides: blocks laid out one by one
///   [cdiv(N, 128), cdiv(S, 4), 32, 4, 4]      kSwizzled, contiguous
///   [B, cdiv(R, 128), cdiv(S, 4), 32, 4, 4]   kSwizzled, contiguous
///   [1] or [L]                                one scale per tensor, or per expert
struct ExpertRows {
  TensorView rows;            ///< [N, H] or [B, R, H]; bf16, or as stored_dtype() says
  TensorView scales;          ///< see above; absent without scales
  QuantScheme scheme;         ///< how rows are quantized; kNone: bf16
  TensorView first_row;       ///< [L] i64: first row of each expert
  TensorView num_rows;        ///< [L] i32: valid rows of each expert; the others are undefined
  TensorView tensor_scale{};  ///< [1] or [L] f32: the global scale of nvfp4; else absent
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< only kSwizzled changes what is read
};

}  // namespace switchyard
