// SPDX-License-Identifier: Apache-2.0
//
// QuantConfig: one builder per kind of quantization, with the keywords of vLLM.

#include "quant_config.h"

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dtypes.h"
#include "module.h"
#include "moe/config/config_fields.h"
#include "moe/config/quant_builders.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

// Calls visit(struct, field) for each option that the builder takes.
template <typename Visit>
void for_each_option(const QuantBuilder& builder, QuantOptions& options, const Visit& visit) {
  const auto offer = [&](auto& of) {
    for_each_field<std::remove_cvref_t<decltype(of)>>([&](const auto& field) {
      if (builder.takes(field.name)) visit(of, field);
    });
  };
  offer(options);
  offer(options.extras);
}

bool set_option(const QuantBuilder& builder, QuantOptions& options, const std::string& name,
                nb::handle value, Arrays& arrays) {
  bool is_known = false;
  for_each_option(builder, options,
                  [&]<typename T, typename M>(T& of, const OptionField<T, M>& field) {
                    if (name != field.name) return;
                    is_known = true;
                    if constexpr (std::is_same_v<M, TensorView> || std::is_same_v<M, ScaleSource>) {
                      of.*field.member = arrays.in(value, field.name);
                    } else {
                      of.*field.member = Field<M>::from(value);
                    }
                  });
  return is_known;
}

PyQuantConfig build(const QuantBuilder& builder, const nb::kwargs& keywords) {
  QuantOptions options;
  Arrays arrays;
  for (const auto& [key, value] : keywords) {
    const std::string word = nb::cast<std::string>(key);
    try {
      if (set_option(builder, options, word, value, arrays)) continue;
    } catch (const nb::cast_error&) {
      fail_type(word, value, "of the type that docs/configuration.md has for it");
    }
    std::vector<std::string_view> names;
    for_each_option(builder, options,
                    [&](auto&, const auto& field) { names.push_back(field.name); });
    fail_keyword(builder.name, word, names);
  }
  return PyQuantConfig{builder.build(options), arrays.take_held()};
}

}  // namespace

void bind_quant_config(nb::module_& m) {
  nb::class_<PyQuantConfig> type(
      m, "QuantConfig",
      "How activations and weights of a layer are quantized (vLLM's FusedMoEQuantConfig).");
  type.def(nb::init<>(), "Not quantized.");
  for (const QuantBuilder& builder : quant_builders()) {
    type.def_static(
        builder.name, [&builder](const nb::kwargs& words) { return build(builder, words); },
        "Keywords as in docs/configuration.md: scales w1_scale, a1_scale, ..., flags, block_shape, "
        "extras.");
  }
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
          [](const PyQuantConfig& self) {
            return Field<std::optional<BlockShape>>::to(self.config.block_shape());
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
