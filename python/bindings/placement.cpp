// SPDX-License-Identifier: Apache-2.0
//
// Load balancing: copies of experts, which copy serves a token, and the load of each.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/eplb.h"

#include "core/fail.h"
#include "errors.h"
#include "gil.h"
#include "module.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

std::vector<std::int32_t> ids_from(nb::handle values, const char* name) {
  std::vector<std::int32_t> ids;
  for (const std::int64_t id : whole_numbers(values, name)) {
    require(std::in_range<std::int32_t>(id), Errc::kInvalidArgument,
            "{}[{}] is {}, must be below 2^31", name, ids.size(), id);
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

// [layers][experts]: loads as integers in the ratios of those given, and whether there were layers.
std::pair<std::vector<std::vector<std::int64_t>>, bool> loads_from(nb::handle values,
                                                                   const char* name) {
  return nb::cast<std::pair<std::vector<std::vector<std::int64_t>>, bool>>(
      nb::module_::import_("switchyard.arrays").attr("loads")(values, name));
}

nb::object balance(nb::handle logical_load, const BalanceConfig& config) {
  const auto [layers, are_layers] = loads_from(logical_load, "balance_experts: logical_load");
  std::vector<std::vector<std::int32_t>> placements;
  for (const auto& load : layers) placements.push_back(balance_experts(load, config));
  return are_layers ? nb::cast(placements) : nb::cast(placements.front());
}

double balance_of(nb::handle logical_load, nb::handle physical_to_logical, std::int32_t num_ranks) {
  const auto [layers, are_layers] = loads_from(logical_load, "load_balance: logical_load");
  require(!are_layers, Errc::kInvalidArgument,
          "load_balance: logical_load has two dimensions, must have one; call it for each layer");
  return load_balance(layers.front(),
                      ids_from(physical_to_logical, "load_balance: physical_to_logical"),
                      num_ranks);
}

PyTensor tensor_of(const std::vector<std::int32_t>& values,
                   std::initializer_list<std::int64_t> shape) {
  Tensor tensor(DType::kI32, shape);
  std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
  return PyTensor::of(std::move(tensor), Stream::host());
}

nb::object map_ids(nb::handle topk_ids, const LogicalMaps& maps, nb::handle out) {
  Arrays arrays;
  const TensorView ids = arrays.in(topk_ids, "map_logical_to_physical: topk_ids");
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < ids.num_dims(); ++dim) shape.push_back(ids.shape(dim));
    result = nb::cast(arrays.allocate(ids.dtype(), shape, arrays.device()));
  }
  const TensorView physical = arrays.out(result, "map_logical_to_physical: out");
  without_gil([&] { map_logical_to_physical(ids, maps, physical); });
  return result;
}

std::vector<std::int64_t> copied(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

}  // namespace

