// SPDX-License-Identifier: Apache-2.0

#include "quant/scale_plane.h"

#include <algorithm>
#include <cstring>

#include "switchyard/scale_layout.h"

#include "core/fail.h"

namespace switchyard {
namespace {

template <std::int64_t kBytes>
void copy_row(const ScalePlane& from, std::int64_t from_row, const ScalePlane& to,
              std::int64_t to_row, std::int64_t num_scales) {
  const std::byte* source = from.data + kBytes * from.row(from_row);
  std::byte* target = to.data + kBytes * to.row(to_row);
  const bool are_dense = from.step == 1 && to.step == 1;
  for (std::int64_t s = 0; s < num_scales; s += ScaleGeometry::kTileScales) {
    const std::int64_t count = std::min(ScaleGeometry::kTileScales, num_scales - s);
    if (are_dense && count == ScaleGeometry::kTileScales) {
      std::memcpy(target, source, kBytes * ScaleGeometry::kTileScales);
    } else {
      for (std::int64_t j = 0; j < count; ++j) {
        std::memcpy(target + kBytes * j * to.step, source + kBytes * j * from.step, kBytes);
      }
    }
    // After the last quad, the pointers would leave the memory.
    if (s + ScaleGeometry::kTileScales < num_scales) {
      source += kBytes * from.quad_stride;
      target += kBytes * to.quad_stride;
    }
  }
}

void clear(std::byte* data, std::int64_t num_elements, std::int64_t element_bytes) {
  if (num_elements > 0)
    std::memset(data, 0, static_cast<std::size_t>(num_elements * element_bytes));
}

}  // namespace

bool is_swizzled(const TensorView& scales) { return scales.num_dims() >= 5; }

bool is_batched(const TensorView& scales) {
  return scales.num_dims() == 3 || scales.num_dims() == 6;
}

void check_scale_view(const char* function, const char* name, const TensorView& scales) {
  const int dims = scales.num_dims();
  require(dims == 2 || dims == 3 || dims == 5 || dims == 6, Errc::kInvalidArgument,
          "{}: {} is {}, must be 2 or 3 dimensions, or 5 or 6 of tiles", function, name,
          scales.describe());
  const int bits = bits_of(scales.dtype());
  require(bits == 8 || bits == 16 || bits == 32, Errc::kInvalidArgument,
          "{}: {} is {}, must be elements of 1, 2 or 4 bytes", function, name, scales.describe());
  if (!is_swizzled(scales)) return;
  require(scales.shape(dims - 3) == 32 && scales.shape(dims - 2) == 4 &&
              scales.shape(dims - 1) == 4 && scales.is_contiguous(),
          Errc::kInvalidArgument, "{}: {} is {}, must be contiguous tiles [.., .., 32, 4, 4]",
          function, name, scales.describe());
}

void check_scales_for(const char* function, const TensorView& scales, DType dtype,
                      std::int64_t num_experts, std::int64_t num_rows, std::int64_t num_scales) {
  const ScaleLayout layout = is_swizzled(scales) ? ScaleLayout::kSwizzled : ScaleLayout::kRowMajor;
  const TensorView want =
      num_experts != kNoExperts
          ? view_batched_scales(nullptr, dtype, layout, num_experts, num_rows, num_scales)
          : view_scales(nullptr, dtype, layout, num_rows, num_scales);
  bool fits = scales.dtype() == dtype && scales.num_dims() == want.num_dims();
  for (int dim = 0; fits && dim < want.num_dims(); ++dim) {
    fits = scales.shape(dim) == want.shape(dim);
  }
  require(fits, Errc::kInvalidArgument, "{}: scales is {}, must be {}", function, scales.describe(),
          want.describe());
  check_scale_view(function, "scales", scales);
  require(!is_swizzled(scales) || bits_of(dtype) == 8, Errc::kInvalidArgument,
          "{}: scales is {}, must be one-byte scales in tiles", function, scales.describe());
}

ScalePlane plane_of(const TensorView& scales, std::int64_t expert) {
  const int first = is_batched(scales) ? 1 : 0;
  ScalePlane plane;
  plane.element_bytes = bits_of(scales.dtype()) / 8;
  plane.data = scales.as<std::byte>();
  if (first == 1) plane.data += plane.element_bytes * expert * scales.stride(0);
  plane.is_swizzled = is_swizzled(scales);
  if (plane.is_swizzled) {
    plane.num_rows = scales.shape(first) * ScaleGeometry::kTileRows;
    plane.num_scales = scales.shape(first + 1) * ScaleGeometry::kTileScales;
    plane.quad_stride = ScaleGeometry::kTileElements;
    plane.step = 1;
  } else {
    plane.num_rows = scales.shape(first);
    plane.num_scales = scales.shape(first + 1);
    plane.row_stride = scales.stride(first);
    plane.step = scales.stride(first + 1);
    plane.quad_stride = ScaleGeometry::kTileScales * plane.step;
  }
  return plane;
}

ScalePlane plane_of_row(void* scales, std::int64_t num_scales, std::int64_t element_bytes) {
  return {static_cast<std::byte*>(scales),
          element_bytes,
          1,
          num_scales,
          0,
          ScaleGeometry::kTileScales,
          1,
          false};
}

void copy_scale_row(const ScalePlane& from, std::int64_t from_row, const ScalePlane& to,
                    std::int64_t to_row, std::int64_t num_scales) {
  switch (to.element_bytes) {
    case 1: return copy_row<1>(from, from_row, to, to_row, num_scales);
    case 2: return copy_row<2>(from, from_row, to, to_row, num_scales);
    default: return copy_row<4>(from, from_row, to, to_row, num_scales);
  }
}

void clear_scales(const ScalePlane& plane) {
  if (plane.num_scales == 0) return;
  const std::int64_t bytes = plane.element_bytes;
  if (plane.is_swizzled) return clear(plane.data, plane.num_rows * plane.num_scales, bytes);
  if (plane.step != 1 && plane.row_stride == 1) {
    for (std::int64_t s = 0; s < plane.num_scales; ++s) {
      clear(plane.data + bytes * s * plane.step, plane.num_rows, bytes);
    }
    return;
  }
  const std::int64_t run = plane.step == 1 ? plane.num_scales : 1;
  for (std::int64_t n = 0; n < plane.num_rows; ++n) {
    for (std::int64_t s = 0; s < plane.num_scales; s += run) {
      clear(plane.data + bytes * (n * plane.row_stride + s * plane.step), run, bytes);
    }
  }
}

}  // namespace switchyard
