// SPDX-License-Identifier: Apache-2.0
//
// The prepare/finalize classes, by their names.

#include "prepare.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "config.h"
#include "gil.h"
#include "group.h"
#include "layer.h"
#include "module.h"
#include "moe/prepare/prepare_fields.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace switchyard::python {
namespace {

PyPrepareFinalize make(const std::string& kind_name, nb::handle group, nb::handle given,
                       const nb::kwargs& keywords) {
  const auto kind = enum_from<PrepareKind>(kind_name);
  PrepareFinalizeConfig config;
  if (!given.is_none())
    config = argument<PrepareFinalizeConfig>(given, "make_prepare_finalize: config",
                                             "a PrepareFinalizeConfig");
  ExchangeOptions options;
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (!set_field(config, name, value) && !set_field(options, name, value)) {
      fail_keyword("make_prepare_finalize", name,
                   known_keywords<PrepareFinalizeConfig, ExchangeOptions>({"config"}));
    }
  }
  if (kind == PrepareKind::kLocal) {
    return {Part<PrepareFinalize>(without_gil([&] { return make_local(config, options); }))};
  }
  if (!nb::isinstance<PyGroup>(group))
    fail_type("make_prepare_finalize: group", group, "a Group; only \"local\" needs none");
  const auto& py_group = nb::cast<const PyGroup&>(group);
  const auto ranks = py_group.live();
  const Exclusive exclusive = py_group.call();
  return {Part<PrepareFinalize>(
      without_gil([&] { return make_prepare_finalize(kind, *ranks, config, options); }))};
}

void bind_config(nb::module_& m) {
  ConfigClass<PrepareFinalizeConfig>(
      m, "PrepareFinalizeConfig",
      "Sizes and formats of a prepare/finalize object; equal on every rank.")
      .done();
}

}  // namespace

