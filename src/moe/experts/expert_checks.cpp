// SPDX-License-Identifier: Apache-2.0

#include "moe/experts/expert_checks.h"

#include <cmath>
#include <string>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/enum_names.h"
#include "core/fail.h"
#include "core/require_device.h"
#include "moe/experts/expert_input.h"
#include "quant/quantize_checks.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

using Shape3 = std::int64_t[3];

bool has_shape(const TensorView& tensor, const Shape3& shape) {
  return tensor.has_value() && tensor.num_dims() == 3 && tensor.shape(0) == shape[0] &&
         tensor.shape(1) == shape[1] && tensor.shape(2) == shape[2];
}

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

bool is_scale_dtype(DType dtype) {
  return is_float(dtype) || dtype == DType::kE8M0 || dtype == DType::kE4M3;
}

struct NamedWeight {
  const char* function;
  const char* name;
  const WeightTensor& tensor;
};

// e2m1 packs two elements per byte, so each row must begin at a byte.
void check_packing(const NamedWeight& weight) {
  const TensorView& values = weight.tensor.values;
  if (values.dtype() != DType::kE2M1) return;
  require(
      values.shape(2) % 2 == 0 && values.stride(2) == 1 && values.stride(1) % 2 == 0 &&
          values.stride(0) % 2 == 0,
      Errc::kInvalidArgument,
      "{}: {} is {} with strides {}, {} and {}, must be an even number of inputs, even strides and "
      "pairs side by side",
      weight.function, weight.name, values.describe(), values.stride(0), values.stride(1),
      values.stride(2));
}

void check_weight_scales(const NamedWeight& weight) {
  const auto& [values, scales, block, alpha] = weight.tensor;
  const char* const name = weight.name;
  const char* const function = weight.function;
  if (!is_quantized_weight(values.dtype())) {
    require(!scales.has_value() && !alpha.has_value(), Errc::kInvalidArgument,
            "{}: {}_{} is {}, but {} is {}, must be absent", function, name,
            scales.has_value() ? "scale" : "alpha",
            scales.has_value() ? scales.describe() : alpha.describe(), name,
            name_of(values.dtype()));
    return;
  }
  require((block.outputs > 0 || block.outputs == -1) && (block.inputs > 0 || block.inputs == -1),
          Errc::kInvalidArgument, "{}: block is {} x {}, must be at least 1, or -1 for all",
          function, block.outputs, block.inputs);
  const Shape3 blocks = {values.shape(0), cdiv(values.shape(1), weight.tensor.block_outputs()),
                         cdiv(values.shape(2), weight.tensor.block_inputs())};
  require(has_shape(scales, blocks) && is_scale_dtype(scales.dtype()), Errc::kInvalidArgument,
          "{}: {}_scale is {}, must be [{}, {}, {}] of f32, bf16, f16, e8m0 or e4m3 for {} {}",
          function, name, scales.describe(), blocks[0], blocks[1], blocks[2],
          name_of(values.dtype()), name);
  require(!alpha.has_value() || (alpha.dtype() == DType::kF32 && alpha.num_dims() == 1 &&
                                 alpha.shape(0) == values.shape(0)),
          Errc::kInvalidArgument, "{}: {}_alpha is {}, must be f32 [{}]", function, name,
          alpha.describe(), values.shape(0));
}

// Checks one of the three weights and its scales.
void check_weight(const NamedWeight& weight, const Shape3& shape) {
  const TensorView& values = weight.tensor.values;
  require(has_shape(values, shape), Errc::kInvalidArgument, "{}: {} is {}, must be [{}, {}, {}]",
          weight.function, weight.name, values.describe(), shape[0], shape[1], shape[2]);
  require(is_float(values.dtype()) || is_quantized_weight(values.dtype()), Errc::kInvalidArgument,
          "{}: {} is {}, must be bf16, f16, f32, e4m3, i8 or e2m1", weight.function, weight.name,
          name_of(values.dtype()));
  check_packing(weight);
  check_weight_scales(weight);
}

void check_bias(const char* function, const char* name, const TensorView& bias,
                std::int64_t num_experts, std::int64_t width) {
  if (!bias.has_value()) return;
  require(bias.num_dims() == 2 && bias.shape(0) == num_experts && bias.shape(1) == width &&
              is_float(bias.dtype()),
          Errc::kInvalidArgument, "{}: {}_bias is {}, must be bf16, f16 or f32 [{}, {}]", function,
          name, bias.describe(), num_experts, width);
}

void check_activation(const char* function, const Activation& activation) {
  require_enum(function, activation.kind);
  if (activation.kind == ActivationKind::kSiluMul) return;
  require(
      std::isfinite(activation.alpha) && std::isfinite(activation.beta) && activation.limit > 0.0f,
      Errc::kInvalidArgument,
      "{}: activation has alpha {}, beta {} and limit {}, must be finite ones and a limit above 0",
      function, activation.alpha, activation.beta, activation.limit);
}

}  // namespace

WeightTensor gate_of(const ExpertWeights& weights) {
  return {weights.gate, weights.gate_scale, weights.block, weights.gate_alpha};
}

WeightTensor up_of(const ExpertWeights& weights) {
  return {weights.up, weights.up_scale, weights.block, weights.up_alpha};
}

WeightTensor down_of(const ExpertWeights& weights) {
  return {weights.down, weights.down_scale, weights.block, weights.down_alpha};
}

