// SPDX-License-Identifier: Apache-2.0
//
// scale_layout.h: scales in memory: how much a layout takes, views of it, and the way from one
// layout to another. docs/scale_layouts.md says which consumer wants which.
//
// Letters used for shapes in this header:
//   N  rows     S  scales per row     L  experts of a batch     C  rows of each (capacity)
//
// Shapes of the views, up(a, b) being a rounded up to a multiple of b:
//   layout                 rows [N, S]                          batch [L, C, S]
//   kRowMajor              strides (S, 1)                       strides (C * S, S, 1)
//   kColumnMajor           strides (1, N)                       strides (S * C, 1, C)
//   kColumnMajorAligned    strides (1, up(N, 4))                strides (up(C, 4) * S, 1, up(C, 4))
//   kSwizzled              [up(N, 128) / 128, cdiv(S, 4),       [L, ...] of the same
//                           32, 4, 4], contiguous
// Every function below that takes scales accepts any 2-D or 3-D strides and these 5-D and 6-D
// tiles. Padding has no place in the 2-D and 3-D views: memory of make_scales is zero there.
#pragma once

#include <cstdint>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Elements of memory that the scales of N rows take, padding included; a batch takes L times that
/// of C rows.
///
/// Errors: kInvalidArgument (negative size, overflow), also in the views below.
SWITCHYARD_API std::int64_t num_scale_elements(ScaleLayout layout, std::int64_t num_rows,
                                               std::int64_t num_scales);

/// The view of `data`, which has num_scale_elements elements of `dtype`.
SWITCHYARD_API TensorView view_scales(const void* data, DType dtype, ScaleLayout layout,
                                      std::int64_t num_rows, std::int64_t num_scales,
                                      Device device = Device::cpu());
SWITCHYARD_API TensorView view_batched_scales(const void* data, DType dtype, ScaleLayout layout,
                                              std::int64_t num_experts, std::int64_t capacity,
                                              std::int64_t num_scales,
                                              Device device = Device::cpu());

/// Zero-filled memory of a layout, and the view of it.
struct OwnedScales {
  Tensor memory;  ///< flat
  TensorView view;
};
SWITCHYARD_API OwnedScales make_scales(DType dtype, ScaleLayout layout, std::int64_t num_rows,
                                       std::int64_t num_scales, Device device = Device::cpu());
SWITCHYARD_API OwnedScales make_batched_scales(DType dtype, ScaleLayout layout,
                                               std::int64_t num_experts, std::int64_t capacity,
                                               std::int64_t num_scales,
                                               Device device = Device::cpu());

/// Copies scales from one layout to another. Rows or tiles on either side; tiles may belong to more
/// rows and scales than the other side has: from tiles the excess is cropped, to tiles it becomes
/// 0.
///
///   from, to    elements of 1, 2 or 4 bytes, as wide as each other; must not overlap
///
/// Errors: kInvalidArgument (shape, dtype); nothing was written then.
SWITCHYARD_API void relayout_scales(const TensorView& from, const TensorView& to);

/// Rows to tiles of 128 x 4: a permutation, and zeros as padding.
///
///   scales   [N, S] or [L, N, S], elements of 1 or 2 bytes
///   returns  flat, L * up(N, 128) * up(S, 4) elements
///
/// Mirrors FlashInfer's nvfp4_block_scale_interleave.
SWITCHYARD_API Tensor swizzle_scales(const TensorView& scales);

/// The inverse: [num_rows, num_scales] from contiguous tiles of any shape (flat, 2-D, 5-D).
/// Mirrors vLLM's convert_swizzled_to_linear.
///
/// Errors: kInvalidArgument when `tiles` has not up(num_rows, 128) * up(num_scales, 4) elements.
SWITCHYARD_API Tensor unswizzle_scales(const TensorView& tiles, std::int64_t num_rows,
                                       std::int64_t num_scales);

/// Power-of-two scales to exponent bytes, four to a word: scale 4p + j is byte j of word p, the
/// least significant byte being 0. Bytes of missing scales are 0.
///
///   scales   [N, S] or [L, C, S]: f32, or e8m0 (u8) bytes. f32 0 becomes 0, Inf and NaN 255
///   words    i32 [N, cdiv(S, 4)] or [L, C, cdiv(S, 4)]
///
/// Errors: kInvalidArgument (shape, dtype, an f32 scale that is no power of two); nothing was
/// written then. Mirrors the packing of DeepGEMM's UE8M0 scales.
SWITCHYARD_API void pack_ue8m0(const TensorView& scales, const TensorView& words);

/// The inverse. Byte 255 becomes NaN in f32, byte 0 is 2^-127.
SWITCHYARD_API void unpack_ue8m0(const TensorView& words, const TensorView& scales);

/// Scales as a matrix: absent stays absent, one element becomes [1, 1], any other shape
/// [rows, last]. The result shares the memory. Mirrors vLLM's function of the same name.
///
/// Errors: kInvalidArgument when more than 2 dimensions are not contiguous.
SWITCHYARD_API TensorView normalize_scales_shape(const TensorView& scales);

/// Scales of a batch: absent or 3 and more dimensions stay; one element becomes [L, 1, 1] with
/// strides 0, so that all experts share it; any other shape [L, rows / L, last].
///
/// Errors: kInvalidArgument when L is below 1 or does not divide the rows.
SWITCHYARD_API TensorView normalize_batched_scales_shape(const TensorView& scales,
                                                         std::int64_t num_experts);

}  // namespace switchyard
