// SPDX-License-Identifier: Apache-2.0
//
// expert_placement.h: which rank holds which expert, and how experts are numbered.
//
// Letters: E experts, P ranks, L experts that a rank holds.
//
// An expert has three ids. Its global id is its number in the model. Its local id is its index on
// its rank. Its physical id is its index when the experts of all ranks are listed rank by rank;
// Exchange and low-latency libraries use this one. With linear placement, global and physical ids
// are equal.
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

/// Which rank holds which expert.
enum class PlacementStrategy : std::uint8_t {
  kLinear,      ///< consecutive experts per rank; the first E mod P ranks hold one more
  kRoundRobin,  ///< expert g on rank g mod P
};

/// @{ "linear" or "round_robin".
SWITCHYARD_API const char* name_of(PlacementStrategy strategy) noexcept;
SWITCHYARD_API std::optional<PlacementStrategy> placement_strategy_from_name(
    std::string_view name) noexcept;
/// @}

/// The experts of one rank.
struct ExpertMap {
  std::int32_t num_local_experts = 0;    ///< L
  std::vector<std::int32_t> expert_map;  ///< [E] local id, -1 elsewhere; empty with one rank
  std::vector<std::int64_t> global_ids;  ///< [L] global id of each local expert, ascending
};

/// Errors: kInvalidArgument (E not from 1 to 65535, P below 1, a rank that is not below P, a value
/// outside the enum).
/// Source: vLLM's determine_expert_map.
SWITCHYARD_API ExpertMap determine_expert_map(std::int32_t num_ranks, std::int32_t rank,
                                              std::int32_t num_experts, PlacementStrategy strategy);

/// What decides whether round-robin placement is possible.
struct PlacementFacts {
  std::int32_t num_expert_groups = 1;             ///< expert groups of the router
  std::int32_t num_redundant_experts = 0;         ///< copies beyond one per expert
  bool enable_eplb = false;                       ///< experts are balanced by load
  bool use_all2all_kernels = false;               ///< tokens travel between ranks
  bool needs_round_robin_routing_tables = false;  ///< both flags come from ParallelConfig
};

/// What choose_placement decided.
struct PlacementChoice {
  PlacementStrategy strategy = PlacementStrategy::kLinear;  ///< the one to use
  std::string reason;  ///< why the choice is not the requested one; empty when it is
};

/// Chooses round robin only when it is requested, the router has several expert groups, and there
/// are neither redundant experts nor load balancing. Backends that compute the rank from the id
/// also need routing tables.
///
/// Errors: kInvalidArgument for a negative count or a value outside the enum.
/// Source: vLLM's determine_expert_placement_strategy.
SWITCHYARD_API PlacementChoice choose_placement(PlacementStrategy requested,
                                                const PlacementFacts& facts);

/// Translation between global and physical ids under round robin.
struct RoutingTables {
  std::vector<std::int64_t> global_to_physical;       ///< [E]
  std::vector<std::int64_t> physical_to_global;       ///< [E] inverse of global_to_physical
  std::vector<std::int64_t> local_expert_global_ids;  ///< [L] for this rank
};

/// Errors: kInvalidArgument (E not from 1 to 65535, P below 1, a rank that is not below P).
/// Source: vLLM's round-robin routing tables.
SWITCHYARD_API RoutingTables round_robin_routing_tables(std::int32_t num_ranks, std::int32_t rank,
                                                        std::int32_t num_experts);

/// @{ out[i] = table[ids[i]]; negative ids ("none") are kept.
///
///   ids  any shape, i32 or i64, contiguous
///   out  same shape, i32 or i64, contiguous; written; may be `ids` itself
///
/// Errors: kInvalidArgument (shapes, dtypes, an id beyond the table, a value that does not fit in
/// i32); nothing is written then.
SWITCHYARD_API void map_expert_ids(const TensorView& ids, std::span<const std::int64_t> table,
                                   const TensorView& out);
SWITCHYARD_API void map_expert_ids(const TensorView& ids, std::span<const std::int32_t> table,
                                   const TensorView& out);
/// @}

/// @{ Global to local ids, -1 for experts of other ranks, and back. `ids` and `out` have one shape,
/// i32 or i64, contiguous, and may be the same tensor. Errors: kInvalidArgument; nothing is written
/// then.
SWITCHYARD_API void global_to_local_ids(const TensorView& ids, const ExpertMap& map,
                                        const TensorView& out);
SWITCHYARD_API void local_to_global_ids(const TensorView& ids, const ExpertMap& map,
                                        const TensorView& out);
/// @}

}  // namespace switchyard
