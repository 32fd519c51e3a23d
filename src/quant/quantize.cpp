// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: the public functions check their arguments, then process row by row through rows.h.
// For strided scale columns, the scales of a row are built in a contiguous scratch row.

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "quant/host_quantize.h"
#include "quant/quantize_checks.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Of a matrix without columns, rows count only where each has scales.
QuantRows rows_with_work(const QuantRows& rows, const QuantScheme& scheme) {
  const bool has_scales = has_row_scales(scheme) && num_scales(scheme, rows.hidden) > 0;
  return rows.hidden > 0 || has_scales ? rows : QuantRows{0, 0};
}

std::byte* row_of(const TensorView& x, std::int64_t t) {
  return x.as<std::byte>() + t * x.stride(0) * bits_of(x.dtype()) / 8;
}

// The scales of one row, contiguous: in the caller's memory, or in a copy of strided columns.
class ScaleRow {
 public:
  ScaleRow(const TensorView& scales, const QuantScheme& scheme) : base_(scales.as<std::byte>()) {
    if (!stores_scales(scheme) || scheme.group == ScaleGroup::kTensor) return;
    scale_bytes_ = static_cast<std::size_t>(bits_of(scales.dtype()) / 8);
    const auto bytes = static_cast<std::int64_t>(scale_bytes_);
    row_stride_ = bytes * scales.stride(0);
    column_stride_ = bytes * scales.stride(1);
    const bool is_strided = scales.shape(1) > 1 && scales.stride(1) != 1;
    if (is_strided) scratch_.resize(static_cast<std::size_t>(bytes * scales.shape(1)));
  }

  // Where to write the scales of row t.
  void* target(std::int64_t t) {
    return scratch_.empty() ? base_ + t * row_stride_ : scratch_.data();
  }

  // Copies them to the caller's memory.
  void finish(std::int64_t t) {
    for_each_scale(
        t, [this](std::byte* theirs, std::byte* ours) { std::memcpy(theirs, ours, scale_bytes_); });
  }

  const void* source(std::int64_t t) {
    for_each_scale(
        t, [this](std::byte* theirs, std::byte* ours) { std::memcpy(ours, theirs, scale_bytes_); });
    return target(t);
  }

 private:
  template <typename Visit>
  void for_each_scale(std::int64_t t, Visit visit) {
    std::byte* theirs = base_ + t * row_stride_;
    for (std::size_t at = 0; at < scratch_.size(); at += scale_bytes_, theirs += column_stride_) {
      visit(theirs, scratch_.data() + at);
    }
  }

  std::byte* base_;
  std::size_t scale_bytes_ = 0;
  std::int64_t row_stride_ = 0;
  std::int64_t column_stride_ = 0;
  std::vector<std::byte> scratch_;
};

float scale_of_tensor(const TensorView& x, const QuantRows& rows, DType dtype) {
  float amax = 0.0f;
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    amax = std::max(amax, max_magnitude(row_of(x, t), x.dtype(), rows.hidden));
  }
  return tensor_scale(amax, dtype);
}

// The tensor scale, given or computed, or the global scale of nvfp4; 1 for other schemes.
float whole_scale(const TensorView& x, const QuantRows& rows, const QuantScheme& scheme,
                  const TensorView& static_scale) {
  if (scheme.group == ScaleGroup::kTensor && !static_scale.has_value()) {
    return scale_of_tensor(x, rows, scheme.dtype);
  }
  const bool is_used = scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
  return is_used ? *static_scale.as<float>() : 1.0f;
}

// One row of fp8_token whose scale does not follow from its largest magnitude alone.
void quantize_token(const void* x, DType dtype, std::int64_t hidden, const TensorView& static_scale,
                    std::int64_t t, std::optional<float> scale_ub, std::byte* q, float* scale) {
  if (static_scale.has_value()) {
    *scale = static_scale.as<float>()[t * static_scale.stride(0)];
    quantize_row(schemes::kFp8Tensor, x, dtype, hidden, q, nullptr, *scale);
    return;
  }
  const ScaleAndMap row = token_rule(std::min(max_magnitude(x, dtype, hidden), *scale_ub));
  scalar::encode(x, dtype, 0, hidden, row.map, reinterpret_cast<std::uint8_t*>(q));
  *scale = row.scale;
}

}  // namespace

namespace host {

void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
              const TensorView& scales, const TensorView& static_scale,
              std::optional<float> scale_ub) {
  const QuantRows rows =
      rows_with_work(check_quantize(x, scheme, q, scales, static_scale, scale_ub), scheme);
  check_global_value("quantize", "static_scale", static_scale, scheme);
  const float whole = whole_scale(x, rows, scheme, static_scale);
  if (scheme.group == ScaleGroup::kTensor) *scales.as<float>() = whole;
  const bool is_token = is_fp8_token(scheme) && (static_scale.has_value() || scale_ub);
  ScaleRow scale_row(scales, scheme);
  const std::size_t bytes = row_bytes(scheme, rows.hidden, x.dtype());
  std::byte* codes = q.as<std::byte>();
  for (std::int64_t t = 0; t < rows.num_rows; ++t, codes += bytes) {
    if (is_token) {
      quantize_token(row_of(x, t), x.dtype(), rows.hidden, static_scale, t, scale_ub, codes,
                     static_cast<float*>(scale_row.target(t)));
      continue;
    }
    quantize_row(scheme, row_of(x, t), x.dtype(), rows.hidden, codes, scale_row.target(t), whole);
    scale_row.finish(t);
  }
}

void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                const TensorView& y, const TensorView& tensor_scale) {
  if (y.num_dims() == 3) return dequantize_batched(q, scales, scheme, y, tensor_scale);
  const QuantRows rows =
      rows_with_work(check_dequantize(q, scales, scheme, y, tensor_scale), scheme);
  const float global = check_global_value("dequantize", "tensor_scale", tensor_scale, scheme);
  const float whole = scheme.group == ScaleGroup::kTensor ? *scales.as<float>() : global;
  ScaleRow scale_row(scales, scheme);
  const bool is_plain = !stores_scales(scheme);
  std::vector<float> wide(is_plain ? 0 : static_cast<std::size_t>(rows.hidden));
  const QuantScheme output{y.dtype()};
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    if (is_plain) {
      quantize_row(output, row_of(q, t), q.dtype(), rows.hidden, row_of(y, t), nullptr);
      continue;
    }
    dequantize_row(scheme, row_of(q, t), scale_row.source(t), q.dtype(), rows.hidden, wide.data(),
                   whole);
    quantize_row(output, wide.data(), DType::kF32, rows.hidden, row_of(y, t), nullptr);
  }
}

}  // namespace host
}  // namespace switchyard
