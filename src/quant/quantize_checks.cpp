// SPDX-License-Identifier: Apache-2.0

#include "quant/quantize_checks.h"

#include <cmath>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "quant/scale_plane.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr const char* kBatched = "quantize_batched";

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

// Checks that x is a matrix with contiguous rows.
QuantRows check_matrix(const char* function, const char* name, const TensorView& x) {
  require(x.has_value() && x.num_dims() == 2, Errc::kInvalidArgument,
          "{}: {} is {}, must be 2 dimensions", function, name, x.describe());
  require(has_contiguous_rows(x), Errc::kInvalidArgument, "{}: {} is {}, must be contiguous rows",
          function, name, x.describe());
  return {x.shape(0), x.shape(1)};
}

void check_float(const char* function, const char* name, const TensorView& x) {
  require(is_float(x.dtype()), Errc::kInvalidArgument, "{}: {} is {}, must be bf16, f16 or f32",
          function, name, x.describe());
}

void check_codes(const char* function, const TensorView& q, DType dtype, const QuantRows& rows) {
  const TensorView want(nullptr, dtype, {rows.num_rows, rows.hidden});
  require(q.has_value() && q.dtype() == dtype && q.num_dims() == 2 && q.shape(0) == rows.num_rows &&
              q.shape(1) == rows.hidden && q.is_contiguous(),
          Errc::kInvalidArgument, "{}: q is {}, must be contiguous {}", function, q.describe(),
          want.describe());
}

void check_scales(const char* function, const TensorView& scales, const QuantScheme& scheme,
                  const QuantRows& rows) {
  if (!stores_scales(scheme)) return;
  const DType dtype = scale_dtype(scheme);
  if (scheme.group == ScaleGroup::kTensor) {
    require(scales.has_value() && scales.dtype() == dtype && scales.num_elements() == 1,
            Errc::kInvalidArgument, "{}: scales is {}, must be f32 [1]", function,
            scales.describe());
    return;
  }
  const TensorView want(nullptr, dtype, {rows.num_rows, num_scales(scheme, rows.hidden)});
  require(scales.has_value() && scales.dtype() == dtype && scales.num_dims() == 2 &&
              scales.shape(0) == want.shape(0) && scales.shape(1) == want.shape(1),
          Errc::kInvalidArgument, "{}: scales is {}, must be {} for {}", function,
          scales.describe(), want.describe(), name_of(scheme));
}

void check_global_scale(const char* function, const char* name, const TensorView& scale,
                        const QuantScheme& scheme) {
  if (!scheme.needs_tensor_scale()) return;
  require(scale.has_value() && scale.dtype() == DType::kF32 && scale.num_elements() == 1,
          Errc::kInvalidArgument, "{}: {} is {}, must be f32 [1], the global scale of {}", function,
          name, scale.describe(), name_of(scheme));
}

void check_static_scale(const TensorView& scale, const QuantScheme& scheme, const QuantRows& rows) {
  check_global_scale("quantize", "static_scale", scale, scheme);
  if (!scale.has_value() || scheme.needs_tensor_scale()) return;
  if (is_fp8_token(scheme)) {
    const TensorView want(nullptr, DType::kF32, {rows.num_rows, 1});
    require(scale.dtype() == DType::kF32 && scale.num_dims() == 2 &&
                scale.shape(0) == rows.num_rows && scale.shape(1) == 1,
            Errc::kInvalidArgument, "quantize: static_scale is {}, must be {}", scale.describe(),
            want.describe());
    return;
  }
  require(
      scheme.group == ScaleGroup::kTensor, Errc::kInvalidArgument,
      "quantize: static_scale is given for {}, must be one scale per tensor, fp8_token or nvfp4",
      name_of(scheme));
  require(scale.dtype() == DType::kF32 && scale.num_elements() == 1, Errc::kInvalidArgument,
          "quantize: static_scale is {}, must be f32 [1]", scale.describe());
}

