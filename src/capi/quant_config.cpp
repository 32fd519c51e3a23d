// SPDX-License-Identifier: Apache-2.0
//
// quant_config.cpp: the builders of QuantConfig by name.

#include "switchyard/quant_config.h"

#include <optional>
#include <string_view>

#include "switchyard/c/config.h"

#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"
#include "capi/tensors.h"
#include "core/fail.h"
#include "moe/config/quant_builders.h"

namespace switchyard::capi {
namespace {

std::optional<QuantDType> dtype_of(const char* given, const char* name) {
  return given == nullptr ? std::nullopt : std::optional(named<QuantDType>(given, name));
}
std::optional<float> number_of(const float* given) {
  return given == nullptr ? std::nullopt : std::optional(*given);
}

QuantOptions options_of(const sy_quant_options& from) {
  QuantOptions o;
  o.quant_dtype = dtype_of(from.quant_dtype, "quant_dtype");
  o.weight_dtype = dtype_of(from.weight_dtype, "weight_dtype");
  o.per_act_token_quant = from.per_act_token_quant;
  o.per_out_ch_quant = from.per_out_ch_quant;
  const BlockShape block{from.block_shape[0], from.block_shape[1]};
  if (block != BlockShape{}) o.block_shape = block;
  o.w1_scale = optional_view(from.w1_scale, "w1_scale");
  o.w2_scale = optional_view(from.w2_scale, "w2_scale");
  o.a1_scale = optional_view(from.a1_scale, "a1_scale");
  o.a2_scale = optional_view(from.a2_scale, "a2_scale");
  o.g1_alphas = optional_view(from.g1_alphas, "g1_alphas");
  o.g2_alphas = optional_view(from.g2_alphas, "g2_alphas");
  o.a1_gscale = optional_view(from.a1_gscale, "a1_gscale");
  o.a2_gscale = optional_view(from.a2_gscale, "a2_gscale");
  o.w1_bias = optional_view(from.w1_bias, "w1_bias");
  o.w2_bias = optional_view(from.w2_bias, "w2_bias");
  o.w1_zp = optional_view(from.w1_zp, "w1_zp");
  o.w2_zp = optional_view(from.w2_zp, "w2_zp");
  if (from.weight_bits != 0) o.weight_bits = from.weight_bits;
  if (from.group_size != 0) o.group_size = from.group_size;
  o.extras = {.is_scale_swizzled = !from.no_is_scale_swizzled,
              .gemm1_alpha = number_of(from.gemm1_alpha),
              .gemm1_beta = number_of(from.gemm1_beta),
              .gemm1_clamp_limit = number_of(from.gemm1_clamp_limit),
              .mx_alignment = from.mx_alignment,
              .scale_format = named(from.scale_format, "scale_format", ScaleFormat::kF32)};
  return o;
}

const QuantBuilder& builder_of(const char* name) {
  const std::string_view wanted = text(name, "builder");
  for (const QuantBuilder& builder : quant_builders()) {
    if (builder.name == wanted) return builder;
  }
  fail(Errc::kInvalidArgument, "builder is \"{}\", must be one of those in docs/configuration.md",
       wanted);
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
    const QuantOptions given = options_of(read_sized(options, "options"));
    result = give<sy_quant_config>(builder_of(builder).build(given));
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
