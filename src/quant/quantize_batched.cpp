// SPDX-License-Identifier: Apache-2.0
//
// quantize_batched.cpp: calls quantize or dequantize once per expert. Swizzled scales are row-major
// there and moved behind or before; they are a small part of what is written and read.

#include "switchyard/quantize_batched.h"

#include "switchyard/scale_layout.h"

#include "quant/host_quantize.h"
#include "quant/quantize_checks.h"
#include "quant/scale_plane.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr const char* kQuantizeBatched = "quantize_batched";

TensorView static_scale_of(const TensorView& scale, std::int64_t e) {
  if (!scale.has_value()) return {};
  return TensorView::of(scale.as<float>() + (scale.num_elements() == 1 ? 0 : e), {1});
}

// The scales of the first rows of an expert, in the form that quantize accepts.
TensorView scales_of(const TensorView& scales, const QuantScheme& scheme, std::int64_t e,
                     std::int64_t num_rows) {
  if (!scales.has_value()) return {};
  const ScalePlane plane = plane_of(scales, e);
  if (scheme.group == ScaleGroup::kTensor) return TensorView(plane.data, scales.dtype(), {1});
  return TensorView(plane.data, scales.dtype(), {num_rows, plane.num_scales},
                    {plane.row_stride, plane.step});
}

// An expert's rows of a contiguous batch.
TensorView rows_of(const TensorView& batch, std::int64_t e) {
  const std::int64_t num_elements = batch.shape(1) * batch.shape(2);
  return TensorView(batch.as<std::byte>() + e * num_elements * bits_of(batch.dtype()) / 8,
                    batch.dtype(), {batch.shape(1), batch.shape(2)});
}

}  // namespace

namespace host {

void dequantize_batched(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                        const TensorView& y, const TensorView& tensor_scale) {
  const BatchRows rows = check_dequantize_batched(q, scales, scheme, y, tensor_scale);
  for (std::int64_t e = 0; scheme.needs_tensor_scale() && e < tensor_scale.num_elements(); ++e) {
    check_global_value("dequantize", "tensor_scale", static_scale_of(tensor_scale, e), scheme);
  }
  const bool has_scales = stores_scales(scheme);
  Tensor linear;
  if (has_scales && is_swizzled(scales)) {
    linear =
        Tensor(scales.dtype(), {rows.num_experts, rows.capacity, num_scales(scheme, rows.hidden)});
    relayout_scales(scales, linear);
  }
  const TensorView from = linear.view().has_value() ? linear.view() : scales;
  for (std::int64_t e = 0; e < rows.num_experts && rows.capacity > 0; ++e) {
    TensorView of_expert;
    if (has_scales) {
      of_expert = from.num_elements() == 1 && scheme.group == ScaleGroup::kTensor
                      ? from
                      : scales_of(from, scheme, e, rows.capacity);
    }
    dequantize(rows_of(q, e), of_expert, scheme, rows_of(y, e), static_scale_of(tensor_scale, e));
  }
}

void quantize_batched(const TensorView& x, const TensorView& counts, const QuantScheme& scheme,
                      const TensorView& q, const TensorView& scales,
                      const TensorView& static_scale) {
  const BatchRows rows = check_quantize_batched(x, counts, scheme, q, scales, static_scale);
  check_counts(kQuantizeBatched, rows);
  const std::int64_t width = num_scales(scheme, rows.hidden);
  const std::size_t q_row_bytes = row_bytes(scheme, rows.hidden, x.dtype());
  Tensor linear;
  if (is_swizzled(scales)) linear = Tensor(scales.dtype(), {1, rows.capacity, width});
  for (std::int64_t e = 0; e < rows.num_experts; ++e) {
    const std::int64_t n = rows.num_rows(e);
    if (scales.has_value()) clear_scales(plane_of(scales, e));
    if (n == 0) continue;
    const TensorView x_rows(rows.row(e, 0), x.dtype(), {n, rows.hidden}, {x.stride(1), 1});
    const TensorView q_rows(
        q.as<std::byte>() + q_row_bytes * static_cast<std::size_t>(e * rows.capacity), q.dtype(),
        {n, rows.hidden});
    const bool is_moved = is_swizzled(scales);
    const TensorView target =
        is_moved ? scales_of(linear, scheme, 0, n) : scales_of(scales, scheme, e, n);
    quantize(x_rows, scheme, q_rows, target, static_scale_of(static_scale, e));
    for (std::int64_t t = 0; is_moved && t < n; ++t) {
      copy_scale_row(plane_of(linear), t, plane_of(scales, e), t, width);
    }
  }
}

}  // namespace host
}  // namespace switchyard
