// SPDX-License-Identifier: Apache-2.0
//
// scale_layout.cpp: sizes and views of scale layouts, and copies between them, one plane at a time.

#include "switchyard/scale_layout.h"

#include "core/bytes.h"
#include "core/enum_names.h"
#include "core/fail.h"
#include "core/require_device.h"
#include "quant/scale_plane.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTileRows = ScaleGeometry::kTileRows;
constexpr std::int64_t kQuad = ScaleGeometry::kTileScales;
constexpr std::int64_t kAlignedRows = 4;  // 16 bytes of f32 or packed words, as TMA requires

std::int64_t checked_align_up(std::int64_t value, std::int64_t alignment) {
  return checked_add(value, alignment - 1) / alignment * alignment;
}

void check_size(const char* name, std::int64_t size) {
  require(size >= 0, Errc::kInvalidArgument, "scales: {} is {}, must be at least 0", name, size);
}

// Elements from one column to the next.
std::int64_t column_stride(ScaleLayout layout, std::int64_t num_rows) {
  if (layout == ScaleLayout::kRowMajor) return 1;
  return layout == ScaleLayout::kColumnMajor ? num_rows : checked_align_up(num_rows, kAlignedRows);
}

std::int64_t row_stride(ScaleLayout layout, std::int64_t num_scales) {
  return layout == ScaleLayout::kRowMajor ? num_scales : 1;
}

OwnedScales own(DType dtype, std::int64_t num_elements, Device device) {
  OwnedScales scales;
  scales.memory = Tensor(dtype, {num_elements}, device);
  return scales;
}

std::int64_t num_planes(const TensorView& scales) {
  return is_batched(scales) ? scales.shape(0) : 1;
}

bool fits_in(std::int64_t size, std::int64_t padded, std::int64_t alignment) {
  return size <= padded && padded - size < alignment;
}

}  // namespace

std::int64_t num_scale_elements(ScaleLayout layout, std::int64_t num_rows,
                                std::int64_t num_scales) {
  check_size("num_rows", num_rows);
  require_enum("scales", layout);
  check_size("num_scales", num_scales);
  switch (layout) {
    case ScaleLayout::kRowMajor:
    case ScaleLayout::kColumnMajor: return checked_mul(num_rows, num_scales);
    case ScaleLayout::kColumnMajorAligned:
      return checked_mul(checked_align_up(num_rows, kAlignedRows), num_scales);
    case ScaleLayout::kSwizzled: break;
  }
  return checked_mul(checked_align_up(num_rows, kTileRows), checked_align_up(num_scales, kQuad));
}

TensorView view_scales(const void* data, DType dtype, ScaleLayout layout, std::int64_t num_rows,
                       std::int64_t num_scales, Device device) {
  const std::int64_t num_elements = num_scale_elements(layout, num_rows, num_scales);
  checked_mul(num_elements, std::int64_t{bits_of(dtype)});
  if (layout == ScaleLayout::kSwizzled) {
    return TensorView(data, dtype,
                      {checked_align_up(num_rows, kTileRows) / kTileRows,
                       checked_align_up(num_scales, kQuad) / kQuad, 32, 4, 4},
                      device);
  }
  return TensorView(data, dtype, {num_rows, num_scales},
                    {row_stride(layout, num_scales), column_stride(layout, num_rows)}, device);
}

TensorView view_batched_scales(const void* data, DType dtype, ScaleLayout layout,
                               std::int64_t num_experts, std::int64_t capacity,
                               std::int64_t num_scales, Device device) {
  check_size("num_experts", num_experts);
  const std::int64_t plane = num_scale_elements(layout, capacity, num_scales);
  checked_mul(checked_mul(plane, num_experts), std::int64_t{bits_of(dtype)});
  if (layout == ScaleLayout::kSwizzled) {
    return TensorView(data, dtype,
                      {num_experts, checked_align_up(capacity, kTileRows) / kTileRows,
                       checked_align_up(num_scales, kQuad) / kQuad, 32, 4, 4},
                      device);
  }
  return TensorView(data, dtype, {num_experts, capacity, num_scales},
                    {plane, row_stride(layout, num_scales), column_stride(layout, capacity)},
                    device);
}

OwnedScales make_scales(DType dtype, ScaleLayout layout, std::int64_t num_rows,
                        std::int64_t num_scales, Device device) {
  OwnedScales scales = own(dtype, num_scale_elements(layout, num_rows, num_scales), device);
  scales.view = view_scales(scales.memory.data(), dtype, layout, num_rows, num_scales, device);
  return scales;
}

OwnedScales make_batched_scales(DType dtype, ScaleLayout layout, std::int64_t num_experts,
                                std::int64_t capacity, std::int64_t num_scales, Device device) {
  check_size("num_experts", num_experts);
  OwnedScales scales = own(
      dtype, checked_mul(num_experts, num_scale_elements(layout, capacity, num_scales)), device);
  scales.view = view_batched_scales(scales.memory.data(), dtype, layout, num_experts, capacity,
                                    num_scales, device);
  return scales;
}

