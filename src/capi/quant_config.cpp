// SPDX-License-Identifier: Apache-2.0
//
// quant_config.cpp: the builders of QuantConfig by name.

#include "switchyard/quant_config.h"

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "switchyard/c/config.h"

#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/quant_fields.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

QuantConfig make(QuantFields& f) {
  MakeQuantOptions o;
  o.quant_dtype =
      f.dtype(&sy_quant_options::quant_dtype, "quant_dtype").value_or(QuantDType::kNone);
  o.weight_dtype = f.dtype(&sy_quant_options::weight_dtype, "weight_dtype");
  o.block_shape = f.block();
  f.flags(o);
  f.scales_of_weights(o);
  f.scales_of_activations(o);
  f.alphas(o);
  f.global_scales(o);
  f.biases(o);
  f.zero_points(o);
  o.extras = f.extras();
  return QuantConfig::make(o);
}

QuantConfig fp8_w8a8(QuantFields& f) {
  Fp8W8A8Options o;
  o.block_shape = f.block();
  f.flags(o);
  f.scales_of_weights(o);
  f.scales_of_activations(o);
  f.alphas(o);
  f.global_scales(o);
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::fp8_w8a8(o);
}

QuantConfig int8_w8a8(QuantFields& f) {
  Int8W8A8Options o;
  f.scales_of_weights(o);
  f.scales_of_activations(o);
  f.biases(o);
  o.per_act_token_quant = f.value(&sy_quant_options::per_act_token_quant);
  return QuantConfig::int8_w8a8(o);
}