ExpertShape check_weights(const char* function, const ExpertWeights& weights) {
  require_host(function, {{"gate", weights.gate},
                          {"up", weights.up},
                          {"down", weights.down},
                          {"gate_scale", weights.gate_scale},
                          {"up_scale", weights.up_scale},
                          {"down_scale", weights.down_scale},
                          {"gate_alpha", weights.gate_alpha},
                          {"up_alpha", weights.up_alpha},
                          {"down_alpha", weights.down_alpha},
                          {"gate_bias", weights.gate_bias},
                          {"up_bias", weights.up_bias},
                          {"down_bias", weights.down_bias}});
  require(weights.gate.has_value() && weights.gate.num_dims() == 3, Errc::kInvalidArgument,
          "{}: gate is {}, must be [experts, intermediate, hidden]", function,
          weights.gate.describe());
  const ExpertShape shape{weights.gate.shape(0), weights.gate.shape(2), weights.gate.shape(1)};
  require(shape.hidden > 0 && shape.intermediate > 0, Errc::kInvalidArgument,
          "{}: gate is {}, must be at least 1 intermediate and 1 hidden element", function,
          weights.gate.describe());
  const Shape3 first = {shape.num_experts, shape.intermediate, shape.hidden};
  const Shape3 second = {shape.num_experts, shape.hidden, shape.intermediate};
  check_weight({function, "gate", gate_of(weights)}, first);
  check_weight({function, "up", up_of(weights)}, first);
  check_weight({function, "down", down_of(weights)}, second);
  check_bias(function, "gate", weights.gate_bias, shape.num_experts, shape.intermediate);
  check_bias(function, "up", weights.up_bias, shape.num_experts, shape.intermediate);
  check_bias(function, "down", weights.down_bias, shape.num_experts, shape.hidden);
  return shape;
}

void check_options(const char* function, const ExpertShape& shape, const ExpertOptions& options) {
  const QuantScheme& scheme = options.intermediate;
  require_host(function, {{"intermediate_scale", options.intermediate_scale}});
  check_scheme(function, scheme);
  require(scheme.is_quantized() || scheme.dtype == DType::kBF16 || scheme.dtype == DType::kF32,
          Errc::kInvalidArgument, "{}: intermediate is {}, must be bf16, f32 or a quantized scheme",
          function, name_of(scheme));
  require(scheme.dtype != DType::kE2M1 || shape.intermediate % 2 == 0, Errc::kInvalidArgument,
          "{}: intermediate is {} of {} elements, must be an even number: two to a byte", function,
          name_of(scheme), shape.intermediate);
  const TensorView& scale = options.intermediate_scale;
  require(is_optional_expert_scalar(scale, shape.num_experts), Errc::kInvalidArgument,
          "{}: intermediate_scale is {}, must be f32 [1] or [{}]", function, scale.describe(),
          shape.num_experts);
  const bool is_needed = scheme.needs_tensor_scale();
  require(is_needed ? scale.has_value() : scheme.group == ScaleGroup::kTensor || !scale.has_value(),
          Errc::kInvalidArgument, "{}: intermediate_scale is {}, must be {} for {}", function,
          scale.describe(), is_needed ? "f32 [1] or [L]" : "absent", name_of(scheme));
  for (const float value : expert_scalars(scale, shape.num_experts)) {
    check_scale_value(function, "intermediate_scale", value);
  }
  check_activation(function, options.activation);
}

TensorView flat_rows(const char* name, const TensorView& tensor) {
  if (tensor.num_dims() != 3) return tensor;
  const std::int64_t capacity = tensor.shape(1);
  require(tensor.shape(0) <= 1 || capacity == 0 ||
              tensor.stride(0) == checked_mul(capacity, tensor.stride(1)),
          Errc::kInvalidArgument, "apply: experts of {} are {} apart, must be {} rows of {}", name,
          tensor.stride(0), capacity, tensor.stride(1));
  return TensorView(tensor.data(), tensor.dtype(),
                    {checked_mul(tensor.shape(0), capacity), tensor.shape(2)},
                    {tensor.stride(1), tensor.stride(2)}, tensor.device());
}

void require_experts_device(Device device, const ExpertRows& input, const TensorView& output,
                            Stream stream) {
  require_stream("apply", device, stream);
  require_device("apply", device,
                 {{"rows", input.rows},
                  {"scales", input.scales},
                  {"first_row", input.first_row},
                  {"num_rows", input.num_rows},
                  {"tensor_scale", input.tensor_scale},
                  {"output", output}});
}

void check_apply(const ExpertShape& shape, const ExpertRows& input, const TensorView& output,
                 DType dtype, std::size_t workspace_bytes, std::size_t needed_bytes) {
  check_buffers(shape, input, output, dtype, workspace_bytes, needed_bytes);
  check_ranges(shape.num_experts, input);
}

void check_buffers(const ExpertShape& shape, const ExpertRows& input, const TensorView& output,
                   DType dtype, std::size_t workspace_bytes, std::size_t needed_bytes) {
  check_input(shape.num_experts, shape.hidden, input);
  require(output.has_value() && output.num_dims() == 2 && output.dtype() == dtype &&
              has_contiguous_rows(output) && output.shape(0) == input.rows.shape(0) &&
              output.shape(1) == shape.hidden,
          Errc::kInvalidArgument, "apply: output is {}, must be {} [{}, {}] with contiguous rows",
          output.describe(), name_of(dtype), input.rows.shape(0), shape.hidden);
  require(workspace_bytes >= needed_bytes, Errc::kWorkspaceTooSmall,
          "apply: workspace has {} bytes, needs {}; ask workspace_bytes()", workspace_bytes,
          needed_bytes);
}

}  // namespace switchyard
