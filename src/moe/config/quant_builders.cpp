// SPDX-License-Identifier: Apache-2.0
//
// quant_builders.cpp: one builder per pair of activations and weights. Builders that call make() in
// vLLM call make() here; the others spell out their descriptors.

#include <algorithm>
#include <array>

#include "switchyard/quant_config.h"

#include "core/fail.h"

namespace switchyard {
namespace {

using Q = QuantDType;

// What make() accepts for activations; weights may also be int4.
constexpr std::array<QuantDType, 8> kMakeActivations{
    Q::kNone, Q::kFp8E4M3, Q::kInt8, Q::kNvfp4, Q::kMxfp4, Q::kMxfp6E3M2, Q::kMxfp6E2M3, Q::kMxfp8};

bool make_takes(QuantDType dtype) {
  return std::find(kMakeActivations.begin(), kMakeActivations.end(), dtype) !=
         kMakeActivations.end();
}

void check_make(const MakeQuantOptions& options) {
  require(make_takes(options.quant_dtype), Errc::kInvalidArgument,
          "make: quant_dtype is {}, must be none, fp8_e4m3, int8, nvfp4, mxfp4, mxfp6_e3m2, "
          "mxfp6_e2m3 or mxfp8",
          name_of(options.quant_dtype));
  const QuantDType weight = options.weight_dtype.value_or(options.quant_dtype);
  require(make_takes(weight) || weight == Q::kInt4, Errc::kInvalidArgument,
          "make: weight_dtype is {}, must be none, fp8_e4m3, int8, int4, nvfp4, mxfp4, mxfp6_e3m2, "
          "mxfp6_e2m3 or mxfp8",
          name_of(weight));
  const bool has_static_scale = options.a1_scale.has_value() || options.a2_scale.has_value();
  require(options.quant_dtype != Q::kMxfp8 || !has_static_scale, Errc::kInvalidArgument,
          "make: a static scale for mxfp8 activations, whose scales follow from the rows; leave "
          "a1_scale and a2_scale out");
}

/// The block of weights with unquantized activations; {0, g} is a group along the input, and g = -1
/// the whole input, as vLLM's MoeWNA16 and compressed-tensors write channelwise scales.
std::optional<GroupShape> weight_block(const std::optional<BlockShape>& block) {
  if (!block.has_value()) return std::nullopt;
  const auto [row, col] = *block;
  require(
      row >= -1 && (col == -1 || col >= 1), Errc::kInvalidArgument,
      "quant_config: block_shape is {{{}, {}}}, must be at least 0 rows and 1 column, or -1 for "
      "all",
      row, col);
  return GroupShape{row, col};
}

QuantDesc weight(QuantDType dtype, const ScaleSource& scale, const TensorView& bias,
                 std::optional<GroupShape> shape = std::nullopt, const TensorView& zp = {}) {
  return {dtype, shape, scale, {}, zp, bias};
}

QuantConfig int_weights(QuantDType dtype, const IntWeightOptions& o) {
  const std::optional<GroupShape> shape = weight_block(o.block_shape);
  return QuantConfig({Q::kNone, shape, {}, o.a1_gscale, {}, {}},
                     {Q::kNone, shape, {}, o.a2_gscale, {}, {}},
                     weight(dtype, o.w1_scale, o.w1_bias, shape, o.w1_zp),
                     weight(dtype, o.w2_scale, o.w2_bias, shape, o.w2_zp), o.extras);
}

}  // namespace

QuantConfig QuantConfig::make(const MakeQuantOptions& o) {
  check_make(o);
  const QuantShapes shapes = quant_flags_to_group_shape(o.quant_dtype, o.per_act_token_quant,
                                                        o.per_out_ch_quant, o.block_shape);
  const QuantDType weights = o.weight_dtype.value_or(o.quant_dtype);
  return QuantConfig({o.quant_dtype, shapes.activation, o.a1_scale, o.a1_gscale, {}, {}},
                     {o.quant_dtype, shapes.activation, o.a2_scale, o.a2_gscale, {}, {}},
                     {weights, shapes.weight, o.w1_scale, o.g1_alphas, o.w1_zp, o.w1_bias},
                     {weights, shapes.weight, o.w2_scale, o.g2_alphas, o.w2_zp, o.w2_bias},
                     o.extras);
}

QuantConfig QuantConfig::unquantized() { return {}; }

QuantConfig QuantConfig::fp8_w8a8(const Fp8W8A8Options& o) {
  return make({.quant_dtype = Q::kFp8E4M3,
               .per_act_token_quant = o.per_act_token_quant,
               .per_out_ch_quant = o.per_out_ch_quant,
               .block_shape = o.block_shape,
               .w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .a1_scale = o.a1_scale,
               .a2_scale = o.a2_scale,
               .g1_alphas = o.g1_alphas,
               .g2_alphas = o.g2_alphas,
               .a1_gscale = o.a1_gscale,
               .a2_gscale = o.a2_gscale,
               .w1_bias = o.w1_bias,
               .w2_bias = o.w2_bias,
               .extras = o.extras});
}

QuantConfig QuantConfig::int8_w8a8(const Int8W8A8Options& o) {
  return make({.quant_dtype = Q::kInt8,
               .per_act_token_quant = o.per_act_token_quant,
               .w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .a1_scale = o.a1_scale,
               .a2_scale = o.a2_scale,
               .w1_bias = o.w1_bias,
               .w2_bias = o.w2_bias});
}

QuantConfig QuantConfig::mxfp4_w4a16(const WeightOnlyOptions& o) {
  require(!o.block_shape.has_value(), Errc::kInvalidArgument,
          "mxfp4_w4a16: block_shape is given, but mxfp4 has scales of its own; leave it out");
  return QuantConfig({}, {}, weight(Q::kMxfp4, o.w1_scale, o.w1_bias),
                     weight(Q::kMxfp4, o.w2_scale, o.w2_bias), o.extras);
}

QuantConfig QuantConfig::ocp_mx(const OcpMxOptions& o) {
  require(is_ocp_mx(o.quant_dtype), Errc::kInvalidArgument,
          "ocp_mx: quant_dtype is {}, must be one of the OCP set (mxfp4, mxfp6_e3m2, mxfp6_e2m3)",
          name_of(o.quant_dtype));
  return make({.quant_dtype = o.quant_dtype,
               .block_shape = o.block_shape,
               .w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .a1_scale = o.a1_scale,
               .a2_scale = o.a2_scale,
               .w1_bias = o.w1_bias,
               .w2_bias = o.w2_bias,
               .weight_dtype = o.weight_dtype,
               .extras = o.extras});
}

QuantConfig QuantConfig::nvfp4(const Nvfp4Options& o) {
  return make({.quant_dtype = Q::kNvfp4,
               .w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .g1_alphas = o.g1_alphas,
               .g2_alphas = o.g2_alphas,
               .a1_gscale = o.a1_gscale,
               .a2_gscale = o.a2_gscale,
               .w1_bias = o.w1_bias,
               .w2_bias = o.w2_bias,
               .extras = o.extras});
}

QuantConfig QuantConfig::int4_w4a16(const IntWeightOptions& o) { return int_weights(Q::kInt4, o); }
QuantConfig QuantConfig::int8_w8a16(const IntWeightOptions& o) { return int_weights(Q::kInt8, o); }

QuantConfig QuantConfig::biased(const BiasedOptions& o) {
  return QuantConfig({}, {}, weight(Q::kNone, {}, o.w1_bias), weight(Q::kNone, {}, o.w2_bias),
                     o.extras);
}

QuantConfig QuantConfig::gptq_marlin(const GptqMarlinOptions& o) {
  require(o.weight_bits == 4 || o.weight_bits == 8, Errc::kInvalidArgument,
          "gptq_marlin: weight_bits is {}, must be 4 or 8", o.weight_bits);
  require(o.group_size == -1 || o.group_size >= 1, Errc::kInvalidArgument,
          "gptq_marlin: group_size is {}, must be -1 or at least 1", o.group_size);
  const QuantDType dtype = o.weight_bits == 4 ? Q::kInt4 : Q::kInt8;
  std::optional<GroupShape> shape;
  if (o.group_size != -1) shape = GroupShape{1, o.group_size};
  const QuantDesc activation{Q::kNone, shape, {}, {}, {}, {}};
  return QuantConfig(activation, activation, weight(dtype, o.w1_scale, o.w1_bias, shape, o.w1_zp),
                     weight(dtype, o.w2_scale, o.w2_bias, shape, o.w2_zp));
}

QuantConfig QuantConfig::mxfp4_mxfp8(const Mxfp4Mxfp8Options& o) {
  const QuantDesc activation{Q::kMxfp8, {}, {}, {}, {}, {}};
  return QuantConfig(activation, activation, weight(Q::kMxfp4, o.w1_scale, o.w1_bias),
                     weight(Q::kMxfp4, o.w2_scale, o.w2_bias), o.extras);
}

QuantConfig QuantConfig::mxfp4_w4a8(const Mxfp4W4A8Options& o) {
  return QuantConfig({Q::kFp8, {}, o.a1_scale, {}, {}, {}}, {Q::kFp8, {}, o.a2_scale, {}, {}, {}},
                     weight(Q::kMxfp4, o.w1_scale, o.w1_bias),
                     weight(Q::kMxfp4, o.w2_scale, o.w2_bias), o.extras);
}

QuantConfig QuantConfig::mxfp4(const Mxfp4Options& o) {
  return make({.quant_dtype = Q::kMxfp4, .w1_scale = o.w1_scale, .w2_scale = o.w2_scale});
}

QuantConfig QuantConfig::nvfp4_w4a16(const Nvfp4W4A16Options& o) {
  return make({.w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .g1_alphas = o.g1_alphas,
               .g2_alphas = o.g2_alphas,
               .weight_dtype = Q::kNvfp4,
               .extras = o.extras});
}

QuantConfig QuantConfig::fp8_w8a16(const WeightOnlyOptions& o) {
  const std::optional<GroupShape> shape = weight_block(o.block_shape);
  return QuantConfig({}, {}, weight(Q::kFp8E4M3, o.w1_scale, o.w1_bias, shape),
                     weight(Q::kFp8E4M3, o.w2_scale, o.w2_bias, shape), o.extras);
}

QuantConfig QuantConfig::int4_w4afp8(const Int4W4AFp8Options& o) {
  return make({.quant_dtype = Q::kFp8E4M3,
               .per_act_token_quant = o.per_act_token_quant,
               .per_out_ch_quant = o.per_out_ch_quant,
               .block_shape = o.block_shape,
               .w1_scale = o.w1_scale,
               .w2_scale = o.w2_scale,
               .g1_alphas = o.g1_alphas,
               .g2_alphas = o.g2_alphas,
               .weight_dtype = Q::kInt4});
}

}  // namespace switchyard