void bind_placement(nb::module_& m) {
  m.def("initial_physical_to_logical", &initial_physical_to_logical, nb::arg("num_logical"),
        nb::arg("num_redundant"),
        "[num_logical + num_redundant]: the logical expert of each physical one, before any "
        "balancing.");
  m.def(
      "balance_experts",
      [](nb::handle logical_load, std::int32_t num_physical, std::int32_t num_ranks,
         std::int32_t num_hosts, std::int32_t num_groups) {
        return balance(logical_load, {num_physical, num_ranks, num_hosts, num_groups});
      },
      nb::arg("logical_load"), nb::arg("num_physical"), nb::arg("num_ranks"), nb::kw_only(),
      nb::arg("num_hosts") = 1, nb::arg("num_groups") = 1,
      nb::sig("def balance_experts(logical_load: Sequence[float] | Array, num_physical: int, "
              "num_ranks: int, *, num_hosts: int = 1, num_groups: int = 1) -> list[int] | "
              "list[list[int]]"),
      "[num_physical]: the logical expert of each physical one, in rank order, by DeepSeek's EPLB; "
      "of a load [layers, experts]\n[layers, num_physical]. Loads are whole or not, and only their "
      "ratios count. Groups that divide evenly among hosts\nstay on one host each.");
  m.def("load_balance", &balance_of, nb::arg("logical_load"), nb::arg("physical_to_logical"),
        nb::arg("num_ranks"),
        nb::sig("def load_balance(logical_load: Sequence[float] | Array, physical_to_logical: "
                "Sequence[int] | Array, num_ranks: int) -> float"),
        "The mean load of a rank divided by the largest; 1 is even.");
  m.def(
      "choose_replica",
      [](std::int64_t token, std::int32_t num_replicas) {
        require(num_replicas >= 1, Errc::kInvalidArgument,
                "choose_replica: num_replicas is {}, must be at least 1", num_replicas);
        return choose_replica(token, num_replicas);
      },
      nb::arg("token"), nb::arg("num_replicas"),
      "Which of the copies of an expert serves a token row.");
  nb::class_<LogicalMaps>(m, "LogicalMaps", "Where the copies of each logical expert are.")
      .def_ro("num_logical", &LogicalMaps::num_logical, "Logical experts.")
      .def_ro("max_replicas", &LogicalMaps::max_replicas, "Copies of the most replicated expert.")
      .def_prop_ro(
          "logical_to_physical",
          [](const LogicalMaps& self) {
            return tensor_of(self.logical_to_physical, {self.num_logical, self.max_replicas});
          },
          "i32 [num_logical, max_replicas], ascending, then -1; a copy.")
      .def_prop_ro(
          "replica_counts",
          [](const LogicalMaps& self) {
            return tensor_of(self.replica_counts, {self.num_logical});
          },
          "i32 [num_logical]; a copy.")
      .def("__repr__", [](const LogicalMaps& self) {
        return "LogicalMaps(num_logical=" + std::to_string(self.num_logical) +
               ", max_replicas=" + std::to_string(self.max_replicas) + ")";
      });
  m.def(
      "compute_logical_maps",
      [](nb::handle physical_to_logical, std::int32_t num_logical) {
        return compute_logical_maps(
            ids_from(physical_to_logical, "compute_logical_maps: physical_to_logical"),
            num_logical);
      },
      nb::arg("physical_to_logical"), nb::arg("num_logical"),
      nb::sig("def compute_logical_maps(physical_to_logical: Sequence[int] | Array, num_logical: "
              "int) -> LogicalMaps"),
      "The inverse of a physical-to-logical map, in which -1 marks an empty slot.");
  m.def("map_logical_to_physical", &map_ids, nb::arg("topk_ids"), nb::arg("maps"),
        nb::arg("out").none() = nb::none(),
        nb::sig("def map_logical_to_physical(topk_ids: Array, maps: LogicalMaps, out: Array | None "
                "= None) -> Tensor"),
        "[T, K]: each logical id replaced by the physical id of the copy that serves its token. "
        "CPUs only.");
  nb::class_<ExpertLoad>(m, "ExpertLoad",
                         "Rows per physical expert, summed over the most recent steps.")
      .def(nb::init<std::int32_t, std::int32_t>(), nb::arg("num_physical"),
           nb::arg("window") = ExpertLoad::kDefaultWindow)
      .def(
          "add_counts",
          [](ExpertLoad& self, nb::handle expert_load) {
            self.add_step(whole_numbers(expert_load, "add_counts: expert_load"));
          },
          nb::arg("expert_load"),
          nb::sig("def add_counts(self, expert_load: Sequence[int] | Array) -> None"),
          "Adds a step given as rows per physical expert, for example HostCounts.expert_load.")
      .def(
          "add_ids",
          [](ExpertLoad& self, nb::handle physical_ids, nb::handle num_tokens) {
            Arrays arrays;
            const TensorView ids = arrays.in(physical_ids, "add_ids: physical_ids");
            const std::int64_t num = num_tokens.is_none()
                                         ? (ids.num_dims() > 0 ? ids.shape(0) : 0)
                                         : argument<std::int64_t>(num_tokens, "num_tokens", "int");
            self.add_step(ids, num);
          },
          nb::arg("physical_ids"), nb::arg("num_tokens").none() = nb::none(),
          nb::sig("def add_ids(self, physical_ids: Array, num_tokens: int | None = None) -> None"),
          "Adds a step given as chosen experts, [T, K]; rows from num_tokens on are padding.")
      .def_prop_ro("num_steps", &ExpertLoad::num_steps, "Steps that the sums cover.")
      .def_prop_ro(
          "physical_load", [](const ExpertLoad& self) { return copied(self.physical_load()); },
          "[num_physical]: sums over these steps.")
      .def(
          "logical_load",
          [](const ExpertLoad& self, nb::handle physical_to_logical, std::int32_t num_logical) {
            return self.logical_load(
                ids_from(physical_to_logical, "logical_load: physical_to_logical"), num_logical);
          },
          nb::arg("physical_to_logical"), nb::arg("num_logical"),
          nb::sig("def logical_load(self, physical_to_logical: Sequence[int] | Array, num_logical: "
                  "int) -> list[int]"),
          "[num_logical]: the copies of each expert added up.")
      .def("reset", &ExpertLoad::reset, "Forgets all steps.")
      .def("__repr__", [](const ExpertLoad& self) {
        return "ExpertLoad(num_physical=" + std::to_string(self.physical_load().size()) +
               ", num_steps=" + std::to_string(self.num_steps()) + ")";
      });
}

}  // namespace switchyard::python