WeightOnlyOptions weight_only(QuantFields& f) {
  WeightOnlyOptions o;
  f.scales_of_weights(o);
  f.biases(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return o;
}

IntWeightOptions int_weights(QuantFields& f) {
  IntWeightOptions o;
  f.scales_of_weights(o);
  f.zero_points(o);
  f.biases(o);
  f.global_scales(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return o;
}

QuantConfig ocp_mx(QuantFields& f) {
  OcpMxOptions o;
  o.quant_dtype =
      f.dtype(&sy_quant_options::quant_dtype, "quant_dtype").value_or(QuantDType::kMxfp4);
  o.weight_dtype = f.dtype(&sy_quant_options::weight_dtype, "weight_dtype");
  f.scales_of_weights(o);
  f.scales_of_activations(o);
  f.biases(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return QuantConfig::ocp_mx(o);
}

QuantConfig nvfp4(QuantFields& f) {
  Nvfp4Options o;
  f.alphas(o);
  f.global_scales(o);
  f.scales_of_weights(o);
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::nvfp4(o);
}

QuantConfig gptq_marlin(QuantFields& f) {
  GptqMarlinOptions o;
  f.scales_of_weights(o);
  f.zero_points(o);
  f.biases(o);
  const std::int32_t bits = f.value(&sy_quant_options::weight_bits);
  const std::int32_t group = f.value(&sy_quant_options::group_size);
  o.weight_bits = bits == 0 ? 4 : bits;
  o.group_size = group == 0 ? -1 : group;
  return QuantConfig::gptq_marlin(o);
}

QuantConfig int4_w4afp8(QuantFields& f) {
  Int4W4AFp8Options o;
  f.scales_of_weights(o);
  f.alphas(o);
  f.flags(o);
  o.block_shape = f.block();
  return QuantConfig::int4_w4afp8(o);
}

QuantConfig mxfp4_w4a8(QuantFields& f) {
  Mxfp4W4A8Options o;
  f.scales_of_weights(o);
  f.scales_of_activations(o);
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::mxfp4_w4a8(o);
}

// The builders whose options are weights' scales, biases or alphas, and extras.
QuantConfig biased(QuantFields& f) {
  BiasedOptions o;
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::biased(o);
}
QuantConfig mxfp4_mxfp8(QuantFields& f) {
  Mxfp4Mxfp8Options o;
  f.scales_of_weights(o);
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::mxfp4_mxfp8(o);
}
QuantConfig mxfp4(QuantFields& f) {
  Mxfp4Options o;
  f.scales_of_weights(o);
  return QuantConfig::mxfp4(o);
}
QuantConfig nvfp4_w4a16(QuantFields& f) {
  Nvfp4W4A16Options o;
  f.alphas(o);
  f.scales_of_weights(o);
  o.extras = f.extras();
  return QuantConfig::nvfp4_w4a16(o);
}

using Builder = QuantConfig (*)(QuantFields&);
constexpr std::pair<std::string_view, Builder> kBuilders[] = {
    {"unquantized", [](QuantFields&) { return QuantConfig::unquantized(); }},
    {"make", make},
    {"fp8_w8a8", fp8_w8a8},
    {"int8_w8a8", int8_w8a8},
    {"mxfp4_w4a16", [](QuantFields& f) { return QuantConfig::mxfp4_w4a16(weight_only(f)); }},
    {"ocp_mx", ocp_mx},
    {"nvfp4", nvfp4},
    {"int4_w4a16", [](QuantFields& f) { return QuantConfig::int4_w4a16(int_weights(f)); }},
    {"int8_w8a16", [](QuantFields& f) { return QuantConfig::int8_w8a16(int_weights(f)); }},
    {"biased", biased},
    {"gptq_marlin", gptq_marlin},
    {"mxfp4_mxfp8", mxfp4_mxfp8},
    {"mxfp4_w4a8", mxfp4_w4a8},
    {"mxfp4", mxfp4},
    {"nvfp4_w4a16", nvfp4_w4a16},
    {"fp8_w8a16", [](QuantFields& f) { return QuantConfig::fp8_w8a16(weight_only(f)); }},
    {"int4_w4afp8", int4_w4afp8}};

Builder builder_of(const char* name) {
  const std::string_view wanted = text(name, "builder");
  for (const auto& [known, builder] : kBuilders) {
    if (known == wanted) return builder;
  }
  check(false, "builder is \"{}\", must be one of those in docs/configuration.md", wanted);
  return nullptr;
}

const char* scheme_name_of(const QuantConfig& config) {
  try {
    return name_of_scheme(activation_scheme(config));
  } catch (const Error&) {  // mxfp8_e5m2 and mxint8 have no quantizer
    return nullptr;
  }
}

}  // namespace

QuantConfig quant_config_of(sy_quant_config* quant) {
  return quant == nullptr ? QuantConfig::unquantized() : *use(quant);
}

}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_quant_config_create(const char* builder, const sy_quant_options* options,
                                 sy_quant_config** config) {
  return call(__func__, [&] {
    sy_quant_config*& result = out(config, "config");
    QuantFields fields(read_sized(options, "options"));
    QuantConfig made = builder_of(builder)(fields);
    fields.check_all_read(builder);
    result = give<sy_quant_config>(std::move(made));
  });
}

sy_status sy_quant_config_describe(sy_quant_config* config, sy_quant_info* info) {
  return call(__func__, [&] {
    const auto of = use(config);
    const BlockShape block = of->block_shape().value_or(BlockShape{});
    const std::optional<OcpMxScheme> ocp = of->ocp_mx_scheme();
    sy_quant_info to{};
    to.quant_dtype = name_of(of->quant_dtype());
    to.weight_dtype = name_of(of->weight_quant_dtype());
    to.ocp_mx_scheme = ocp.has_value() ? name_of(*ocp) : nullptr;
    to.scheme = scheme_name_of(*of);
    to.block_shape[0] = block[0];
    to.block_shape[1] = block[1];
    to.mx_alignment = of->mx_alignment();
    to.is_quantized = of->is_quantized();
    to.per_act_token_quant = of->per_act_token_quant();
    to.per_out_ch_quant = of->per_out_ch_quant();
    to.is_per_tensor = of->is_per_tensor();
    to.is_scale_swizzled = of->is_scale_swizzled();
    write_sized(info, "info", to);
  });
}

sy_status sy_quant_config_scale_shape(sy_quant_config* config, int64_t max_tokens, int64_t hidden,
                                      int64_t shape[2]) {
  return call(__func__, [&] {
    const auto found = use(config)->scale_shape(max_tokens, hidden);
    check(shape != nullptr, "shape is NULL, must have room for two sizes");
    shape[0] = found.has_value() ? (*found)[0] : 0;
    shape[1] = found.has_value() ? (*found)[1] : 0;
  });
}

sy_status sy_quant_config_destroy(sy_quant_config* config) { return destroy(__func__, config); }

}  // extern "C"
