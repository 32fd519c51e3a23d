// SPDX-License-Identifier: Apache-2.0
//
// The configuration of a layer (vLLM's names) and what is made from it: prepare/finalize objects
// and experts. A QuantConfig keeps the arrays that it was made from.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/experts_factory.h"
#include "switchyard/prepare_finalize_factory.h"

#include "config.h"
#include "dtypes.h"
#include "gil.h"
#include "group.h"
#include "layer.h"
#include "module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {

// Enums whose names the library has.
template <typename T>
struct LibraryEnum;
template <>
struct LibraryEnum<All2AllBackend> {
  static constexpr auto kFromName = &all2all_backend_from_name;
  static constexpr const char* kWhat = "all2all_backend";
};
template <>
struct LibraryEnum<MoEActivation> {
  static constexpr auto kFromName = &moe_activation_from_name;
  static constexpr const char* kWhat = "activation";
};
template <>
struct LibraryEnum<QuantDType> {
  static constexpr auto kFromName = &quant_dtype_from_name;
  static constexpr const char* kWhat = "quant_dtype";
};

template <typename T>
requires requires { LibraryEnum<T>::kWhat; }
struct Field<T> {
  static T from(nb::handle value) {
    const std::string name = value.is_none() ? "none" : nb::cast<std::string>(value);
    const auto found = LibraryEnum<T>::kFromName(name);
    require(found.has_value(), Errc::kInvalidArgument,
            "{}: \"{}\" is no name of one; docs/configuration.md lists them", LibraryEnum<T>::kWhat,
            name);
    return *found;
  }
  static nb::object to(T value) { return nb::str(name_of(value)); }
  static std::string type() { return "str"; }
};

template <>
struct Field<ParallelConfig> {
  static ParallelConfig from(nb::handle value) { return nb::cast<ParallelConfig>(value); }
  static nb::object to(const ParallelConfig& value) { return nb::cast(value); }
  static std::string type() { return "ParallelConfig"; }
};

namespace {

struct PyQuantConfig {
  QuantConfig config;
  std::vector<nb::object> held{};
};

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
          if (!set_option(options, word, value, arrays)) {
            throw nb::type_error(
                (std::string(name) + "() got an unexpected keyword argument '" + word + "'")
                    .c_str());
          }
        }
        return PyQuantConfig{build(options), arrays.take_held()};
      },
      "Keywords as in docs/configuration.md: scales w1_scale, a1_scale, ..., flags, block_shape, "
      "extras.");
}

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
  type.def_prop_ro("quant_dtype",
                   [](const PyQuantConfig& self) { return name_of(self.config.quant_dtype()); })
      .def_prop_ro(
          "weight_quant_dtype",
          [](const PyQuantConfig& self) { return name_of(self.config.weight_quant_dtype()); })
      .def_prop_ro("is_quantized",
                   [](const PyQuantConfig& self) { return self.config.is_quantized(); })
      .def_prop_ro("per_act_token_quant",
                   [](const PyQuantConfig& self) { return self.config.per_act_token_quant(); })
      .def_prop_ro("per_out_ch_quant",
                   [](const PyQuantConfig& self) { return self.config.per_out_ch_quant(); })
      .def_prop_ro("is_per_tensor",
                   [](const PyQuantConfig& self) { return self.config.is_per_tensor(); })
      .def_prop_ro(
          "block_shape",
          [](const PyQuantConfig& self) -> nb::object {
            const auto block = self.config.block_shape();
            return block ? nb::object(nb::make_tuple((*block)[0], (*block)[1])) : nb::none();
          },
          nb::sig("def block_shape(self) -> tuple[int, int] | None"))
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
          nb::sig("def config_name(self, in_dtype: DTypeLike = 'bf16') -> str | None"))
      .def("__repr__", [](const PyQuantConfig& self) {
        return fmt::format("QuantConfig(activations='{}', weights='{}')",
                           name_of(self.config.quant_dtype()),
                           name_of(self.config.weight_quant_dtype()));
      });
}

template <typename T>
T made_from(const nb::kwargs& keywords, const char* type) {
  T fields{};
  set_fields(fields, keywords, type);
  return fields;
}

