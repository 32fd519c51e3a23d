// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: the public calls: refusals first, then row by row through rows.h. Scales of a row
// are made in a contiguous scratch row when the caller's columns are strided.

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bytes.h"
#include "core/fail.h"
#include "quant/fp8.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
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

void check_codes(const char* function, const TensorView& q, const QuantScheme& scheme,
                 const Rows& rows) {
  const TensorView want(nullptr, scheme.dtype, {rows.num_rows, rows.hidden});
  require(q.has_value() && q.dtype() == scheme.dtype && q.num_dims() == 2 &&
              q.shape(0) == rows.num_rows && q.shape(1) == rows.hidden && q.is_contiguous(),
          Errc::kInvalidArgument, "{}: q is {}, want contiguous {}", function, q.describe(),
          want.describe());
}

void check_scales(const char* function, const TensorView& scales, const QuantScheme& scheme,
                  const Rows& rows) {
  if (!scheme.is_quantized()) return;
  const bool is_packed = scheme.scale_format == ScaleFormat::kE8M0Packed;
  const DType dtype = is_packed ? DType::kI32 : DType::kF32;
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

const std::byte* row_of(const TensorView& x, std::int64_t t) {
  return x.as<std::byte>() + t * x.stride(0) * (bits_of(x.dtype()) / 8);
}

// Scales of one row as 4-byte words side by side: the caller's memory, or a copy of strided
// columns.
class ScaleRow {
 public:
  ScaleRow(const TensorView& scales, const QuantScheme& scheme) : base_(scales.as<std::byte>()) {
    if (!scheme.is_quantized() || scheme.group == ScaleGroup::kTensor) return;
    row_stride_ = kWordBytes * scales.stride(0);
    column_stride_ = kWordBytes * scales.stride(1);
    const bool is_strided = scales.shape(1) > 1 && scales.stride(1) != 1;
    if (is_strided) scratch_.resize(static_cast<std::size_t>(kWordBytes * scales.shape(1)));
  }

  // Where the words of row t are written.
  void* target(std::int64_t t) {
    return scratch_.empty() ? base_ + t * row_stride_ : scratch_.data();
  }

  // Brings them to the caller's memory.
  void finish(std::int64_t t) {
    for_each_word(
        t, [](std::byte* theirs, std::byte* ours) { std::memcpy(theirs, ours, kWordBytes); });
  }

  const void* source(std::int64_t t) {
    for_each_word(
        t, [](std::byte* theirs, std::byte* ours) { std::memcpy(ours, theirs, kWordBytes); });
    return target(t);
  }

 private:
  static constexpr std::int64_t kWordBytes = 4;

  template <typename Visit>
  void for_each_word(std::int64_t t, Visit visit) {
    const auto count = static_cast<std::int64_t>(scratch_.size()) / kWordBytes;
    std::byte* theirs = base_ + t * row_stride_;
    for (std::int64_t b = 0; b < count; ++b, theirs += column_stride_) {
      visit(theirs, scratch_.data() + b * kWordBytes);
    }
  }

  std::byte* base_;
  std::int64_t row_stride_ = 0;
  std::int64_t column_stride_ = 0;
  std::vector<std::byte> scratch_;
};

float scale_of_tensor(const TensorView& x, const Rows& rows) {
  float amax = 0.0f;
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    amax = std::max(amax, max_magnitude(row_of(x, t), x.dtype(), rows.hidden));
  }
  return tensor_scale(amax);
}

float tensor_scale_of(const TensorView& scales, const QuantScheme& scheme) {
  return scheme.group == ScaleGroup::kTensor ? *scales.as<float>() : 1.0f;
}

void check_static_scale(const TensorView& static_scale, const QuantScheme& scheme) {
  if (!static_scale.has_value()) return;
  require(scheme.group == ScaleGroup::kTensor, Errc::kInvalidArgument,
          "quantize: static_scale is given for {}, want one scale a tensor", name_of(scheme));
  require(static_scale.dtype() == DType::kF32 && static_scale.num_elements() == 1,
          Errc::kInvalidArgument, "quantize: static_scale is {}, want f32 [1]",
          static_scale.describe());
}

}  // namespace

void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
              const TensorView& scales, const TensorView& static_scale) {
  check_scheme("quantize", scheme);
  const Rows rows = check_matrix("quantize", "x", x);
  check_float("quantize", "x", x);
  check_codes("quantize", q, scheme, rows);
  check_scales("quantize", scales, scheme, rows);
  check_static_scale(static_scale, scheme);
  if (scheme.group == ScaleGroup::kTensor) {
    *scales.as<float>() =
        static_scale.has_value() ? *static_scale.as<float>() : scale_of_tensor(x, rows);
  }
  ScaleRow scale_row(scales, scheme);
  std::byte* codes = q.as<std::byte>();
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    quantize_row(scheme, row_of(x, t), x.dtype(), rows.hidden, codes, scale_row.target(t),
                 tensor_scale_of(scales, scheme));
    scale_row.finish(t);
    codes += rows.hidden * (bits_of(scheme.dtype) / 8);
  }
}

void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                const TensorView& y) {
  check_scheme("dequantize", scheme);
  const Rows rows = check_matrix("dequantize", "y", y);
  check_float("dequantize", "y", y);
  check_codes("dequantize", q, scheme, rows);
  check_scales("dequantize", scales, scheme, rows);
  ScaleRow scale_row(scales, scheme);
  std::vector<float> wide(static_cast<std::size_t>(rows.hidden));
  const QuantScheme output{y.dtype()};
  for (std::int64_t t = 0; t < rows.num_rows; ++t) {
    auto* row = const_cast<std::byte*>(row_of(y, t));
    if (!scheme.is_quantized()) {
      quantize_row(output, row_of(q, t), q.dtype(), rows.hidden, row, nullptr);
      continue;
    }
    dequantize_row(scheme, row_of(q, t), scale_row.source(t), q.dtype(), rows.hidden, wide.data(),
                   tensor_scale_of(scales, scheme));
    quantize_row(output, wide.data(), DType::kF32, rows.hidden, row, nullptr);
  }
}

}  // namespace switchyard