void check_scale_ub(std::optional<float> scale_ub, const QuantScheme& scheme,
                    const TensorView& static_scale) {
  if (!scale_ub.has_value()) return;
  require(is_fp8_token(scheme) && !static_scale.has_value(), Errc::kInvalidArgument,
          "quantize: scale_ub is given for {}, must be fp8_token without static_scale",
          name_of(scheme));
  require(*scale_ub > 0.0f, Errc::kInvalidArgument, "quantize: scale_ub is {}, must be above 0",
          *scale_ub);
}

// One scale, or one of each expert.
bool is_scale_of_batch(const TensorView& scale, std::int64_t num_experts) {
  return scale.dtype() == DType::kF32 && scale.is_contiguous() &&
         (scale.num_elements() == 1 || (scale.num_dims() == 1 && scale.shape(0) == num_experts));
}

void check_batch_static_scale(const TensorView& scale, const QuantScheme& scheme,
                              std::int64_t num_experts) {
  if (!scale.has_value()) {
    require(!scheme.needs_tensor_scale(), Errc::kInvalidArgument,
            "{}: static_scale is absent, must be the scale of the tensor for {}", kBatched,
            name_of(scheme));
    return;
  }
  require(scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale(),
          Errc::kInvalidArgument, "{}: static_scale is given, must be absent for {}", kBatched,
          name_of(scheme));
  require(is_scale_of_batch(scale, num_experts), Errc::kInvalidArgument,
          "{}: static_scale is {}, must be f32 [1] or [{}]", kBatched, scale.describe(),
          num_experts);
}

void check_fused(const char* name, const QuantScheme& scheme) {
  require(scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kBlock &&
              scheme.rule == ScaleRule::kDivide,
          Errc::kInvalidArgument, "{}: kFused with scheme {}, must be e4m3 blocks of rule kDivide",
          name, name_of(scheme));
}

void check_tensor_scale(const char* name, const QuantScheme& scheme, const TensorView& scale) {
  const bool is_wanted = scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
  require(scale.has_value() == is_wanted, Errc::kInvalidArgument,
          "{}: tensor_scale is {}, must be {} for {}", name, scale.describe(),
          is_wanted ? "f32 [1]" : "none", name_of(scheme));
  if (!is_wanted) return;
  require(scale.dtype() == DType::kF32 && scale.num_elements() == 1, Errc::kInvalidArgument,
          "{}: tensor_scale is {}, must be f32 [1]", name, scale.describe());
}

}  // namespace

float check_global_value(const char* function, const char* name, const TensorView& scale,
                         const QuantScheme& scheme) {
  if (!scheme.needs_tensor_scale()) return 1.0f;
  const float value = *scale.as<float>();
  check_scale_value(function, name, value);
  return value;
}

void check_scale_value(const char* function, const char* name, float value) {
  require(value > 0.0f && std::isfinite(value), Errc::kInvalidArgument,
          "{}: {} is {}, must be a positive number", function, name, value);
}

bool stores_scales(const QuantScheme& scheme) {
  return scheme.is_quantized() && !scheme.is_simulated();
}

bool is_fp8_token(const QuantScheme& scheme) {
  return scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kToken;
}

QuantRows check_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                         const TensorView& scales, const TensorView& static_scale,
                         std::optional<float> scale_ub) {
  check_scheme("quantize", scheme);
  const QuantRows rows = check_matrix("quantize", "x", x);
  check_hidden("quantize", scheme, rows.hidden);
  check_float("quantize", "x", x);
  check_codes("quantize", q, stored_dtype(scheme, x.dtype()), rows);
  check_scales("quantize", scales, scheme, rows);
  check_static_scale(static_scale, scheme, rows);
  check_scale_ub(scale_ub, scheme, static_scale);
  return rows;
}

QuantRows check_dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                           const TensorView& y, const TensorView& tensor_scale) {
  check_scheme("dequantize", scheme);
  const QuantRows rows = check_matrix("dequantize", "y", y);
  check_hidden("dequantize", scheme, rows.hidden);
  check_float("dequantize", "y", y);
  if (scheme.is_simulated()) check_float("dequantize", "q", q);
  check_codes("dequantize", q, stored_dtype(scheme, q.dtype()), rows);
  check_scales("dequantize", scales, scheme, rows);
  check_global_scale("dequantize", "tensor_scale", tensor_scale, scheme);
  return rows;
}

