// SPDX-License-Identifier: Apache-2.0
//
// Which rank holds which expert, tables of expert ids, and token counts of ranks that share tokens.

#include "switchyard/expert_placement.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/token_counts.h"

#include "gil.h"
#include "module.h"
#include "names.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

// Writes ids of the shape of `given` into `out`, or into new memory of the dtype of `given`.
nb::object map_into(const char* function, nb::handle given, nb::handle out,
                    const std::function<void(const TensorView&, const TensorView&)>& map) {
  Arrays arrays;
  const TensorView ids = arrays.in(given, (std::string(function) + ": ids").c_str());
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < ids.num_dims(); ++dim) shape.push_back(ids.shape(dim));
    result = nb::cast(arrays.allocate(ids.dtype(), shape, Device::cpu()));
  }
  const TensorView to = arrays.out(result, (std::string(function) + ": out").c_str());
  without_gil([&] { map(ids, to); });
  return result;
}

std::vector<std::int64_t> tokens_of(nb::handle tokens_across_dp, const char* function) {
  return whole_numbers(tokens_across_dp, (std::string(function) + ": tokens_across_dp").c_str());
}

void bind_maps(nb::module_& m) {
  nb::class_<ExpertMap>(m, "ExpertMap", "The experts of one rank.")
      .def_ro("num_local_experts", &ExpertMap::num_local_experts, "L.")
      .def_ro("expert_map", &ExpertMap::expert_map,
              "[E]: local id of each expert, -1 elsewhere; empty with one rank, which holds all.")
      .def_ro("global_ids", &ExpertMap::global_ids, "[L], ascending.");
  m.def(
      "determine_expert_map",
      [](std::int32_t num_ranks, std::int32_t rank, std::int32_t num_experts,
         const std::string& strategy) {
        return determine_expert_map(num_ranks, rank, num_experts,
                                    enum_from<PlacementStrategy>(strategy));
      },
      nb::arg("num_ranks"), nb::arg("rank"), nb::arg("num_experts"), nb::arg("strategy") = "linear",
      nb::sig("def determine_expert_map(num_ranks: int, rank: int, num_experts: int, strategy: "
              "Literal['linear', 'round_robin'] = 'linear') -> ExpertMap"),
      "linear: consecutive experts per rank, the first E mod P ranks hold one more; round_robin: "
      "expert g on rank g mod P.");
  m.def(
      "choose_placement",
      [](const std::string& requested, std::int32_t num_expert_groups,
         std::int32_t num_redundant_experts, bool enable_eplb, bool use_all2all_kernels,
         bool needs_round_robin_routing_tables) {
        const PlacementChoice choice =
            choose_placement(enum_from<PlacementStrategy>(requested),
                             {num_expert_groups, num_redundant_experts, enable_eplb,
                              use_all2all_kernels, needs_round_robin_routing_tables});
        return nb::make_tuple(enum_name(choice.strategy), choice.reason);
      },
      nb::arg("requested"), nb::kw_only(), nb::arg("num_expert_groups") = 1,
      nb::arg("num_redundant_experts") = 0, nb::arg("enable_eplb") = false,
      nb::arg("use_all2all_kernels") = false, nb::arg("needs_round_robin_routing_tables") = false,
      nb::sig("def choose_placement(requested: Literal['linear', 'round_robin'], *, "
              "num_expert_groups: int = 1, num_redundant_experts: int = 0, enable_eplb: bool = "
              "False, use_all2all_kernels: bool = False, needs_round_robin_routing_tables: bool = "
              "False) -> tuple[Literal['linear', 'round_robin'], str]"),
      "(strategy, reason): round robin where it is possible; the reason is empty where the choice "
      "is the requested one.\nThe last two flags are those of ParallelConfig.");
}

