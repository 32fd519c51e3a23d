// SPDX-License-Identifier: Apache-2.0
//
// quant_builders.cpp: one builder per pair of activations and weights. Builders that call make() in
// vLLM call make() here; the others spell out their descriptors.

#include "moe/config/quant_builders.h"

#include <algorithm>
#include <array>

#include "core/fail.h"
#include "moe/config/config_fields.h"

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

void check_make(const QuantOptions& options, QuantDType activation, QuantDType weight) {
  require(make_takes(activation), Errc::kInvalidArgument,
          "make: quant_dtype is {}, must be none, fp8_e4m3, int8, nvfp4, mxfp4, mxfp6_e3m2, "
          "mxfp6_e2m3 or mxfp8",
          name_of(activation));
  require(make_takes(weight) || weight == Q::kInt4, Errc::kInvalidArgument,
          "make: weight_dtype is {}, must be none, fp8_e4m3, int8, int4, nvfp4, mxfp4, mxfp6_e3m2, "
          "mxfp6_e2m3 or mxfp8",
          name_of(weight));
  const bool has_static_scale = options.a1_scale.has_value() || options.a2_scale.has_value();
  require(activation != Q::kMxfp8 || !has_static_scale, Errc::kInvalidArgument,
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

bool is_set(const TensorView& value, const TensorView&) { return value.has_value(); }
bool is_set(const ScaleSource& value, const ScaleSource&) {
  const auto* tensor = std::get_if<TensorView>(&value);
  return tensor == nullptr || tensor->has_value();
}
template <typename T>
bool is_set(const T& value, const T& by_default) {
  return value != by_default;
}

// Errors: kInvalidArgument for an option that is set and that the builder does not take.
template <typename Options>
void check_taken(const QuantBuilder& builder, const Options& options) {
  const Options by_default;
  for_each_field<Options>([&](const auto& field) {
    require(builder.takes(field.name) || !is_set(options.*field.member, by_default.*field.member),
            Errc::kInvalidArgument, "{}: {} is set, but this builder has no such option; clear it",
            builder.name, field.name);
  });
}

const QuantOptions& checked(std::string_view name, const QuantOptions& options) {
  const auto builder = std::ranges::find(quant_builders(), name, &QuantBuilder::name);
  check_taken(*builder, options);
  check_taken(*builder, options.extras);
  return options;
}

// By vLLM's rules for flags and blocks.
QuantConfig made(const QuantOptions& o, QuantDType activation,
                 std::optional<QuantDType> given_weight = {}) {
  const QuantDType weights = given_weight.value_or(activation);
  check_make(o, activation, weights);
  const QuantShapes shapes = quant_flags_to_group_shape(activation, o.per_act_token_quant,
                                                        o.per_out_ch_quant, o.block_shape);
  return QuantConfig({activation, shapes.activation, o.a1_scale, o.a1_gscale, {}, {}},
                     {activation, shapes.activation, o.a2_scale, o.a2_gscale, {}, {}},
                     {weights, shapes.weight, o.w1_scale, o.g1_alphas, o.w1_zp, o.w1_bias},
                     {weights, shapes.weight, o.w2_scale, o.g2_alphas, o.w2_zp, o.w2_bias},
                     o.extras);
}

// Of unquantized activations, unless a descriptor of them is given.
QuantConfig with_weights(QuantDType dtype, const QuantOptions& o,
                         const std::optional<GroupShape>& shape = {}, const QuantDesc& a1 = {},
                         const QuantDesc& a2 = {}) {
  return QuantConfig(a1, a2, {dtype, shape, o.w1_scale, {}, o.w1_zp, o.w1_bias},
                     {dtype, shape, o.w2_scale, {}, o.w2_zp, o.w2_bias}, o.extras);
}

QuantConfig int_weights(QuantDType dtype, const QuantOptions& o) {
  const std::optional<GroupShape> shape = weight_block(o.block_shape);
  return with_weights(dtype, o, shape, {Q::kNone, shape, {}, o.a1_gscale, {}, {}},
                      {Q::kNone, shape, {}, o.a2_gscale, {}, {}});
}

constexpr QuantBuilder kBuilders[] = {
    {"unquantized",
     [](const QuantOptions& o) { return checked("unquantized", o), QuantConfig::unquantized(); },
     ""},
    {"make", QuantConfig::make,
     "quant_dtype weight_dtype per_act_token_quant per_out_ch_quant block_shape w_scale a_scale "
     "g_alphas a_gscale w_bias w_zp extras"},
    {"fp8_w8a8", QuantConfig::fp8_w8a8,
     "per_act_token_quant per_out_ch_quant block_shape w_scale a_scale g_alphas a_gscale w_bias "
     "extras"},
    {"int8_w8a8", QuantConfig::int8_w8a8, "per_act_token_quant w_scale a_scale w_bias"},
    {"mxfp4_w4a16", QuantConfig::mxfp4_w4a16, "block_shape w_scale w_bias extras"},
    {"ocp_mx", QuantConfig::ocp_mx,
     "quant_dtype weight_dtype block_shape w_scale a_scale w_bias extras"},
    {"nvfp4", QuantConfig::nvfp4, "w_scale g_alphas a_gscale w_bias extras"},
    {"int4_w4a16", QuantConfig::int4_w4a16, "block_shape w_scale a_gscale w_bias w_zp extras"},
    {"int8_w8a16", QuantConfig::int8_w8a16, "block_shape w_scale a_gscale w_bias w_zp extras"},
    {"biased", QuantConfig::biased, "w_bias extras"},
    {"gptq_marlin", QuantConfig::gptq_marlin, "weight_bits group_size w_scale w_bias w_zp"},
    {"mxfp4_mxfp8", QuantConfig::mxfp4_mxfp8, "w_scale w_bias extras"},
    {"mxfp4_w4a8", QuantConfig::mxfp4_w4a8, "w_scale a_scale w_bias extras"},
    {"mxfp4", QuantConfig::mxfp4, "w_scale"},
    {"nvfp4_w4a16", QuantConfig::nvfp4_w4a16, "w_scale g_alphas extras"},
    {"fp8_w8a16", QuantConfig::fp8_w8a16, "block_shape w_scale w_bias extras"},
    {"int4_w4afp8", QuantConfig::int4_w4afp8,
     "per_act_token_quant per_out_ch_quant block_shape w_scale g_alphas"}};

}  // namespace

bool QuantBuilder::takes(std::string_view option) const {
  bool is_extra = false;
  for_each_field<QuantExtras>([&](const auto& field) { is_extra |= option == field.name; });
  std::string word(is_extra ? "extras" : option);
  if (word[1] == '1' || word[1] == '2') word.erase(1, 1);
  return (" " + std::string(options) + " ").find(" " + word + " ") != std::string::npos;
}

std::span<const QuantBuilder> quant_builders() { return kBuilders; }

QuantConfig QuantConfig::unquantized() { return {}; }

QuantConfig QuantConfig::make(const QuantOptions& o) {
  return made(checked("make", o), o.quant_dtype.value_or(Q::kNone), o.weight_dtype);
}

QuantConfig QuantConfig::fp8_w8a8(const QuantOptions& o) {
  return made(checked("fp8_w8a8", o), Q::kFp8E4M3);
}

QuantConfig QuantConfig::int8_w8a8(const QuantOptions& o) {
  return made(checked("int8_w8a8", o), Q::kInt8);
}

QuantConfig QuantConfig::mxfp4_w4a16(const QuantOptions& o) {
  require(!o.block_shape.has_value(), Errc::kInvalidArgument,
          "mxfp4_w4a16: block_shape is given, but mxfp4 has scales of its own; leave it out");
  return with_weights(Q::kMxfp4, checked("mxfp4_w4a16", o));
}

QuantConfig QuantConfig::ocp_mx(const QuantOptions& o) {
  const QuantDType dtype = o.quant_dtype.value_or(Q::kMxfp4);
  require(is_ocp_mx(dtype), Errc::kInvalidArgument,
          "ocp_mx: quant_dtype is {}, must be one of the OCP set (mxfp4, mxfp6_e3m2, mxfp6_e2m3)",
          name_of(dtype));
  return made(checked("ocp_mx", o), dtype, o.weight_dtype);
}

QuantConfig QuantConfig::nvfp4(const QuantOptions& o) {
  return made(checked("nvfp4", o), Q::kNvfp4);
}

QuantConfig QuantConfig::int4_w4a16(const QuantOptions& o) {
  return int_weights(Q::kInt4, checked("int4_w4a16", o));
}
QuantConfig QuantConfig::int8_w8a16(const QuantOptions& o) {
  return int_weights(Q::kInt8, checked("int8_w8a16", o));
}

QuantConfig QuantConfig::biased(const QuantOptions& o) {
  return with_weights(Q::kNone, checked("biased", o));
}

QuantConfig QuantConfig::gptq_marlin(const QuantOptions& o) {
  require(o.weight_bits == 4 || o.weight_bits == 8, Errc::kInvalidArgument,
          "gptq_marlin: weight_bits is {}, must be 4 or 8", o.weight_bits);
  require(o.group_size == -1 || o.group_size >= 1, Errc::kInvalidArgument,
          "gptq_marlin: group_size is {}, must be -1 or at least 1", o.group_size);
  std::optional<GroupShape> shape;
  if (o.group_size != -1) shape = GroupShape{1, o.group_size};
  const QuantDesc activation{Q::kNone, shape, {}, {}, {}, {}};
  return with_weights(o.weight_bits == 4 ? Q::kInt4 : Q::kInt8, checked("gptq_marlin", o), shape,
                      activation, activation);
}

QuantConfig QuantConfig::mxfp4_mxfp8(const QuantOptions& o) {
  const QuantDesc activation{Q::kMxfp8, {}, {}, {}, {}, {}};
  return with_weights(Q::kMxfp4, checked("mxfp4_mxfp8", o), {}, activation, activation);
}

QuantConfig QuantConfig::mxfp4_w4a8(const QuantOptions& o) {
  return with_weights(Q::kMxfp4, checked("mxfp4_w4a8", o), {},
                      {Q::kFp8, {}, o.a1_scale, {}, {}, {}}, {Q::kFp8, {}, o.a2_scale, {}, {}, {}});
}

QuantConfig QuantConfig::mxfp4(const QuantOptions& o) {
  return made(checked("mxfp4", o), Q::kMxfp4);
}

QuantConfig QuantConfig::nvfp4_w4a16(const QuantOptions& o) {
  return made(checked("nvfp4_w4a16", o), Q::kNone, Q::kNvfp4);
}

QuantConfig QuantConfig::fp8_w8a16(const QuantOptions& o) {
  return with_weights(Q::kFp8E4M3, checked("fp8_w8a16", o), weight_block(o.block_shape));
}

QuantConfig QuantConfig::int4_w4afp8(const QuantOptions& o) {
  return made(checked("int4_w4afp8", o), Q::kFp8E4M3, Q::kInt4);
}

}  // namespace switchyard