void relayout_scales(const TensorView& from, const TensorView& to) {
  require_host("relayout_scales", {{"from", from}, {"to", to}});
  check_scale_view("relayout_scales", "from", from);
  check_scale_view("relayout_scales", "to", to);
  const ScalePlane a = plane_of(from);
  const ScalePlane b = plane_of(to);
  const std::int64_t row_slack = a.is_swizzled != b.is_swizzled ? kTileRows : 1;
  const std::int64_t scale_slack = a.is_swizzled != b.is_swizzled ? kQuad : 1;
  const ScalePlane& small = a.is_swizzled ? b : a;
  const ScalePlane& large = a.is_swizzled ? a : b;
  require(is_batched(from) == is_batched(to) && num_planes(from) == num_planes(to) &&
              a.element_bytes == b.element_bytes &&
              fits_in(small.num_rows, large.num_rows, row_slack) &&
              fits_in(small.num_scales, large.num_scales, scale_slack),
          Errc::kInvalidArgument, "relayout_scales: to is {}, must be the rows and scales of {}",
          to.describe(), from.describe());
  const std::int64_t num_rows = small.num_scales == 0 ? 0 : small.num_rows;
  for (std::int64_t e = 0; e < num_planes(from); ++e) {
    const ScalePlane source = plane_of(from, e);
    const ScalePlane target = plane_of(to, e);
    if (target.is_swizzled) clear_scales(target);
    for (std::int64_t n = 0; n < num_rows; ++n) {
      copy_scale_row(source, n, target, n, small.num_scales);
    }
  }
}

Tensor swizzle_scales(const TensorView& scales) {
  require_host("swizzle_scales", {{"scales", scales}});
  check_scale_view("swizzle_scales", "scales", scales);
  require(!is_swizzled(scales) && bits_of(scales.dtype()) <= 16, Errc::kInvalidArgument,
          "swizzle_scales: scales is {}, must be rows of one or two bytes an element",
          scales.describe());
  const ScalePlane plane = plane_of(scales);
  constexpr ScaleLayout kTiles = ScaleLayout::kSwizzled;
  OwnedScales tiles = is_batched(scales)
                          ? make_batched_scales(scales.dtype(), kTiles, scales.shape(0),
                                                plane.num_rows, plane.num_scales)
                          : make_scales(scales.dtype(), kTiles, plane.num_rows, plane.num_scales);
  relayout_scales(scales, tiles.view);
  return std::move(tiles.memory);
}

Tensor unswizzle_scales(const TensorView& tiles, std::int64_t num_rows, std::int64_t num_scales) {
  require_host("unswizzle_scales", {{"tiles", tiles}});
  const std::int64_t want = num_scale_elements(ScaleLayout::kSwizzled, num_rows, num_scales);
  require(tiles.has_value() && tiles.is_contiguous() && tiles.num_elements() == want,
          Errc::kInvalidArgument,
          "unswizzle_scales: tiles is {}, must be {} contiguous elements for [{}, {}]",
          tiles.describe(), want, num_rows, num_scales);
  Tensor rows(tiles.dtype(), {num_rows, num_scales});
  relayout_scales(
      view_scales(tiles.data(), tiles.dtype(), ScaleLayout::kSwizzled, num_rows, num_scales), rows);
  return rows;
}

TensorView normalize_scales_shape(const TensorView& scales) {
  if (!scales.has_value()) return scales;
  const Device device = scales.device();
  if (scales.num_elements() == 1) return TensorView(scales.data(), scales.dtype(), {1, 1}, device);
  const int dims = scales.num_dims();
  if (dims == 2) return scales;
  if (dims == 1) {
    return TensorView(scales.data(), scales.dtype(), {1, scales.shape(0)}, {0, scales.stride(0)},
                      device);
  }
  require(scales.is_contiguous(), Errc::kInvalidArgument,
          "normalize_scales_shape: scales is {}, must be a contiguous tensor", scales.describe());
  std::int64_t num_rows = 1;
  for (int dim = 0; dim + 1 < dims; ++dim) num_rows *= scales.shape(dim);
  return TensorView(scales.data(), scales.dtype(), {num_rows, scales.shape(dims - 1)}, device);
}

TensorView normalize_batched_scales_shape(const TensorView& scales, std::int64_t num_experts) {
  if (!scales.has_value() || scales.num_dims() >= 3) return scales;
  require(num_experts >= 1, Errc::kInvalidArgument,
          "normalize_batched_scales_shape: num_experts is {}, must be at least 1", num_experts);
  if (scales.num_elements() == 1) {
    return TensorView(scales.data(), scales.dtype(), {num_experts, 1, 1}, {0, 0, 0},
                      scales.device());
  }
  const TensorView rows = normalize_scales_shape(scales);
  require(rows.shape(0) % num_experts == 0, Errc::kInvalidArgument,
          "normalize_batched_scales_shape: scales is {}, must be rows that {} experts divide",
          scales.describe(), num_experts);
  const std::int64_t capacity = rows.shape(0) / num_experts;
  return TensorView(rows.data(), rows.dtype(), {num_experts, capacity, rows.shape(1)},
                    {capacity * rows.stride(0), rows.stride(0), rows.stride(1)}, rows.device());
}

}  // namespace switchyard