BatchRows check_dequantize_batched(const TensorView& q, const TensorView& scales,
                                   const QuantScheme& scheme, const TensorView& y,
                                   const TensorView& tensor_scale) {
  constexpr const char* kName = "dequantize";
  check_scheme(kName, scheme);
  require(y.num_dims() == 3 && y.is_contiguous(), Errc::kInvalidArgument,
          "{}: y is {}, must be contiguous [L, C, H]", kName, y.describe());
  const BatchRows rows{y, y.shape(0), y.shape(1), y.shape(2)};
  check_hidden(kName, scheme, rows.hidden);
  check_float(kName, "y", y);
  if (scheme.is_simulated()) check_float(kName, "q", q);
  check_batch_codes(kName, q, stored_dtype(scheme, q.dtype()), rows, rows.hidden);
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const bool is_one = is_tensor && scales.dtype() == DType::kF32 && scales.num_elements() == 1;
  if (stores_scales(scheme) && !is_one) {
    check_scales_for(kName, scales, scale_dtype(scheme), rows.num_experts,
                     is_tensor ? 1 : rows.capacity, num_scales(scheme, rows.hidden));
  }
  if (scheme.needs_tensor_scale()) {
    require(tensor_scale.has_value() && is_scale_of_batch(tensor_scale, rows.num_experts),
            Errc::kInvalidArgument, "{}: tensor_scale is {}, must be f32 [1] or [{}]", kName,
            tensor_scale.describe(), rows.num_experts);
  }
  return rows;
}

BatchRows check_quantize_batched(const TensorView& x, const TensorView& counts,
                                 const QuantScheme& scheme, const TensorView& q,
                                 const TensorView& scales, const TensorView& static_scale) {
  check_scheme(kBatched, scheme);
  const BatchRows rows = check_batch_rows(kBatched, x, counts);
  const std::int64_t width = num_scales(scheme, rows.hidden);
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  check_batch_codes(kBatched, q, stored_dtype(scheme, x.dtype()), rows, rows.hidden);
  if (scales.has_value() || (scheme.is_quantized() && !scheme.is_simulated())) {
    check_scales_for(kBatched, scales, scale_dtype(scheme), rows.num_experts,
                     is_tensor ? 1 : rows.capacity, width);
  }
  check_batch_static_scale(static_scale, scheme, rows.num_experts);
  return rows;
}

void check_silu_mul_quantize(const char* function, const BatchRows& rows, const QuantScheme& scheme,
                             const TensorView& q, const TensorView& scales,
                             ActivationScale activation_scale, const TensorView& tensor_scale) {
  check_scheme(function, scheme);
  require(!scheme.is_simulated(), Errc::kInvalidArgument,
          "{}: scheme is {}, must be one with a memory format", function, name_of(scheme));
  if (activation_scale == ActivationScale::kFused) check_fused(function, scheme);
  require(rows.hidden % 2 == 0, Errc::kInvalidArgument,
          "{}: x has rows of {} elements, must have an even number: gate, then up", function,
          rows.hidden);
  const std::int64_t intermediate = rows.hidden / 2;
  check_batch_codes(function, q, scheme.dtype, rows, intermediate);
  check_tensor_scale(function, scheme, tensor_scale);
  // A tensor scale is given by the caller, so it is not stored.
  const bool has_scales = scheme.is_quantized() && scheme.group != ScaleGroup::kTensor;
  require(has_scales || !scales.has_value(), Errc::kInvalidArgument,
          "{}: scales is {}, must be absent for {}", function, scales.describe(), name_of(scheme));
  if (has_scales) {
    const bool is_batch = rows.x.num_dims() == 3;
    check_scales_for(function, scales, scale_dtype(scheme),
                     is_batch ? rows.num_experts : kNoExperts, rows.capacity,
                     num_scales(scheme, intermediate));
  }
}

}  // namespace switchyard
