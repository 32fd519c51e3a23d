// SPDX-License-Identifier: Apache-2.0

#include "switchyard/experts_factory.h"

#include <limits>

#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "core/round_up.h"
#include "moe/experts/expert_input.h"

namespace switchyard {
namespace {

using Q = QuantDType;

constexpr const char* kFunction = "make_experts";

DType stored_weight(QuantDType dtype) {
  switch (dtype) {
    case Q::kFp8E4M3: return DType::kE4M3;
    case Q::kInt8: return DType::kI8;
    case Q::kNvfp4:
    case Q::kMxfp4: return DType::kE2M1;
    default: break;
  }
  fail(Errc::kNotSupported,
       "{}: weights are {}, must be none, fp8_e4m3, int8, nvfp4 or mxfp4 for the experts of the "
       "library",
       kFunction, name_of(dtype));
}

TensorView reshaped(const TensorView& view, DType dtype, std::int64_t a, std::int64_t b,
                    std::int64_t c) {
  return TensorView(view.data(), dtype, {a, b, c}, view.device());
}

// Weights as their format stores them: two e2m1 elements may come as a byte.
TensorView weight_view(const char* name, const TensorView& given, QuantDType dtype) {
  require(given.num_dims() == 3 && given.is_contiguous(), Errc::kInvalidArgument,
          "{}: {} is {}, must have 3 dimensions, contiguous", kFunction, name, given);
  if (dtype == Q::kNone) return given;
  const DType stored = stored_weight(dtype);
  const bool is_bytes = stored == DType::kE2M1 && given.dtype() == DType::kU8;
  require(given.dtype() == stored || is_bytes, Errc::kInvalidArgument,
          "{}: {} is {}, must be {} for weights of {}", kFunction, name, given, name_of(stored),
          name_of(dtype));
  if (!is_bytes) return given;
  return reshaped(given, stored, given.shape(0), given.shape(1), 2 * given.shape(2));
}

// The block that shares a scale. Without a shape it is the tensor.
WeightBlock block_of(const QuantDesc& weight) {
  if (weight.dtype == Q::kNvfp4) return weight_blocks::kNvfp4;
  if (weight.dtype == Q::kMxfp4) return weight_blocks::kMxfp4;
  const GroupShape shape = weight.shape.value_or(group_shapes::kPerTensor);
  return {shape.row == 0 ? 1 : shape.row, shape.col};
}

std::int64_t num_blocks(std::int64_t size, std::int32_t block) {
  return block == -1 ? 1 : cdiv<std::int64_t>(size, block);
}

// [L, blocks of outputs, blocks of inputs]; sides of 1 may be missing.
TensorView scale_view(const char* name, const TensorView& scale, const TensorView& weight,
                      const QuantDesc& desc, const WeightBlock& block, bool is_halved) {
  if (desc.dtype == Q::kNone) {
    require(!scale.has_value(), Errc::kInvalidArgument,
            "{}: {} is {}, must be absent for weights that are not quantized", kFunction, name,
            scale);
    return {};
  }
  const std::int64_t experts = weight.shape(0);
  const bool is_whole = block.outputs == -1;
  const std::int64_t outputs = num_blocks(weight.shape(1), block.outputs);
  const std::int64_t inputs = num_blocks(weight.shape(2), block.inputs);
  require(!is_halved || is_whole || weight.shape(1) / 2 % block.outputs == 0,
          Errc::kInvalidArgument,
          "{}: w1 has {} outputs in blocks of {}, half of them must be a multiple: a block may not "
          "reach from gate into up",
          kFunction, weight.shape(1), block.outputs);
  require(scale.has_value() && scale.is_contiguous() && scale.num_dims() >= 1 &&
              scale.shape(0) == experts && scale.num_elements() == experts * outputs * inputs &&
              (outputs == 1 || scale.shape(1) == outputs),
          Errc::kInvalidArgument, "{}: {} is {}, must be [{}, {}, {}], contiguous", kFunction, name,
          scale, experts, outputs, inputs);
  DType dtype = scale.dtype();
  if (dtype == DType::kU8 && desc.dtype == Q::kMxfp4) dtype = DType::kE8M0;
  if (dtype == DType::kU8 && desc.dtype == Q::kNvfp4) dtype = DType::kE4M3;
  return reshaped(scale, dtype, experts, outputs, inputs);
}

// Rows `begin` to `begin + count` of each expert of a contiguous tensor.
TensorView rows_of(const TensorView& from, std::int64_t begin, std::int64_t count) {
  if (!from.has_value()) return {};
  const std::int64_t bits = begin * from.stride(1) * bits_of(from.dtype());
  void* const data = from.as<std::byte>() + bits / 8;
  if (from.num_dims() == 2) {
    return TensorView(data, from.dtype(), {from.shape(0), count}, {from.stride(0), from.stride(1)},
                      from.device());
  }
  return TensorView(data, from.dtype(), {from.shape(0), count, from.shape(2)},
                    {from.stride(0), from.stride(1), from.stride(2)}, from.device());
}

struct Halves {
  TensorView gate;
  TensorView up;
};

// A single row, of a scale per tensor, is that of both.
Halves halves_of(const TensorView& from) {
  if (!from.has_value() || from.shape(1) == 1) return {from, from};
  const std::int64_t half = from.shape(1) / 2;
  return {rows_of(from, 0, half), rows_of(from, half, half)};
}

TensorView bias_view(const char* name, const TensorView& bias, const TensorView& weight) {
  require(
      !bias.has_value() || (bias.num_dims() == 2 && bias.is_contiguous() &&
                            bias.shape(0) == weight.shape(0) && bias.shape(1) == weight.shape(1)),
      Errc::kInvalidArgument, "{}: {} is {}, must be [{}, {}], contiguous", kFunction, name, bias,
      weight.shape(0), weight.shape(1));
  return bias;
}

// [1] or [L] f32, whatever sides of 1 it has.
TensorView scalar_view(const char* name, const TensorView& given, std::int64_t num_experts) {
  if (!given.has_value()) return {};
  const std::int64_t count = given.num_elements();
  require(
      given.dtype() == DType::kF32 && given.is_contiguous() && (count == 1 || count == num_experts),
      Errc::kInvalidArgument, "{}: {} is {}, must be f32 [1] or [{}]", kFunction, name, given,
      num_experts);
  return TensorView(given.data(), DType::kF32, {count}, given.device());
}

// The factor of the weight alone: vLLM's alpha has that of the activations in it.
Tensor weight_alpha(const char* name, const TensorView& alpha, const TensorView& gscale,
                    const QuantConfig& quant, std::int64_t num_experts) {
  if (!alpha.has_value()) return {};
  require(
      quant.weight_quant_dtype() == Q::kNvfp4, Errc::kNotSupported,
      "{}: {} is given for weights of {}, must be absent: the scales of weights and activations "
      "say the same",
      kFunction, name, name_of(quant.weight_quant_dtype()));
  const TensorView from = scalar_view(name, alpha, num_experts);
  const TensorView factor = scalar_view("the gscale of the activations", gscale, num_experts);
  require(quant.use_nvfp4_w4a4() == factor.has_value(), Errc::kInvalidArgument,
          "{}: {} comes {} a global scale of the activations, must be with one for nvfp4 "
          "activations, else without",
          kFunction, name, factor.has_value() ? "with" : "without");
  Tensor result(DType::kF32, {num_experts});
  for (std::int64_t e = 0; e < num_experts; ++e) {
    result.as<float>()[e] =
        expert_scalar(from, e) * (factor.has_value() ? expert_scalar(factor, e) : 1.0f);
  }
  return result;
}

Activation activation_of(const QuantExtras& extras, const std::optional<Activation>& given) {
  const bool says = extras.gemm1_alpha.has_value() || extras.gemm1_beta.has_value() ||
                    extras.gemm1_clamp_limit.has_value();
  if (!says) return given.value_or(activations::kSiluMul);
  const Activation wanted{
      ActivationKind::kClampedSwiGlu, extras.gemm1_alpha.value_or(1.0f),
      extras.gemm1_beta.value_or(0.0f),
      extras.gemm1_clamp_limit.value_or(std::numeric_limits<float>::infinity())};
  const Activation asked = given.value_or(wanted);
  require(
      asked == wanted, Errc::kInvalidArgument,
      "{}: activation is {} with alpha {}, beta {} and limit {}, must be the clamped one with {}, "
      "{} and {} as in the configuration",
      kFunction, static_cast<int>(asked.kind), asked.alpha, asked.beta, asked.limit, wanted.alpha,
      wanted.beta, wanted.limit);
  return wanted;
}

// As prepare does for a1: a static scale wins over one per token of fp8.
ExpertOptions options_of(const QuantConfig& quant, const std::optional<Activation>& activation,
                         std::int64_t num_experts) {
  ExpertOptions options;
  options.activation = activation_of(quant.extras(), activation);
  options.intermediate = activation_scheme(quant);
  const bool is_nvfp4 = quant.use_nvfp4_w4a4();
  require(is_nvfp4 || quant.a2_scale().has_value() || !quant.a2_gscale().has_value(),
          Errc::kInvalidArgument,
          "{}: a2_gscale is given without a2_scale for {}, but it counts for nvfp4 only; pass the "
          "static scale as a2_scale, or leave both out",
          kFunction, name_of(options.intermediate));
  options.intermediate_scale =
      scalar_view(is_nvfp4 ? "a2_gscale" : "a2_scale",
                  is_nvfp4 ? quant.a2_gscale() : quant.a2_scale(), num_experts);
  if (options.intermediate == schemes::kFp8Token && options.intermediate_scale.has_value()) {
    options.intermediate.group = ScaleGroup::kTensor;
  }
  return options;
}

}  // namespace

std::unique_ptr<Experts> make_experts(std::string_view name, const TensorView& given_w1,
                                      const TensorView& given_w2, const QuantConfig& quant,
                                      const std::optional<Activation>& activation, Device device) {
  require(!quant.w1_zp().has_value() && !quant.w2_zp().has_value(), Errc::kNotSupported,
          "{}: zero points are given, must be absent: a weight is element * scale", kFunction);
  const TensorView w1 = weight_view("w1", given_w1, quant.weight_quant_dtype());
  const TensorView w2 = weight_view("w2", given_w2, quant.weight_quant_dtype());
  require(w1.shape(1) % 2 == 0, Errc::kInvalidArgument,
          "{}: w1 is {}, must have an even number of outputs: gate and up", kFunction, w1);
  require_host(kFunction, {{"g1_alphas", quant.g1_alphas()},
                           {"g2_alphas", quant.g2_alphas()},
                           {"a1_gscale", quant.a1_gscale()},
                           {"a2_gscale", quant.a2_gscale()}});
  const std::int64_t num_experts = w1.shape(0);
  ExpertWeights weights;
  weights.block = block_of(quant.w1());
  const Halves first = halves_of(w1);
  weights.gate = first.gate;
  weights.up = first.up;
  weights.down = w2;
  const Halves scales =
      halves_of(scale_view("w1_scale", quant.w1_scale(), w1, quant.w1(), weights.block, true));
  weights.gate_scale = scales.gate;
  weights.up_scale = scales.up;
  weights.down_scale =
      scale_view("w2_scale", quant.w2_scale(), w2, quant.w2(), weights.block, false);
  const Tensor alpha1 =
      weight_alpha("g1_alphas", quant.g1_alphas(), quant.a1_gscale(), quant, num_experts);
  const Tensor alpha2 =
      weight_alpha("g2_alphas", quant.g2_alphas(), quant.a2_gscale(), quant, num_experts);
  weights.gate_alpha = alpha1;
  weights.up_alpha = alpha1;
  weights.down_alpha = alpha2;
  const Halves biases = halves_of(bias_view("w1_bias", quant.w1_bias(), w1));
  weights.gate_bias = biases.gate;
  weights.up_bias = biases.up;
  weights.down_bias = bias_view("w2_bias", quant.w2_bias(), w2);
  return make_experts(name, weights, options_of(quant, activation, num_experts), device);
}

}  // namespace switchyard