void bind_tables(nb::module_& m) {
  nb::class_<RoutingTables>(m, "RoutingTables", "Global and physical ids under round robin.")
      .def_ro("global_to_physical", &RoutingTables::global_to_physical, "[E].")
      .def_ro("physical_to_global", &RoutingTables::physical_to_global, "[E].")
      .def_ro("local_expert_global_ids", &RoutingTables::local_expert_global_ids,
              "[L] of this rank.");
  m.def("round_robin_routing_tables", &round_robin_routing_tables, nb::arg("num_ranks"),
        nb::arg("rank"), nb::arg("num_experts"),
        "Translation between global and physical ids under round-robin placement.");
  m.def(
      "map_expert_ids",
      [](nb::handle ids, nb::handle table, nb::handle out) {
        const std::vector<std::int64_t> entries = whole_numbers(table, "map_expert_ids: table");
        return map_into("map_expert_ids", ids, out,
                        [&](const TensorView& from, const TensorView& to) {
                          map_expert_ids(from, entries, to);
                        });
      },
      nb::arg("ids"), nb::arg("table"), nb::arg("out").none() = nb::none(),
      nb::sig("def map_expert_ids(ids: Array, table: Sequence[int] | Array, out: Array | None = "
              "None) -> Tensor"),
      "table[id] for each id, i32 or i64 of any shape; negative ids are kept. CPUs only.");
  const auto bind = [&](const char* name, const char* doc,
                        void (*map)(const TensorView&, const ExpertMap&, const TensorView&)) {
    m.def(
        name,
        [name, map](nb::handle ids, const ExpertMap& experts, nb::handle out) {
          return map_into(name, ids, out, [&](const TensorView& from, const TensorView& to) {
            map(from, experts, to);
          });
        },
        nb::arg("ids"), nb::arg("expert_map"), nb::arg("out").none() = nb::none(),
        nb::sig(sig(name, "(ids: Array, expert_map: ExpertMap, out: Array | None = None)",
                    " -> Tensor")),
        doc);
  };
  bind("global_to_local_ids", "Local ids, -1 for experts of other ranks. CPUs only.",
       &global_to_local_ids);
  bind("local_to_global_ids", "The inverse of global_to_local_ids. CPUs only.",
       &local_to_global_ids);
}

void bind_token_counts(nb::module_& m) {
  m.def(
      "compute_sp_num_tokens",
      [](nb::handle tokens, std::int64_t sp_size) {
        return compute_sp_num_tokens(tokens_of(tokens, "compute_sp_num_tokens"), sp_size);
      },
      nb::arg("tokens_across_dp"), nb::arg("sp_size"),
      nb::sig("def compute_sp_num_tokens(tokens_across_dp: Sequence[int] | Array, sp_size: int) -> "
              "list[int]"),
      "[dp * sp] tokens of each rank where sp_size ranks share those of a data-parallel rank.");
  m.def(
      "compute_chunked_local_num_tokens",
      [](nb::handle tokens, std::int64_t sp_size, std::int64_t max_chunk, std::int64_t chunk) {
        return compute_chunked_local_num_tokens(
            tokens_of(tokens, "compute_chunked_local_num_tokens"), sp_size, max_chunk, chunk);
      },
      nb::arg("tokens_across_dp"), nb::arg("sp_size"), nb::arg("max_chunk"), nb::arg("chunk"),
      nb::sig("def compute_chunked_local_num_tokens(tokens_across_dp: Sequence[int] | Array, "
              "sp_size: int, max_chunk: int, chunk: int) -> list[int]"),
      "The same in chunk `chunk` of at most max_chunk tokens; a rank that has none left counts 1.");
  m.def(
      "cu_tokens_across_sp",
      [](nb::handle tokens, std::int64_t sp_size) {
        return TokenCounts(tokens_of(tokens, "cu_tokens_across_sp")).cu_tokens_across_sp(sp_size);
      },
      nb::arg("tokens_across_dp"), nb::arg("sp_size"),
      nb::sig("def cu_tokens_across_sp(tokens_across_dp: Sequence[int] | Array, sp_size: int) -> "
              "list[int]"),
      "[dp * sp] inclusive prefix sums of compute_sp_num_tokens.");
}

}  // namespace

void bind_expert_placement(nb::module_& m) {
  bind_maps(m);
  bind_tables(m);
  bind_token_counts(m);
}

}  // namespace switchyard::python
