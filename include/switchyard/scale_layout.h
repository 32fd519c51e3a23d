// SPDX-License-Identifier: Apache-2.0
//
// scale_layout.h: scales in memory: the size of each layout, views of it, and conversion between
// layouts. docs/scale_layouts.md says which consumer expects which.
//
// Letters used for shapes in this header:
//   N  rows     S  scales per row     L  experts of a batch     C  rows per expert (capacity)
//
// Shapes of the views, where up(a, b) is a rounded up to a multiple of b:
//   layout                 rows [N, S]                          batch [L, C, S]
//   kRowMajor              strides (S, 1)                       strides (C * S, S, 1)
//   kColumnMajor           strides (1, N)                       strides (S * C, 1, C)
//   kColumnMajorAligned    strides (1, up(N, 4))                strides (up(C, 4) * S, 1, up(C, 4))
//   kSwizzled              [up(N, 128) / 128, cdiv(S, 4),       [L, ...] of the same
//                           32, 4, 4], contiguous
// Every function below that takes scales accepts any 2-D or 3-D strides, and tiles in these 5-D and
// 6-D shapes. The 2-D and 3-D views exclude the padding, which is zero in memory of make_scales.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// @{ "row_major", "column_major", "column_major_aligned", "swizzled".
SWITCHYARD_API const char* name_of(ScaleLayout layout) noexcept;
SWITCHYARD_API std::optional<ScaleLayout> scale_layout_from_name(std::string_view name) noexcept;
/// @}

/// Elements of memory for the scales of N rows, padding included; a batch needs L times the
/// elements of C rows.
///
/// Errors: kInvalidArgument (negative size, overflow), also for the views below.
SWITCHYARD_API std::int64_t num_scale_elements(ScaleLayout layout, std::int64_t num_rows,
                                               std::int64_t num_scales);

/// A view of `data`, which holds num_scale_elements elements of `dtype`.
SWITCHYARD_API TensorView view_scales(const void* data, DType dtype, ScaleLayout layout,
                                      std::int64_t num_rows, std::int64_t num_scales,
                                      Device device = Device::cpu());
/// The same for a batch [L, C, S].
SWITCHYARD_API TensorView view_batched_scales(const void* data, DType dtype, ScaleLayout layout,
                                              std::int64_t num_experts, std::int64_t capacity,
                                              std::int64_t num_scales,
                                              Device device = Device::cpu());

/// Zero-filled memory of a layout, and a view of it.
struct OwnedScales {
  Tensor memory;    ///< flat
  TensorView view;  ///< in the layout
};
/// @{ Allocates the scales of rows, or of a batch. Errors: also kOutOfMemory.
SWITCHYARD_API OwnedScales make_scales(DType dtype, ScaleLayout layout, std::int64_t num_rows,
                                       std::int64_t num_scales, Device device = Device::cpu());
SWITCHYARD_API OwnedScales make_batched_scales(DType dtype, ScaleLayout layout,
                                               std::int64_t num_experts, std::int64_t capacity,
                                               std::int64_t num_scales,
                                               Device device = Device::cpu());
/// @}

/// Copies scales from one layout to another; either side may be rows or tiles. Tiles may have more
/// rows and scales than the other side: excess in `from` is cropped, excess in `to` becomes 0.
///
///   from, to    elements of 1, 2 or 4 bytes, the same size in both; must not overlap
///
/// Errors: kInvalidArgument (shape, dtype); nothing is written then.
SWITCHYARD_API void relayout_scales(const TensorView& from, const TensorView& to);

/// Rows to tiles of 128 x 4: a permutation with zeros as padding.
///
///   scales   [N, S] or [L, N, S], elements of 1 or 2 bytes
///   returns  flat, L * up(N, 128) * up(S, 4) elements
///
/// Mirrors FlashInfer's nvfp4_block_scale_interleave.
SWITCHYARD_API Tensor swizzle_scales(const TensorView& scales);

/// The inverse: [num_rows, num_scales] from contiguous tiles of any shape (flat, 2-D, 5-D). Mirrors
/// vLLM's convert_swizzled_to_linear.
///
/// Errors: kInvalidArgument unless `tiles` has up(num_rows, 128) * up(num_scales, 4) elements.
SWITCHYARD_API Tensor unswizzle_scales(const TensorView& tiles, std::int64_t num_rows,
                                       std::int64_t num_scales);

/// Converts power-of-two scales to exponent bytes, four per word: scale 4p + j is byte j of word p,
/// where byte 0 is the least significant. Bytes without a scale are 0.
///
///   scales   [N, S] or [L, C, S]: f32, or e8m0 (u8) bytes. f32 0 becomes 0, Inf and NaN become 255
///   words    i32 [N, cdiv(S, 4)] or [L, C, cdiv(S, 4)]
///
/// Errors: kInvalidArgument (shape, dtype, an f32 scale that is not a power of two); nothing is
/// written then.
/// Mirrors the packing of DeepGEMM's UE8M0 scales.
SWITCHYARD_API void pack_ue8m0(const TensorView& scales, const TensorView& words);

/// The inverse. As f32, byte 255 becomes NaN and byte 0 becomes 2^-127.
SWITCHYARD_API void unpack_ue8m0(const TensorView& words, const TensorView& scales);

/// Views scales as a matrix: an absent tensor stays absent, one element becomes [1, 1], any other
/// shape becomes [rows, last]. The result shares the memory. Mirrors vLLM's function of the same
/// name.
///
/// Errors: kInvalidArgument when a tensor of more than 2 dimensions is not contiguous.
SWITCHYARD_API TensorView normalize_scales_shape(const TensorView& scales);

/// Views the scales of a batch: an absent tensor and one of 3 or more dimensions stay as they are;
/// one element becomes [L, 1, 1] with strides 0, so that all experts share it; any other shape
/// becomes [L, rows / L, last].
///
/// Errors: kInvalidArgument when L is below 1 or does not divide the rows.
SWITCHYARD_API TensorView normalize_batched_scales_shape(const TensorView& scales,
                                                         std::int64_t num_experts);

}  // namespace switchyard
