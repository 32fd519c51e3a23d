// SPDX-License-Identifier: Apache-2.0

#include "switchyard/expert_placement.h"

#include "core/enum_names.h"
#include "core/fail.h"
#include "plan/expert_ownership.h"
#include "plan/id_tensor.h"

namespace switchyard {
namespace {

constexpr std::int32_t kMaxPlacedExperts = 65535;

void check_ranks(const char* function, std::int32_t num_ranks, std::int32_t rank,
                 std::int32_t num_experts) {
  require(num_ranks >= 1 && rank >= 0 && rank < num_ranks, Errc::kInvalidArgument,
          "{}: rank is {} of {} ranks, must be a rank below their number", function, rank,
          num_ranks);
  require(num_experts >= 1 && num_experts <= kMaxPlacedExperts, Errc::kInvalidArgument,
          "{}: num_experts is {}, must be from 1 to {}", function, num_experts, kMaxPlacedExperts);
}

std::vector<std::int64_t> global_ids_of(const ExpertOwnership& ownership, std::int32_t rank,
                                        PlacementStrategy strategy) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(ownership.count(rank)));
  const bool is_linear = strategy == PlacementStrategy::kLinear;
  std::int64_t next = is_linear ? ownership.first(rank) : rank;
  for (std::int64_t& id : ids) {
    id = next;
    next += is_linear ? 1 : ownership.num_ranks;
  }
  return ids;
}

template <typename T>
void map_by_table(const char* function, const TensorView& ids, std::span<const T> table,
                  const TensorView& out) {
  map_ids(function, ids, static_cast<std::int64_t>(table.size()), out,
          [table](std::int64_t, std::int64_t id) -> std::int64_t {
            return table[static_cast<std::size_t>(id)];
          });
}

}  // namespace

ExpertMap determine_expert_map(std::int32_t num_ranks, std::int32_t rank, std::int32_t num_experts,
                               PlacementStrategy strategy) {
  check_ranks("determine_expert_map", num_ranks, rank, num_experts);
  require_enum("determine_expert_map", strategy);
  const ExpertOwnership ownership{num_experts, num_ranks};
  ExpertMap map{ownership.count(rank), {}, global_ids_of(ownership, rank, strategy)};
  if (num_ranks == 1) return map;
  map.expert_map.assign(static_cast<std::size_t>(num_experts), -1);
  std::int32_t local = 0;
  for (const std::int64_t id : map.global_ids) {
    map.expert_map[static_cast<std::size_t>(id)] = local++;
  }
  return map;
}

PlacementChoice choose_placement(PlacementStrategy requested, const PlacementFacts& facts) {
  require_enum("choose_placement", requested);
  require(
      facts.num_expert_groups >= 0 && facts.num_redundant_experts >= 0, Errc::kInvalidArgument,
      "choose_placement: there are {} expert groups and {} redundant experts, must be at least 0",
      facts.num_expert_groups, facts.num_redundant_experts);
  if (requested == PlacementStrategy::kLinear) return {};
  const auto linear = [](std::string reason) {
    return PlacementChoice{PlacementStrategy::kLinear, "round_robin: " + std::move(reason)};
  };
  if (facts.num_expert_groups <= 1)
    return linear("the model has one expert group, must have several");
  if (facts.num_redundant_experts > 0) {
    return linear(fmt::format("there are {} redundant experts, there must be 0",
                              facts.num_redundant_experts));
  }
  if (facts.enable_eplb) return linear("load balancing is on, must be off");
  if (facts.use_all2all_kernels && !facts.needs_round_robin_routing_tables) {
    return linear("the backend has no routing tables, must be deepep_low_latency or nixl_ep");
  }
  return {PlacementStrategy::kRoundRobin, {}};
}

RoutingTables round_robin_routing_tables(std::int32_t num_ranks, std::int32_t rank,
                                         std::int32_t num_experts) {
  check_ranks("round_robin_routing_tables", num_ranks, rank, num_experts);
  const ExpertOwnership ownership{num_experts, num_ranks};
  RoutingTables tables;
  tables.global_to_physical.resize(static_cast<std::size_t>(num_experts));
  tables.physical_to_global.resize(static_cast<std::size_t>(num_experts));
  for (std::int32_t g = 0; g < num_experts; ++g) {
    const std::int32_t physical = ownership.first(g % num_ranks) + g / num_ranks;
    tables.global_to_physical[static_cast<std::size_t>(g)] = physical;
    tables.physical_to_global[static_cast<std::size_t>(physical)] = g;
  }
  tables.local_expert_global_ids = global_ids_of(ownership, rank, PlacementStrategy::kRoundRobin);
  return tables;
}

void map_expert_ids(const TensorView& ids, std::span<const std::int64_t> table,
                    const TensorView& out) {
  map_by_table("map_expert_ids", ids, table, out);
}

void map_expert_ids(const TensorView& ids, std::span<const std::int32_t> table,
                    const TensorView& out) {
  map_by_table("map_expert_ids", ids, table, out);
}

void global_to_local_ids(const TensorView& ids, const ExpertMap& map, const TensorView& out) {
  // A single rank has no expert_map: its local ids are the global ids.
  if (map.expert_map.empty()) {
    map_by_table("global_to_local_ids", ids, std::span(map.global_ids), out);
  } else {
    map_by_table("global_to_local_ids", ids, std::span(map.expert_map), out);
  }
}

void local_to_global_ids(const TensorView& ids, const ExpertMap& map, const TensorView& out) {
  map_by_table("local_to_global_ids", ids, std::span(map.global_ids), out);
}

}  // namespace switchyard
