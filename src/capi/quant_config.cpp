// SPDX-License-Identifier: Apache-2.0
//
// quant_config.cpp: the builders of QuantConfig by name. All of them read one struct of options; a
// field that a builder does not read, and that is set, is refused.

#include "switchyard/quant_config.h"

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "switchyard/c/config.h"

#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

// What a builder has not read yet.
class Fields {
 public:
  explicit Fields(const sy_quant_options& given) : left_(given) { left_.struct_size = 0; }

  TensorView tensor(const sy_tensor* sy_quant_options::*field, const char* name) {
    return optional_view(std::exchange(left_.*field, nullptr), name);
  }
  template <typename T>
  T value(T sy_quant_options::*field) {
    return std::exchange(left_.*field, T{});
  }
  std::optional<float> number(const float* sy_quant_options::*field) {
    const float* value = std::exchange(left_.*field, nullptr);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  std::optional<QuantDType> dtype(const char* sy_quant_options::*field, const char* name) {
    const char* value = std::exchange(left_.*field, nullptr);
    if (value == nullptr) return std::nullopt;
    return named(value, name, QuantDType::kNone, quant_dtype_from_name,
                 "none, fp8_e4m3, int8, fp8, nvfp4, mxfp4, mxfp6_e3m2, mxfp6_e2m3, mxfp8 or int4");
  }
  std::optional<BlockShape> block() {
    const BlockShape block{std::exchange(left_.block_shape[0], 0),
                           std::exchange(left_.block_shape[1], 0)};
    return block == BlockShape{} ? std::nullopt : std::optional(block);
  }

  // Groups of fields that builders share.
  template <typename Options>
  void scales_of_weights(Options& o) {
    o.w1_scale = tensor(&sy_quant_options::w1_scale, "w1_scale");
    o.w2_scale = tensor(&sy_quant_options::w2_scale, "w2_scale");
  }
  template <typename Options>
  void scales_of_activations(Options& o) {
    o.a1_scale = tensor(&sy_quant_options::a1_scale, "a1_scale");
    o.a2_scale = tensor(&sy_quant_options::a2_scale, "a2_scale");
  }
  template <typename Options>
  void global_scales(Options& o) {
    o.a1_gscale = tensor(&sy_quant_options::a1_gscale, "a1_gscale");
    o.a2_gscale = tensor(&sy_quant_options::a2_gscale, "a2_gscale");
  }
  template <typename Options>
  void alphas(Options& o) {
    o.g1_alphas = tensor(&sy_quant_options::g1_alphas, "g1_alphas");
    o.g2_alphas = tensor(&sy_quant_options::g2_alphas, "g2_alphas");
  }
  template <typename Options>
  void zero_points(Options& o) {
    o.w1_zp = tensor(&sy_quant_options::w1_zp, "w1_zp");
    o.w2_zp = tensor(&sy_quant_options::w2_zp, "w2_zp");
  }
  template <typename Options>
  void biases(Options& o) {
    o.w1_bias = tensor(&sy_quant_options::w1_bias, "w1_bias");
    o.w2_bias = tensor(&sy_quant_options::w2_bias, "w2_bias");
  }
  template <typename Options>
  void flags(Options& o) {
    o.per_act_token_quant = value(&sy_quant_options::per_act_token_quant);
    o.per_out_ch_quant = value(&sy_quant_options::per_out_ch_quant);
  }
  QuantExtras extras() {
    QuantExtras extras;
    extras.is_scale_swizzled = !value(&sy_quant_options::scales_not_swizzled);
    extras.gemm1_alpha = number(&sy_quant_options::gemm1_alpha);
    extras.gemm1_beta = number(&sy_quant_options::gemm1_beta);
    extras.gemm1_clamp_limit = number(&sy_quant_options::gemm1_clamp_limit);
    extras.mx_alignment = value(&sy_quant_options::mx_alignment);
    extras.scale_format = scale_format(value(&sy_quant_options::scale_format));
    return extras;
  }

  /// Errors: kInvalidArgument, which names what is left.
  void check_all_read(const char* builder) const;

 private:
  static ScaleFormat scale_format(const char* name) {
    const auto from_name = [](std::string_view text) -> std::optional<ScaleFormat> {
      if (text == "f32") return ScaleFormat::kF32;
      if (text == "f32_power_of_two") return ScaleFormat::kF32PowerOfTwo;
      if (text == "e8m0_packed") return ScaleFormat::kE8M0Packed;
      return std::nullopt;
    };
    return named(name, "scale_format", ScaleFormat::kF32, from_name,
                 "f32, f32_power_of_two or e8m0_packed");
  }

  sy_quant_options left_;
};

void Fields::check_all_read(const char* builder) const {
  const sy_quant_options& o = left_;
  const std::pair<const char*, bool> fields[] = {
      {"quant_dtype", o.quant_dtype != nullptr},
      {"weight_dtype", o.weight_dtype != nullptr},
      {"w1_scale", o.w1_scale != nullptr},
      {"w2_scale", o.w2_scale != nullptr},
      {"a1_scale", o.a1_scale != nullptr},
      {"a2_scale", o.a2_scale != nullptr},
      {"a1_gscale", o.a1_gscale != nullptr},
      {"a2_gscale", o.a2_gscale != nullptr},
      {"g1_alphas", o.g1_alphas != nullptr},
      {"g2_alphas", o.g2_alphas != nullptr},
      {"w1_zp", o.w1_zp != nullptr},
      {"w2_zp", o.w2_zp != nullptr},
      {"w1_bias", o.w1_bias != nullptr},
      {"w2_bias", o.w2_bias != nullptr},
      {"gemm1_alpha", o.gemm1_alpha != nullptr},
      {"gemm1_beta", o.gemm1_beta != nullptr},
      {"gemm1_clamp_limit", o.gemm1_clamp_limit != nullptr},
      {"scale_format", o.scale_format != nullptr},
      {"block_shape", o.block_shape[0] != 0 || o.block_shape[1] != 0},
      {"mx_alignment", o.mx_alignment != 0},
      {"weight_bits", o.weight_bits != 0},
      {"group_size", o.group_size != 0},
      {"per_act_token_quant", o.per_act_token_quant},
      {"per_out_ch_quant", o.per_out_ch_quant},
      {"scales_not_swizzled", o.scales_not_swizzled}};
  for (const auto& [name, is_left] : fields) {
    check(!is_left, "{} is set, but builder \"{}\" has no such option; clear it", name, builder);
  }
}

QuantConfig make(Fields& f) {
  MakeQuantOptions o;
  o.quant_dtype =
      f.dtype(&sy_quant_options::quant_dtype, "quant_dtype").value_or(QuantDType::kNone);
  o.weight_dtype = f.dtype(&sy_quant_options::weight_dtype, "weight_dtype");
  o.block_shape = f.block();
  f.flags(o), f.scales_of_weights(o), f.scales_of_activations(o), f.alphas(o);
  f.global_scales(o), f.biases(o), f.zero_points(o);
  o.extras = f.extras();
  return QuantConfig::make(o);
}

QuantConfig fp8_w8a8(Fields& f) {
  Fp8W8A8Options o;
  o.block_shape = f.block();
  f.flags(o), f.scales_of_weights(o), f.scales_of_activations(o), f.alphas(o);
  f.global_scales(o), f.biases(o);
  o.extras = f.extras();
  return QuantConfig::fp8_w8a8(o);
}

QuantConfig int8_w8a8(Fields& f) {
  Int8W8A8Options o;
  f.scales_of_weights(o), f.scales_of_activations(o), f.biases(o);
  o.per_act_token_quant = f.value(&sy_quant_options::per_act_token_quant);
  return QuantConfig::int8_w8a8(o);
}

WeightOnlyOptions weight_only(Fields& f) {
  WeightOnlyOptions o;
  f.scales_of_weights(o), f.biases(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return o;
}

IntWeightOptions int_weights(Fields& f) {
  IntWeightOptions o;
  f.scales_of_weights(o), f.zero_points(o), f.biases(o), f.global_scales(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return o;
}

QuantConfig ocp_mx(Fields& f) {
  OcpMxOptions o;
  o.quant_dtype =
      f.dtype(&sy_quant_options::quant_dtype, "quant_dtype").value_or(QuantDType::kMxfp4);
  o.weight_dtype = f.dtype(&sy_quant_options::weight_dtype, "weight_dtype");
  f.scales_of_weights(o), f.scales_of_activations(o), f.biases(o);
  o.block_shape = f.block();
  o.extras = f.extras();
  return QuantConfig::ocp_mx(o);
}

QuantConfig nvfp4(Fields& f) {
  Nvfp4Options o;
  f.alphas(o), f.global_scales(o), f.scales_of_weights(o), f.biases(o);
  o.extras = f.extras();
  return QuantConfig::nvfp4(o);
}

QuantConfig gptq_marlin(Fields& f) {
  GptqMarlinOptions o;
  f.scales_of_weights(o), f.zero_points(o), f.biases(o);
  const std::int32_t bits = f.value(&sy_quant_options::weight_bits);
  const std::int32_t group = f.value(&sy_quant_options::group_size);
  o.weight_bits = bits == 0 ? 4 : bits;
  o.group_size = group == 0 ? -1 : group;
  return QuantConfig::gptq_marlin(o);
}

QuantConfig int4_w4afp8(Fields& f) {
  Int4W4AFp8Options o;
  f.scales_of_weights(o), f.alphas(o), f.flags(o);
  o.block_shape = f.block();
  return QuantConfig::int4_w4afp8(o);
}

QuantConfig mxfp4_w4a8(Fields& f) {
  Mxfp4W4A8Options o;
  f.scales_of_weights(o), f.scales_of_activations(o), f.biases(o);
  o.extras = f.extras();
  return QuantConfig::mxfp4_w4a8(o);
}

// The builders whose options are weights' scales, biases or alphas, and extras.
QuantConfig biased(Fields& f) {
  BiasedOptions o;
  f.biases(o);
  o.extras = f.extras();
  return QuantConfig::biased(o);
}
QuantConfig mxfp4_mxfp8(Fields& f) {
  Mxfp4Mxfp8Options o;
  f.scales_of_weights(o), f.biases(o);
  o.extras = f.extras();
  return QuantConfig::mxfp4_mxfp8(o);
}
QuantConfig mxfp4(Fields& f) {
  Mxfp4Options o;
  f.scales_of_weights(o);
  return QuantConfig::mxfp4(o);
}
QuantConfig nvfp4_w4a16(Fields& f) {
  Nvfp4W4A16Options o;
  f.alphas(o), f.scales_of_weights(o);
  o.extras = f.extras();
  return QuantConfig::nvfp4_w4a16(o);
}

using Builder = QuantConfig (*)(Fields&);
constexpr std::pair<std::string_view, Builder> kBuilders[] = {
    {"unquantized", [](Fields&) { return QuantConfig::unquantized(); }},
    {"make", make},
    {"fp8_w8a8", fp8_w8a8},
    {"int8_w8a8", int8_w8a8},
    {"mxfp4_w4a16", [](Fields& f) { return QuantConfig::mxfp4_w4a16(weight_only(f)); }},
    {"ocp_mx", ocp_mx},
    {"nvfp4", nvfp4},
    {"int4_w4a16", [](Fields& f) { return QuantConfig::int4_w4a16(int_weights(f)); }},
    {"int8_w8a16", [](Fields& f) { return QuantConfig::int8_w8a16(int_weights(f)); }},
    {"biased", biased},
    {"gptq_marlin", gptq_marlin},
    {"mxfp4_mxfp8", mxfp4_mxfp8},
    {"mxfp4_w4a8", mxfp4_w4a8},
    {"mxfp4", mxfp4},
    {"nvfp4_w4a16", nvfp4_w4a16},
    {"fp8_w8a16", [](Fields& f) { return QuantConfig::fp8_w8a16(weight_only(f)); }},
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
    Fields fields(read_sized(options, "options"));
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
