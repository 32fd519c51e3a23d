// SPDX-License-Identifier: Apache-2.0
//
// QuantConfig: one builder per kind of quantization, with the keywords of vLLM.

#include "quant_config.h"

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtypes.h"
#include "module.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

std::optional<BlockShape> block_from(nb::handle value) {
  if (value.is_none()) return std::nullopt;
  return BlockShape{nb::cast<std::int32_t>(value[0]), nb::cast<std::int32_t>(value[1])};
}

bool set_extra(QuantExtras& extras, const std::string& name, nb::handle value) {
  if (name == "is_scale_swizzled") return extras.is_scale_swizzled = nb::cast<bool>(value), true;
  if (name == "gemm1_alpha")
    return extras.gemm1_alpha = Field<std::optional<float>>::from(value), true;
  if (name == "gemm1_beta")
    return extras.gemm1_beta = Field<std::optional<float>>::from(value), true;
  if (name == "gemm1_clamp_limit")
    return extras.gemm1_clamp_limit = Field<std::optional<float>>::from(value), true;
  if (name == "mx_alignment") return extras.mx_alignment = nb::cast<std::int32_t>(value), true;
  if (name == "scale_format") return extras.scale_format = Field<ScaleFormat>::from(value), true;
  return false;
}

// Options of a builder: members of this name, where it has them.
template <typename Options>
bool set_tensor(Options& options, const std::string& name, nb::handle value, Arrays& arrays) {
  const auto give = [&](auto& member) { return member = arrays.in(value, name.c_str()), true; };
  if constexpr (requires { options.w1_scale; }) {
    if (name == "w1_scale") return give(options.w1_scale);
    if (name == "w2_scale") return give(options.w2_scale);
  }
  if constexpr (requires { options.a1_scale; }) {
    if (name == "a1_scale") return give(options.a1_scale);
    if (name == "a2_scale") return give(options.a2_scale);
  }
  if constexpr (requires { options.g1_alphas; }) {
    if (name == "g1_alphas") return give(options.g1_alphas);
    if (name == "g2_alphas") return give(options.g2_alphas);
  }
  if constexpr (requires { options.a1_gscale; }) {
    if (name == "a1_gscale") return give(options.a1_gscale);
    if (name == "a2_gscale") return give(options.a2_gscale);
  }
  if constexpr (requires { options.w1_bias; }) {
    if (name == "w1_bias") return give(options.w1_bias);
    if (name == "w2_bias") return give(options.w2_bias);
  }
  if constexpr (requires { options.w1_zp; }) {
    if (name == "w1_zp") return give(options.w1_zp);
    if (name == "w2_zp") return give(options.w2_zp);
  }
  return false;
}

template <typename Options>
bool set_option(Options& options, const std::string& name, nb::handle value, Arrays& arrays) {
  if (set_tensor(options, name, value, arrays)) return true;
  if constexpr (requires { options.quant_dtype; }) {
    if (name == "quant_dtype") return options.quant_dtype = Field<QuantDType>::from(value), true;
  }
  if constexpr (requires { options.weight_dtype; }) {
    if (name == "weight_dtype")
      return options.weight_dtype = Field<std::optional<QuantDType>>::from(value), true;
  }
  if constexpr (requires { options.per_act_token_quant; }) {
    if (name == "per_act_token_quant")
      return options.per_act_token_quant = nb::cast<bool>(value), true;
  }
  if constexpr (requires { options.per_out_ch_quant; }) {
    if (name == "per_out_ch_quant") return options.per_out_ch_quant = nb::cast<bool>(value), true;
  }
  if constexpr (requires { options.block_shape; }) {
    if (name == "block_shape") return options.block_shape = block_from(value), true;
  }
  if constexpr (requires { options.weight_bits; }) {
    if (name == "weight_bits") return options.weight_bits = nb::cast<std::int32_t>(value), true;
    if (name == "group_size") return options.group_size = nb::cast<std::int32_t>(value), true;
  }
  if constexpr (requires { options.extras; }) return set_extra(options.extras, name, value);
  return false;
}

// Those that set_option knows for a builder.
template <typename Options>
std::vector<std::string_view> names_of_options() {
  std::vector<std::string_view> names;
  const auto add = [&](std::initializer_list<std::string_view> some) {
    names.insert(names.end(), some);
  };
  if constexpr (requires(Options o) { o.w1_scale; }) add({"w1_scale", "w2_scale"});
  if constexpr (requires(Options o) { o.a1_scale; }) add({"a1_scale", "a2_scale"});
  if constexpr (requires(Options o) { o.g1_alphas; }) add({"g1_alphas", "g2_alphas"});
  if constexpr (requires(Options o) { o.a1_gscale; }) add({"a1_gscale", "a2_gscale"});
  if constexpr (requires(Options o) { o.w1_bias; }) add({"w1_bias", "w2_bias"});
  if constexpr (requires(Options o) { o.w1_zp; }) add({"w1_zp", "w2_zp"});
  if constexpr (requires(Options o) { o.quant_dtype; }) add({"quant_dtype"});
  if constexpr (requires(Options o) { o.weight_dtype; }) add({"weight_dtype"});
  if constexpr (requires(Options o) { o.per_act_token_quant; }) add({"per_act_token_quant"});
  if constexpr (requires(Options o) { o.per_out_ch_quant; }) add({"per_out_ch_quant"});
  if constexpr (requires(Options o) { o.block_shape; }) add({"block_shape"});
  if constexpr (requires(Options o) { o.weight_bits; }) add({"weight_bits", "group_size"});
  if constexpr (requires(Options o) { o.extras; })
    add({"is_scale_swizzled", "gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit", "mx_alignment",
         "scale_format"});
  return names;
}

