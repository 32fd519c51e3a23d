// SPDX-License-Identifier: Apache-2.0
//
// scale_plane.h: a common interface to all scale layouts. A plane holds the scales of rows that are
// laid out together: a [N, S] view, the tiles of a swizzled one, or one expert of their batched
// forms. A row consists of quads of four scales; within a quad, scales are `step` apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/tensor.h"

#include "quant/scale_layout.h"

namespace switchyard {

struct ScalePlane {
  std::byte* data = nullptr;
  std::int64_t element_bytes = 0;
  std::int64_t num_rows = 0;    ///< with padding if swizzled
  std::int64_t num_scales = 0;  ///< per row, with padding if swizzled
  std::int64_t row_stride = 0;
  std::int64_t quad_stride = 0;
  std::int64_t step = 0;
  bool is_swizzled = false;

  /// Element of scale 0 of row n.
  std::int64_t row(std::int64_t n) const {
    if (!is_swizzled) return n * row_stride;
    return ScaleGeometry{ScaleLayout::kSwizzled, num_rows, num_scales}.index(n, 0);
  }
};

bool is_swizzled(const TensorView& scales);
bool is_batched(const TensorView& scales);

/// Refuses views that are not 2-D, 3-D, 5-D or 6-D views of scale_layout.h.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_scale_view(const char* function, const char* name, const TensorView& scales);

/// The num_experts of scales that are not batched.
inline constexpr std::int64_t kNoExperts = -1;

/// Refuses anything but scales of `dtype`: [num_rows, num_scales], or num_experts of those.
void check_scales_for(const char* function, const TensorView& scales, DType dtype,
                      std::int64_t num_experts, std::int64_t num_rows, std::int64_t num_scales);

/// Plane `expert` of a view that passed check_scale_view.
ScalePlane plane_of(const TensorView& scales, std::int64_t expert = 0);

/// A plane of one row of contiguous scales.
ScalePlane plane_of_row(void* scales, std::int64_t num_scales, std::int64_t element_bytes);

/// Copies `num_scales` scales of row `from_row`.
void copy_scale_row(const ScalePlane& from, std::int64_t from_row, const ScalePlane& to,
                    std::int64_t to_row, std::int64_t num_scales);

/// Fills with zeros, including the padding of tiles.
void clear_scales(const ScalePlane& plane);

}  // namespace switchyard
