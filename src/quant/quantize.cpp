// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: the public calls: refusals first, then row by row through rows.h. Scales of a row
// are made in a contiguous scratch row when the caller's columns are strided.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "core/bytes.h"
#include "core/fail.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

bool stores_scales(const QuantScheme& scheme) {
  return scheme.is_quantized() && !scheme.is_simulated();
}

bool is_fp8_token(const QuantScheme& scheme) {
  return scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kToken;
}

struct Rows {
  std::int64_t num_rows;
  std::int64_t hidden;
};

// A matrix of bf16, f16 or f32 whose rows are contiguous.
Rows check_matrix(const char* function, const char* name, const TensorView& x) {
  require(x.has_value() && x.num_dims() == 2, Errc::kInvalidArgument,
          "{}: {} is {}, want 2 dimensions", function, name, x.describe());
  require(x.shape(1) <= 1 || x.stride(1) == 1, Errc::kInvalidArgument,
          "{}: {} is {}, want contiguous rows", function, name, x.describe());
  return {x.shape(0), x.shape(1)};
}

void check_float(const char* function, const char* name, const TensorView& x) {
  require(is_float(x.dtype()), Errc::kInvalidArgument, "{}: {} is {}, want bf16, f16 or f32",
          function, name, x.describe());
}

void check_codes(const char* function, const TensorView& q, DType dtype, const Rows& rows) {
  const TensorView want(nullptr, dtype, {rows.num_rows, rows.hidden});
  require(q.has_value() && q.dtype() == dtype && q.num_dims() == 2 && q.shape(0) == rows.num_rows &&
              q.shape(1) == rows.hidden && q.is_contiguous(),
          Errc::kInvalidArgument, "{}: q is {}, want contiguous {}", function, q.describe(),
          want.describe());
}

void check_scales(const char* function, const TensorView& scales, const QuantScheme& scheme,
                  const Rows& rows) {
  if (!stores_scales(scheme)) return;
  const DType dtype = scale_dtype(scheme);
  if (scheme.group == ScaleGroup::kTensor) {
    require(scales.has_value() && scales.dtype() == dtype && scales.num_elements() == 1,
            Errc::kInvalidArgument, "{}: scales is {}, want f32 [1]", function, scales.describe());
    return;
  }
  const TensorView want(nullptr, dtype, {rows.num_rows, num_scales(scheme, rows.hidden)});
  require(scales.has_value() && scales.dtype() == dtype && scales.num_dims() == 2 &&
              scales.shape(0) == want.shape(0) && scales.shape(1) == want.shape(1),
          Errc::kInvalidArgument, "{}: scales is {}, want {} for {}", function, scales.describe(),
          want.describe(), name_of(scheme));
}

// The global scale of nvfp4, 1 for others.
float check_global_scale(const char* function, const char* name, const TensorView& scale,
                         const QuantScheme& scheme) {
  if (!scheme.needs_tensor_scale()) return 1.0f;
  require(scale.has_value() && scale.dtype() == DType::kF32 && scale.num_elements() == 1,
          Errc::kInvalidArgument, "{}: {} is {}, want f32 [1], the global scale of {}", function,
          name, scale.describe(), name_of(scheme));
  const float value = *scale.as<float>();
  require(value > 0.0f && std::isfinite(value), Errc::kInvalidArgument,
          "{}: {} is {}, want a positive number", function, name, value);
  return value;
}

std::byte* row_of(const TensorView& x, std::int64_t t) {
  return x.as<std::byte>() + t * x.stride(0) * bits_of(x.dtype()) / 8;
}

// Scales of one row side by side: the caller's memory, or a copy of strided columns.
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

  // Where the scales of row t are written.
  void* target(std::int64_t t) {
    return scratch_.empty() ? base_ + t * row_stride_ : scratch_.data();
  }

  // Brings them to the caller's memory.
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

float scale_of_tensor(const TensorView& x, const Rows& rows, DType dtype) {
  float amax = 0.0f;
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    amax = std::max(amax, max_magnitude(row_of(x, t), x.dtype(), rows.hidden));
  }
  return tensor_scale(amax, dtype);
}

// The scale that one scale a tensor, given or not, and nvfp4 quantize with.
float whole_scale(const TensorView& x, const Rows& rows, const QuantScheme& scheme,
                  const TensorView& static_scale) {
  if (scheme.group == ScaleGroup::kTensor && !static_scale.has_value()) {
    return scale_of_tensor(x, rows, scheme.dtype);
  }
  const bool is_used = scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
  return is_used ? *static_scale.as<float>() : 1.0f;
}

void check_static_scale(const TensorView& scale, const QuantScheme& scheme, const Rows& rows) {
  check_global_scale("quantize", "static_scale", scale, scheme);
  if (!scale.has_value() || scheme.needs_tensor_scale()) return;
  if (is_fp8_token(scheme)) {
    const TensorView want(nullptr, DType::kF32, {rows.num_rows, 1});
    require(scale.dtype() == DType::kF32 && scale.num_dims() == 2 &&
                scale.shape(0) == rows.num_rows && scale.shape(1) == 1,
            Errc::kInvalidArgument, "quantize: static_scale is {}, want {}", scale.describe(),
            want.describe());
    return;
  }
  require(scheme.group == ScaleGroup::kTensor, Errc::kInvalidArgument,
          "quantize: static_scale is given for {}, want one scale a tensor, fp8_token or nvfp4",
          name_of(scheme));
  require(scale.dtype() == DType::kF32 && scale.num_elements() == 1, Errc::kInvalidArgument,
          "quantize: static_scale is {}, want f32 [1]", scale.describe());
}

void check_scale_ub(std::optional<float> scale_ub, const QuantScheme& scheme,
                    const TensorView& static_scale) {
  if (!scale_ub.has_value()) return;
  require(is_fp8_token(scheme) && !static_scale.has_value(), Errc::kInvalidArgument,
          "quantize: scale_ub is given for {}, want fp8_token without static_scale",
          name_of(scheme));
  require(*scale_ub > 0.0f, Errc::kInvalidArgument, "quantize: scale_ub is {}, want above 0",
          *scale_ub);
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

void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
              const TensorView& scales, const TensorView& static_scale,
              std::optional<float> scale_ub) {
  check_scheme("quantize", scheme);
  const Rows rows = check_matrix("quantize", "x", x);
  check_hidden("quantize", scheme, rows.hidden);
  check_float("quantize", "x", x);
  check_codes("quantize", q, stored_dtype(scheme, x.dtype()), rows);
  check_scales("quantize", scales, scheme, rows);
  check_static_scale(static_scale, scheme, rows);
  check_scale_ub(scale_ub, scheme, static_scale);
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
  check_scheme("dequantize", scheme);
  const Rows rows = check_matrix("dequantize", "y", y);
  check_hidden("dequantize", scheme, rows.hidden);
  check_float("dequantize", "y", y);
  if (scheme.is_simulated()) check_float("dequantize", "q", q);
  check_codes("dequantize", q, stored_dtype(scheme, q.dtype()), rows);
  check_scales("dequantize", scales, scheme, rows);
  const float global = check_global_scale("dequantize", "tensor_scale", tensor_scale, scheme);
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

}  // namespace switchyard