void bind_prepare(nb::module_& m) {
  bind_config(m);
  bind_prepare_results(m);
  nb::class_<PyPrepareFinalize> type(
      m, "PrepareFinalize",
      "Quantize and dispatch before the experts, combine and reduce after them (vLLM's\n"
      "FusedMoEPrepareAndFinalizeModular). Made by make_prepare_finalize.");
  bind_prepare_calls(type);
  type.def_prop_ro(
          "name", [](const PyPrepareFinalize& self) { return std::string(self.live()->name()); },
          "For messages and reports.")
      .def_prop_ro(
          "kind", [](const PyPrepareFinalize& self) { return enum_name(self.live()->kind()); },
          "Which class it is.")
      .def_prop_ro(
          "device", [](const PyPrepareFinalize& self) { return self.live()->device(); },
          "Where it works.")
      .def_prop_ro(
          "activation_format",
          [](const PyPrepareFinalize& self) { return enum_name(self.live()->activation_format()); },
          nb::sig("def activation_format(self) -> Literal['standard', 'batched']"),
          "Which experts fit: \"standard\" [M, H] or \"batched\" [L, C, H].")
      .def_prop_ro(
          "topk_indices_dtype",
          [](const PyPrepareFinalize& self) -> std::optional<std::string> {
            const auto dtype = self.live()->topk_indices_dtype();
            return dtype ? std::optional<std::string>(name_of(*dtype)) : std::nullopt;
          },
          "The dtype that topk_ids must have; None: i32 or i64.")
      .def_prop_ro(
          "max_num_tokens_per_rank",
          [](const PyPrepareFinalize& self) { return self.live()->max_num_tokens_per_rank(); },
          "Upper bound on T; None: none.")
      .def_prop_ro(
          "num_dispatchers",
          [](const PyPrepareFinalize& self) { return self.live()->num_dispatchers(); },
          "Ranks that may send to this one.")
      .def_prop_ro(
          "output_is_reduced",
          [](const PyPrepareFinalize& self) { return self.live()->output_is_reduced(); },
          "Whether finalize has summed over all ranks that hold parts of a token.")
      .def_prop_ro(
          "supports_async",
          [](const PyPrepareFinalize& self) { return self.live()->supports_async(); },
          "What the original's class says; ours can always be split.")
      .def_prop_ro(
          "hidden", [](const PyPrepareFinalize& self) { return self.live()->hidden(); }, "H.")
      .def_prop_ro(
          "num_topk", [](const PyPrepareFinalize& self) { return self.live()->num_topk(); }, "K.")
      .def_prop_ro(
          "num_micro_batches",
          [](const PyPrepareFinalize& self) { return self.live()->num_micro_batches(); },
          "Micro-batches that may be open at once.")
      .def_prop_ro(
          "max_buffer_rows",
          [](const PyPrepareFinalize& self) { return self.live()->max_buffer_rows(); },
          "Rows of the receive buffer that experts must be ready for.")
      .def_prop_ro(
          "num_local_experts",
          [](const PyPrepareFinalize& self) { return self.live()->num_local_experts(); }, "L.")
      .def_prop_ro(
          "expert_map",
          [](const PyPrepareFinalize& self) {
            const auto object = self.live();
            return tensor_or_none(object->expert_map(), object,
                                  Stream::default_of(object->device()));
          },
          nb::sig("def expert_map(self) -> Tensor"),
          "i32 [E + 1]: local index of each physical expert or -1.")
      .def_prop_ro(
          "memory",
          [](const PyPrepareFinalize& self) {
            const ExchangeMemory memory = self.live()->memory();
            return nb::make_tuple(memory.window_bytes, memory.receive_bytes);
          },
          nb::sig("def memory(self) -> tuple[int, int]"),
          "(window_bytes, receive_bytes) of this rank, scratch included.")
      .def(
          "post_init_setup",
          [](const PyPrepareFinalize& self, const PyExperts& experts) {
            const auto object = self.live();
            const auto part = experts.live();
            const Exclusive exclusive = self.call();
            without_gil([&] { object->post_init_setup(*part); });
          },
          nb::arg("experts"),
          "Introduces the experts, before the first prepare; ModularKernel does it. Collective.")
      .def(
          "abandon",
          [](const PyPrepareFinalize& self, int micro_batch, const std::string& reason) {
            const auto object = self.live();
            const Exclusive exclusive = self.call();
            object->abandon(micro_batch, reason);
          },
          nb::arg("micro_batch"), nb::arg("reason"),
          "Gives a prepared micro-batch up whose results will never come.")
      .def(
          "check", [](const PyPrepareFinalize& self) { self.live()->check(); },
          "See Exchange.check.")
      .def(
          "close", [](PyPrepareFinalize& self) { self.part.close("PrepareFinalize"); },
          "Ends its exchange; see Exchange.close.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> PrepareFinalize"))
      .def(
          "__exit__",
          [](PyPrepareFinalize& self, const nb::args& exception) {
            self.part.close("PrepareFinalize", ends_well(exception));
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def("__repr__", [](const PyPrepareFinalize& self) {
        const auto object = self.live();
        return fmt::format(
            "PrepareFinalize('{}', hidden={}, num_topk={}, num_local_experts={}, device='{}')",
            object->name(), object->hidden(), object->num_topk(), object->num_local_experts(),
            name_of(object->device()));
      });
  std::string words;
  for (const auto& field : fields_of<PrepareFinalizeConfig>())
    words += ", " + field.name + ": " + field.type + " = ...";
  for (const auto& field : fields_of<ExchangeOptions>())
    words += ", " + field.name + ": " + field.type + " = ...";
  m.def("make_prepare_finalize", &make, nb::arg("kind"), nb::arg("group").none(),
        nb::arg("config").none() = nb::none(), nb::arg("values"),
        nb::sig(sig(
            "make_prepare_finalize",
            ("(kind: " + literal_of<PrepareKind>() +
             ", group: Group | None, config: PrepareFinalizeConfig | None = None, *" + words + ")")
                .c_str(),
            " -> PrepareFinalize")),
        "The class of that name. Keywords are the members of PrepareFinalizeConfig and "
        "ExchangeOptions. Collective, but\n"
        "for \"local\", which needs no group.");
}

}  // namespace switchyard::python