void bind_sizes(nb::module_& m) {
  ConfigClass<ParallelOptions>(m, "ParallelOptions", "What ParallelConfig.make starts from.")
      .field("tp_size", &ParallelOptions::tp_size, "Tensor parallel.")
      .field("tp_rank", &ParallelOptions::tp_rank)
      .field("dp_size", &ParallelOptions::dp_size, "Data parallel.")
      .field("dp_rank", &ParallelOptions::dp_rank)
      .field("pcp_size", &ParallelOptions::pcp_size, "Prefill context parallel.")
      .field("pcp_rank", &ParallelOptions::pcp_rank)
      .field("sp_size", &ParallelOptions::sp_size, "Sequence parallel.")
      .field("enable_expert_parallel", &ParallelOptions::enable_expert_parallel)
      .field("enable_eplb", &ParallelOptions::enable_eplb)
      .field("all2all_backend", &ParallelOptions::all2all_backend,
             "None: the setting SWITCHYARD_ALL2ALL_BACKEND.")
      .done();
  ConfigClass<ParallelConfig>(m, "ParallelConfig",
                              "How a layer is spread over ranks (vLLM's FusedMoEParallelConfig).")
      .field("tp_size", &ParallelConfig::tp_size)
      .field("tp_rank", &ParallelConfig::tp_rank)
      .field("pcp_size", &ParallelConfig::pcp_size)
      .field("pcp_rank", &ParallelConfig::pcp_rank)
      .field("dp_size", &ParallelConfig::dp_size)
      .field("dp_rank", &ParallelConfig::dp_rank)
      .field("ep_size", &ParallelConfig::ep_size)
      .field("ep_rank", &ParallelConfig::ep_rank)
      .field("sp_size", &ParallelConfig::sp_size)
      .field("use_ep", &ParallelConfig::use_ep)
      .field("all2all_backend", &ParallelConfig::all2all_backend)
      .field("enable_eplb", &ParallelConfig::enable_eplb)
      .done()
      .def_static(
          "make",
          [](const nb::kwargs& keywords) {
            return ParallelConfig::make(made_from<ParallelOptions>(keywords, "ParallelOptions"));
          },
          "From the members of ParallelOptions: uses expert parallelism when it is enabled and "
          "there is more than one rank.")
      .def_prop_ro("use_all2all_kernels", &ParallelConfig::use_all2all_kernels)
      .def_prop_ro("use_batched_activation_format", &ParallelConfig::use_batched_activation_format);
  ConfigClass<MoEConfig>(m, "MoEConfig", "Sizes of a layer (vLLM's FusedMoEConfig).")
      .field("num_experts", &MoEConfig::num_experts)
      .field("num_topk", &MoEConfig::num_topk)
      .field("hidden", &MoEConfig::hidden)
      .field("parallel", &MoEConfig::parallel)
      .field("in_dtype", &MoEConfig::in_dtype)
      .field("max_num_tokens", &MoEConfig::max_num_tokens)
      .field("has_bias", &MoEConfig::has_bias)
      .field("intermediate", &MoEConfig::intermediate)
      .field("activation", &MoEConfig::activation)
      .field("num_local_experts", &MoEConfig::num_local_experts)
      .field("num_logical_experts", &MoEConfig::num_logical_experts)
      .field("router_logits_dtype", &MoEConfig::router_logits_dtype)
      .field("hidden_unpadded", &MoEConfig::hidden_unpadded)
      .field("intermediate_per_partition_unpadded", &MoEConfig::intermediate_per_partition_unpadded)
      .done()
      .def_static(
          "make",
          [](const nb::kwargs& keywords) {
            return MoEConfig::make(made_from<MoEConfig>(keywords, "MoEConfig"));
          },
          "Checks the members and fills in those that are None.");
}

// Keywords of the factory: members of PrepareFinalizeOptions, then of ExchangeOptions.
struct FactoryCall {
  explicit FactoryCall(const nb::kwargs& keywords) {
    for (const auto& [key, value] : keywords) {
      const std::string name = nb::cast<std::string>(key);
      if (name == "global_to_physical") {
        physical = nb::cast<std::vector<std::int64_t>>(
            nb::hasattr(value, "tolist") ? value.attr("tolist")() : nb::borrow(value));
        options.global_to_physical = physical;
      } else if (!set_field(options, name, value) && !set_field(options.exchange, name, value)) {
        throw nb::type_error(("got an unexpected keyword argument '" + name + "'").c_str());
      }
    }
  }

