// SPDX-License-Identifier: Apache-2.0
//
// The sizes of a layer (vLLM's names) and what is made from them and a QuantConfig:
// prepare/finalize objects and experts.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/experts_factory.h"
#include "switchyard/prepare_finalize_factory.h"

#include "dtypes.h"
#include "gil.h"
#include "group.h"
#include "layer.h"
#include "module.h"
#include "moe/config/config_fields.h"
#include "moe/prepare/prepare_fields.h"
#include "quant_config.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {

template <>
struct Field<ParallelConfig> {
  static ParallelConfig from(nb::handle value) { return nb::cast<ParallelConfig>(value); }
  static nb::object to(const ParallelConfig& value) { return nb::cast(value); }
  static std::string type() { return "ParallelConfig"; }
};

namespace {

template <typename T>
T made_from(const nb::kwargs& keywords, const char* type) {
  T fields{};
  set_fields(fields, keywords, type);
  return fields;
}

void bind_sizes(nb::module_& m) {
  ConfigClass<ParallelOptions>(m, "ParallelOptions", "What ParallelConfig.make starts from.")
      .done();
  ConfigClass<ParallelConfig>(m, "ParallelConfig",
                              "How a layer is spread over ranks (vLLM's FusedMoEParallelConfig).")
      .done()
      .def_static(
          "make",
          [](const nb::kwargs& keywords) {
            return ParallelConfig::make(made_from<ParallelOptions>(keywords, "ParallelOptions"));
          },
          "From the members of ParallelOptions: uses expert parallelism when it is enabled and "
          "there is more than one rank.")
      .def_prop_ro("use_all2all_kernels", &ParallelConfig::use_all2all_kernels,
                   "Whether tokens travel between ranks.")
      .def_prop_ro("use_batched_activation_format", &ParallelConfig::use_batched_activation_format,
                   "Whether experts get [L, C, H].")
      .def_prop_ro("needs_round_robin_routing_tables",
                   &ParallelConfig::needs_round_robin_routing_tables,
                   "Whether round-robin placement needs routing tables.");
  ConfigClass<MoEConfig>(m, "MoEConfig", "Sizes of a layer (vLLM's FusedMoEConfig).")
      .done()
      .def_static(
          "make",
          [](const nb::kwargs& keywords) {
            return MoEConfig::make(made_from<MoEConfig>(keywords, "MoEConfig"));
          },
          "Checks the members and fills in those that are None.")
      .def("use_flashinfer_cutlass_kernels", &MoEConfig::use_flashinfer_cutlass_kernels,
           nb::arg("has_kernels") = true,
           "Whether the settings SWITCHYARD_USE_FLASHINFER_MOE_FP4 and "
           "SWITCHYARD_FLASHINFER_MOE_BACKEND ask for them and the caller has them.");
}

// Keywords of the factory: members of PrepareFinalizeOptions, then of ExchangeOptions.
struct FactoryCall {
  FactoryCall(const char* function, const nb::kwargs& keywords) {
    for (const auto& [key, value] : keywords) {
      const std::string name = nb::cast<std::string>(key);
      if (name == "global_to_physical") {
        physical = whole_numbers(value, "global_to_physical");
        options.global_to_physical = physical;
      } else if (!set_field(options, name, value) && !set_field(options.exchange, name, value)) {
        fail_keyword(
            function, name,
            known_keywords<PrepareFinalizeOptions, ExchangeOptions>({"global_to_physical"}));
      }
    }
  }

  std::vector<std::int64_t> physical;
  PrepareFinalizeOptions options;
};

void bind_factory(nb::module_& m) {
  add_fields<PrepareFinalizeOptions>();
  m.def(
      "choose_prepare_finalize",
      [](const MoEConfig& moe, const PyQuantConfig& quant, const nb::kwargs& keywords) {
        const FactoryCall call("choose_prepare_finalize", keywords);
        const PrepareFinalizeChoice choice =
            choose_prepare_finalize(moe, quant.config, call.options);
        return nb::make_tuple(enum_name(choice.kind), choice.config);
      },
      nb::arg("moe"), nb::arg("quant"), nb::arg("options"),
      nb::sig(
          "def choose_prepare_finalize(moe: MoEConfig, quant: QuantConfig, *, use_cudagraph: bool "
          "= True, nvfp4_dispatch: bool = False, global_to_physical: Sequence[int] | Array = (), "
          "reduce: str | None = None, scale_layout: str | None = None, expert_alignment: int = 1, "
          "num_micro_batches: int = 0, wire_scheme: SchemeLike | None = None, defers_input_quant: "
          "bool = False) -> tuple[str, PrepareFinalizeConfig]"),
      "(kind, config) of the class that implements the configured backend (vLLM's "
      "maybe_make_prepare_finalize).");
  m.def(
      "prepare_finalize_from_config",
      [](const PyGroup& group, const MoEConfig& moe, const PyQuantConfig& quant,
         const nb::kwargs& keywords) {
        const FactoryCall call("prepare_finalize_from_config", keywords);
        const auto ranks = group.live();
        const Exclusive exclusive = group.call();
        return PyPrepareFinalize{Part<PrepareFinalize>(without_gil(
            [&] { return make_prepare_finalize(*ranks, moe, quant.config, call.options); }))};
      },
      nb::arg("group"), nb::arg("moe"), nb::arg("quant"), nb::arg("options"),
      nb::sig(
          "def prepare_finalize_from_config(group: Group, moe: MoEConfig, quant: QuantConfig, "
          "*, use_cudagraph: bool = True, nvfp4_dispatch: bool = False, global_to_physical: "
          "Sequence[int] | Array = (), reduce: str | None = None, scale_layout: str | None = "
          "None, expert_alignment: int = 1, num_micro_batches: int = 0, wire_scheme: SchemeLike "
          "| None = None, defers_input_quant: bool = False, device: DeviceLike = 'cpu') -> "
          "PrepareFinalize"),
      "Makes the object that choose_prepare_finalize selects. Collective. `group`: the ranks that "
      "hold the experts.");
  m.def(
      "experts_from_config",
      [](nb::handle w1, nb::handle w2, const PyQuantConfig& quant, const std::string& name,
         nb::handle device) {
        Arrays arrays;
        const TensorView first = arrays.in(w1, "experts_from_config: w1"),
                         second = arrays.in(w2, "experts_from_config: w2");
        const Device place = device_from(device);
        return PyExperts{Part<Experts>(without_gil(
            [&] { return make_experts(name, first, second, quant.config, {}, place); }))};
      },
      nb::arg("w1"), nb::arg("w2"), nb::arg("quant"), nb::arg("name") = "exact",
      nb::arg("device") = "cpu",
      nb::sig("def experts_from_config(w1: Array, w2: Array, quant: QuantConfig, name: "
              "Literal['exact', 'onednn', 'cublas', 'cutlass'] = 'exact', device: DeviceLike = "
              "'cpu') -> Experts"),
      "Experts from vLLM's two weights: w1 [L, 2 I, H], gate then up; w2 [L, H, I]. Host memory, "
      "copied once.");
}

}  // namespace

void bind_layer_config(nb::module_& m) {
  bind_sizes(m);
  bind_factory(m);
}

}  // namespace switchyard::python
