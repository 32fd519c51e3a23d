// SPDX-License-Identifier: Apache-2.0
//
// expert_placement.h: which rank holds which expert, and the numberings that follow from it.
//
// Letters: E experts, P ranks, L experts that a rank holds.
//
// An expert's global id is its number in the model; its local id is its place on its rank. Its
// physical id is its place when all ranks' experts are listed rank by rank, which is what Exchange
// and low-latency libraries take for the id. With linear placement the two are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

enum class PlacementStrategy : std::uint8_t {
  kLinear,      ///< consecutive experts on a rank; the first E mod P ranks hold one more
  kRoundRobin,  ///< expert g on rank g mod P
};

/// "linear" or "round_robin".
SWITCHYARD_API const char* name_of(PlacementStrategy strategy) noexcept;
SWITCHYARD_API std::optional<PlacementStrategy> placement_strategy_from_name(
    std::string_view name) noexcept;

/// What a rank holds.
struct ExpertMap {
  std::int32_t num_local_experts = 0;    ///< L
  std::vector<std::int32_t> expert_map;  ///< [E] local id, -1 elsewhere; empty with one rank
  std::vector<std::int64_t> global_ids;  ///< [L] global id of each local expert, ascending
};

/// Errors: kInvalidArgument: E not from 1 to 65535, P below 1, a rank that is not below P, a value
/// that is no strategy. Source: vLLM's determine_expert_map.
SWITCHYARD_API ExpertMap determine_expert_map(std::int32_t num_ranks, std::int32_t rank,
                                              std::int32_t num_experts, PlacementStrategy strategy);

/// What decides whether round robin can be had.
struct PlacementFacts {
  std::int32_t num_expert_groups = 1;  ///< groups of the router
  std::int32_t num_redundant_experts = 0;
  bool enable_eplb = false;
  bool use_all2all_kernels = false;
  bool needs_round_robin_routing_tables = false;  ///< ParallelConfig has both
};

struct PlacementChoice {
  PlacementStrategy strategy = PlacementStrategy::kLinear;
  std::string reason;  ///< why it is not what was asked for; empty when it is
};

/// Round robin only where it was asked for, spreads groups, and can be expressed: a backend whose
/// ranks are computed from ids needs routing tables. Errors: kInvalidArgument: a negative count, a
/// value that is no strategy. Source: vLLM's determine_expert_placement_strategy.
SWITCHYARD_API PlacementChoice choose_placement(PlacementStrategy requested,
                                                const PlacementFacts& facts);

/// Translation between global and physical ids under round robin.
struct RoutingTables {
  std::vector<std::int64_t> global_to_physical;       ///< [E]
  std::vector<std::int64_t> physical_to_global;       ///< [E] its inverse
  std::vector<std::int64_t> local_expert_global_ids;  ///< [L] of this rank
};

/// Errors: kInvalidArgument as determine_expert_map. Source: vLLM's round-robin routing tables.
SWITCHYARD_API RoutingTables round_robin_routing_tables(std::int32_t num_ranks, std::int32_t rank,
                                                        std::int32_t num_experts);

/// out[i] = table[ids[i]]; negative ids ("none") are kept as they are.
///
///   ids  any shape, i32 or i64, contiguous
///   out  that shape, i32 or i64, contiguous; written; may be `ids` itself
///
/// Errors: kInvalidArgument: shapes, dtypes, an id beyond the table, a value that i32 cannot hold;
/// nothing was written.
SWITCHYARD_API void map_expert_ids(const TensorView& ids, std::span<const std::int64_t> table,
                                   const TensorView& out);
SWITCHYARD_API void map_expert_ids(const TensorView& ids, std::span<const std::int32_t> table,
                                   const TensorView& out);

/// Global ids to local ids, -1 for experts of other ranks; and back. Tensors and errors as
/// map_expert_ids.
SWITCHYARD_API void global_to_local_ids(const TensorView& ids, const ExpertMap& map,
                                        const TensorView& out);
SWITCHYARD_API void local_to_global_ids(const TensorView& ids, const ExpertMap& map,
                                        const TensorView& out);

}  // namespace switchyard