  std::vector<std::int64_t> physical;
  PrepareFinalizeOptions options;
};

void bind_factory(nb::module_& m) {
  auto& fields = fields_of<PrepareFinalizeOptions>();
  using Options = PrepareFinalizeOptions;
  fields.push_back({"use_cudagraph",
                    "bool",
                    [](Options& o, nb::handle v) { o.use_cudagraph = nb::cast<bool>(v); },
                    {}});
  fields.push_back({"nvfp4_dispatch",
                    "bool",
                    [](Options& o, nb::handle v) { o.nvfp4_dispatch = nb::cast<bool>(v); },
                    {}});
  fields.push_back(
      {"reduce",
       "str",
       [](Options& o, nb::handle v) { o.reduce = Field<std::optional<Reduce>>::from(v); },
       {}});
  fields.push_back({"scale_layout",
                    "str",
                    [](Options& o, nb::handle v) {
                      o.scale_layout = Field<std::optional<ScaleLayout>>::from(v);
                    },
                    {}});
  fields.push_back(
      {"expert_alignment",
       "int",
       [](Options& o, nb::handle v) { o.expert_alignment = nb::cast<std::int64_t>(v); },
       {}});
  fields.push_back(
      {"num_micro_batches",
       "int",
       [](Options& o, nb::handle v) { o.num_micro_batches = nb::cast<std::int32_t>(v); },
       {}});
  m.def(
      "choose_prepare_finalize",
      [](const MoEConfig& moe, const PyQuantConfig& quant, const nb::kwargs& keywords) {
        const FactoryCall call(keywords);
        const PrepareFinalizeChoice choice =
            choose_prepare_finalize(moe, quant.config, call.options);
        return nb::make_tuple(enum_name(choice.kind), choice.config);
      },
      nb::arg("moe"), nb::arg("quant"), nb::arg("options"),
      nb::sig(
          "def choose_prepare_finalize(moe: MoEConfig, quant: QuantConfig, *, use_cudagraph: bool "
          "= True, nvfp4_dispatch: bool = False, global_to_physical: Sequence[int] | Array = (), "
          "reduce: str | None = None, scale_layout: str | None = None, expert_alignment: int = 1, "
          "num_micro_batches: int = 0) -> tuple[str, PrepareFinalizeConfig]"),
      "(kind, config) of the class that implements the configured backend (vLLM's "
      "maybe_make_prepare_finalize).");
  m.def(
      "prepare_finalize_from_config",
      [](const PyGroup& group, const MoEConfig& moe, const PyQuantConfig& quant,
         const nb::kwargs& keywords) {
        const FactoryCall call(keywords);
        const auto ranks = group.live();
        const Exclusive exclusive = group.call();
        return PyPrepareFinalize{Part<PrepareFinalize>(without_gil(
            [&] { return make_prepare_finalize(*ranks, moe, quant.config, call.options); }))};
      },
      nb::arg("group"), nb::arg("moe"), nb::arg("quant"), nb::arg("options"),
      nb::sig("def prepare_finalize_from_config(group: Group, moe: MoEConfig, quant: QuantConfig, "
              "*, use_cudagraph: bool = True, nvfp4_dispatch: bool = False, global_to_physical: "
              "Sequence[int] | Array = (), reduce: str | None = None, scale_layout: str | None = "
              "None, expert_alignment: int = 1, num_micro_batches: int = 0, device: DeviceLike = "
              "'cpu') -> PrepareFinalize"),
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
      nb::sig(
          "def experts_from_config(w1: Array, w2: Array, quant: QuantConfig, name: "
          "Literal['exact', 'onednn', 'cublas'] = 'exact', device: DeviceLike = 'cpu') -> Experts"),
      "Experts from vLLM's two weights: w1 [L, 2 I, H], gate then up; w2 [L, H, I]. Host memory, "
      "copied once.");
}

}  // namespace

void bind_layer_config(nb::module_& m) {
  bind_quant_config(m);
  bind_sizes(m);
  bind_factory(m);
}

}  // namespace switchyard::python