template <typename Options>
void bind_builder(nb::class_<PyQuantConfig>& type, const char* name,
                  QuantConfig (*build)(const Options&)) {
  type.def_static(
      name,
      [name, build](const nb::kwargs& keywords) {
        Options options;
        Arrays arrays;
        for (const auto& [key, value] : keywords) {
          const std::string word = nb::cast<std::string>(key);
          try {
            if (set_option(options, word, value, arrays)) continue;
          } catch (const nb::cast_error&) {
            fail_type(word, value, "of the type that docs/configuration.md has for it");
          }
          fail_keyword(name, word, names_of_options<Options>());
        }
        return PyQuantConfig{build(options), arrays.take_held()};
      },
      "Keywords as in docs/configuration.md: scales w1_scale, a1_scale, ..., flags, block_shape, "
      "extras.");
}

}  // namespace

void bind_quant_config(nb::module_& m) {
  nb::class_<PyQuantConfig> type(
      m, "QuantConfig",
      "How activations and weights of a layer are quantized (vLLM's FusedMoEQuantConfig).");
  type.def(nb::init<>(), "Not quantized.");
  bind_builder(type, "make", &QuantConfig::make);
  bind_builder(type, "fp8_w8a8", &QuantConfig::fp8_w8a8);
  bind_builder(type, "int8_w8a8", &QuantConfig::int8_w8a8);
  bind_builder(type, "mxfp4_w4a16", &QuantConfig::mxfp4_w4a16);
  bind_builder(type, "ocp_mx", &QuantConfig::ocp_mx);
  bind_builder(type, "nvfp4", &QuantConfig::nvfp4);
  bind_builder(type, "int4_w4a16", &QuantConfig::int4_w4a16);
  bind_builder(type, "int8_w8a16", &QuantConfig::int8_w8a16);
  bind_builder(type, "biased", &QuantConfig::biased);
  bind_builder(type, "gptq_marlin", &QuantConfig::gptq_marlin);
  bind_builder(type, "mxfp4_mxfp8", &QuantConfig::mxfp4_mxfp8);
  bind_builder(type, "mxfp4_w4a8", &QuantConfig::mxfp4_w4a8);
  bind_builder(type, "mxfp4", &QuantConfig::mxfp4);
  bind_builder(type, "nvfp4_w4a16", &QuantConfig::nvfp4_w4a16);
  bind_builder(type, "fp8_w8a16", &QuantConfig::fp8_w8a16);
  bind_builder(type, "int4_w4afp8", &QuantConfig::int4_w4afp8);
  type.def_prop_ro(
          "quant_dtype",
          [](const PyQuantConfig& self) { return name_of(self.config.quant_dtype()); },
          "Of activations; \"none\": not quantized.")
      .def_prop_ro(
          "weight_quant_dtype",
          [](const PyQuantConfig& self) { return name_of(self.config.weight_quant_dtype()); },
          "Of weights.")
      .def_prop_ro(
          "is_quantized", [](const PyQuantConfig& self) { return self.config.is_quantized(); },
          "Whether activations are quantized.")
      .def_prop_ro(
          "per_act_token_quant",
          [](const PyQuantConfig& self) { return self.config.per_act_token_quant(); },
          "One scale per row of activations.")
      .def_prop_ro(
          "per_out_ch_quant",
          [](const PyQuantConfig& self) { return self.config.per_out_ch_quant(); },
          "One scale per output channel of weights.")
      .def_prop_ro(
          "is_per_tensor", [](const PyQuantConfig& self) { return self.config.is_per_tensor(); },
          "One scale for all activations.")
      .def_prop_ro(
          "block_shape",
          [](const PyQuantConfig& self) -> nb::object {
            const auto block = self.config.block_shape();
            return block ? nb::object(nb::make_tuple((*block)[0], (*block)[1])) : nb::none();
          },
          nb::sig("def block_shape(self) -> tuple[int, int] | None"),
          "Rows and columns that share a scale; None: no blocks.")
      .def_prop_ro(
          "activation_scheme",
          [](const PyQuantConfig& self) { return activation_scheme(self.config); },
          "The scheme of rows of activations.")
      .def(
          "config_name",
          [](const PyQuantConfig& self, nb::handle dtype) {
            return self.config.config_name(dtype_from(dtype));
          },
          nb::arg("in_dtype") = "bf16",
          nb::sig("def config_name(self, in_dtype: DTypeLike = 'bf16') -> str | None"),
          "Part of the file name of tuned kernel configurations; None: it has none.")
      .def("__repr__", [](const PyQuantConfig& self) {
        return fmt::format("QuantConfig(activations='{}', weights='{}')",
                           name_of(self.config.quant_dtype()),
                           name_of(self.config.weight_quant_dtype()));
      });
}

}  // namespace switchyard::python
