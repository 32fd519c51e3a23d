// SPDX-License-Identifier: Apache-2.0

#include "moe/expert_checks.h"

#include <string>

#include "core/bytes.h"
#include "core/fail.h"
#include "cpu/weights.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

using Shape3 = std::int64_t[3];

bool has_shape(const TensorView& tensor, const Shape3& shape) {
  return tensor.has_value() && tensor.num_dims() == 3 && tensor.shape(0) == shape[0] &&
         tensor.shape(1) == shape[1] && tensor.shape(2) == shape[2];
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kE4M3;
}

// One of the three weights with its scales.
void check_weight(const char* function, const char* name, const TensorView& values,
                  const TensorView& scales, const Shape3& shape) {
  require(has_shape(values, shape), Errc::kInvalidArgument, "{}: {} is {}, want [{}, {}, {}]",
          function, name, values.describe(), shape[0], shape[1], shape[2]);
  require(is_weight_dtype(values.dtype()), Errc::kInvalidArgument,
          "{}: {} is {}, want bf16, f16, f32 or e4m3", function, name, name_of(values.dtype()));
  if (values.dtype() != DType::kE4M3) {
    require(!scales.has_value(), Errc::kInvalidArgument,
            "{}: {}_scale is {}, but {} is {}, want it absent", function, name, scales.describe(),
            name, name_of(values.dtype()));
    return;
  }
  const Shape3 blocks = {shape[0], cdiv(shape[1], kWeightBlock), cdiv(shape[2], kWeightBlock)};
  require(has_shape(scales, blocks) && scales.dtype() == DType::kF32, Errc::kInvalidArgument,
          "{}: {}_scale is {}, want f32 [{}, {}, {}] for e4m3 {}", function, name,
          scales.describe(), blocks[0], blocks[1], blocks[2], name);
}

bool is_row_major(const TensorView& tensor) {
  return tensor.num_dims() == 2 && (tensor.shape(1) == 1 || tensor.stride(1) == 1);
}

void check_rows(const ExpertShape& shape, const ExpertRows& input) {
  check_scheme("apply", input.scheme);
  const DType dtype = input.scheme.is_quantized() ? input.scheme.dtype : DType::kBF16;
  require(input.rows.has_value() && is_row_major(input.rows) &&
              input.rows.shape(1) == shape.hidden && input.rows.dtype() == dtype,
          Errc::kInvalidArgument, "apply: rows is {}, want {} [N, {}] with contiguous rows",
          input.rows.describe(), name_of(dtype), shape.hidden);
}

void check_scales(const ExpertShape& shape, const ExpertRows& input) {
  const TensorView& scales = input.scales;
  const std::int64_t num_rows = input.rows.shape(0);
  if (!input.scheme.is_quantized()) {
    require(!scales.has_value(), Errc::kInvalidArgument,
            "apply: scales is {}, but rows are not quantized; want it absent", scales.describe());
    return;
  }
  if (input.scheme.group == ScaleGroup::kTensor) {
    require(scales.has_value() && scales.dtype() == DType::kF32 && scales.num_elements() == 1,
            Errc::kInvalidArgument, "apply: scales is {}, want f32 [1]", scales.describe());
    return;
  }
  const bool is_packed = input.scheme.scale_format == ScaleFormat::kE8M0Packed;
  const DType dtype = is_packed ? DType::kI32 : DType::kF32;
  const std::int64_t per_row = num_scales(input.scheme, shape.hidden);
  require(scales.has_value() && scales.num_dims() == 2 && scales.dtype() == dtype &&
              scales.shape(0) == num_rows && scales.shape(1) == per_row,
          Errc::kInvalidArgument, "apply: scales is {}, want {} [{}, {}]", scales.describe(),
          name_of(dtype), num_rows, per_row);
}

void check_ranges(const ExpertShape& shape, const ExpertRows& input) {
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  require(input.first_row.size() == num_experts && input.num_rows.size() == num_experts,
          Errc::kInvalidArgument,
          "apply: first_row has {} entries and num_rows {}, want {} each, one for each expert",
          input.first_row.size(), input.num_rows.size(), num_experts);
  const std::int64_t total = input.rows.shape(0);
  for (std::size_t e = 0; e < num_experts; ++e) {
    const std::int64_t first = input.first_row[e];
    const std::int64_t count = input.num_rows[e];
    if (count == 0) continue;  // where an expert without rows would start is nobody's business
    require(count > 0 && first >= 0 && first <= total && count <= total - first,
            Errc::kInvalidArgument,
            "apply: expert {} has {} rows from row {}, but the buffer has {} rows", e, count, first,
            total);
  }
}

}  // namespace

ExpertShape check_weights(const char* function, const ExpertWeights& weights) {
  require(weights.gate.has_value() && weights.gate.num_dims() == 3, Errc::kInvalidArgument,
          "{}: gate is {}, want [experts, intermediate, hidden]", function,
          weights.gate.describe());
  const ExpertShape shape{weights.gate.shape(0), weights.gate.shape(2), weights.gate.shape(1)};
  require(shape.hidden > 0 && shape.intermediate > 0, Errc::kInvalidArgument,
          "{}: gate is {}, want at least 1 intermediate and 1 hidden element", function,
          weights.gate.describe());
  const Shape3 first = {shape.num_experts, shape.intermediate, shape.hidden};
  const Shape3 second = {shape.num_experts, shape.hidden, shape.intermediate};
  check_weight(function, "gate", weights.gate, weights.gate_scale, first);
  check_weight(function, "up", weights.up, weights.up_scale, first);
  check_weight(function, "down", weights.down, weights.down_scale, second);
  return shape;
}

void check_options(const char* function, const ExpertOptions& options) {
  const QuantScheme& scheme = options.intermediate;
  check_scheme(function, scheme);
  require(scheme.is_quantized() || scheme.dtype == DType::kBF16, Errc::kInvalidArgument,
          "{}: intermediate is {}, want bf16 or a quantized scheme", function, name_of(scheme));
}

void check_apply(const ExpertShape& shape, const ExpertRows& input, const TensorView& output,
                 std::size_t workspace_bytes, std::size_t needed_bytes) {
  check_rows(shape, input);
  check_scales(shape, input);
  check_ranges(shape, input);
  require(output.has_value() && is_row_major(output) && output.dtype() == DType::kBF16 &&
              output.shape(0) == input.rows.shape(0) && output.shape(1) == shape.hidden,
          Errc::kInvalidArgument, "apply: output is {}, want bf16 [{}, {}] with contiguous rows",
          output.describe(), input.rows.shape(0), shape.hidden);
  require(workspace_bytes >= needed_bytes, Errc::kWorkspaceTooSmall,
          "apply: workspace has {} bytes, needs {}; ask workspace_bytes()", workspace_bytes,
          needed_bytes);
}

}  // namespace switchyard
