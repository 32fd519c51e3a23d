// SPDX-License-Identifier: Apache-2.0
//
// c/placement.h: which rank holds which expert, copies of experts, their load, and token counts of
// ranks that share tokens. See expert_placement.h, eplb.h and token_counts.h.
//
// Letters: E experts, P ranks, L experts that a rank holds, G physical and Q logical experts.
// Nothing here is collective. Arrays are the caller's host memory.
#pragma once

#include "switchyard/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// determine_expert_map. strategy: "linear" (NULL) or "round_robin". expert_map [E]: local id, -1
/// elsewhere. global_ids [cdiv(E, P)], or NULL: the first num_local_experts are written.
SY_API sy_status sy_expert_map(int32_t num_ranks, int32_t rank, int32_t num_experts,
                               const char* strategy, int32_t* expert_map, int64_t* global_ids,
                               int32_t* num_local_experts);

/// PlacementFacts.
typedef struct sy_placement_facts {
  size_t struct_size;
  int32_t num_expert_groups;              ///< of the router; 0: 1
  int32_t num_redundant_experts;          ///< copies beyond one per expert
  bool enable_eplb;                       ///< experts are balanced by load
  bool use_all2all_kernels;               ///< as in sy_parallel_config
  bool needs_round_robin_routing_tables;  ///< as in sy_parallel_config
} sy_placement_facts;
/// choose_placement. `reason`: why the choice is not the requested one, or ""; valid until the next
/// call of this thread.
SY_API sy_status sy_placement_choose(const char* requested, const sy_placement_facts* facts,
                                     const char** strategy, const char** reason);

/// round_robin_routing_tables. Both tables [E]; local_ids [cdiv(E, P)] or NULL.
SY_API sy_status sy_round_robin_tables(int32_t num_ranks, int32_t rank, int32_t num_experts,
                                       int64_t* global_to_physical, int64_t* physical_to_global,
                                       int64_t* local_ids);
/// map_expert_ids: out[i] = table[ids[i]]; negative ids are kept. ids and out: i32 or i64, one
/// shape, contiguous; table: i32 or i64 [E], for example an expert map.
SY_API sy_status sy_map_expert_ids(const sy_tensor* ids, const sy_tensor* table,
                                   const sy_tensor* out);

/// initial_physical_to_logical: [num_logical + num_redundant].
SY_API sy_status sy_eplb_initial_map(int32_t num_logical, int32_t num_redundant,
                                     int32_t* physical_to_logical);

/// BalanceConfig: what sy_balance_experts places, and where.
typedef struct sy_balance_config {
  size_t struct_size;
  int32_t num_physical;  ///< logical and redundant experts; a multiple of num_ranks
  int32_t num_ranks;     ///< 0: 1; a multiple of num_hosts; consecutive ranks share a host
  int32_t num_hosts;     ///< 0: 1
  int32_t num_groups;    ///< of the router; 0: 1; groups that divide among hosts stay whole
} sy_balance_config;
/// balance_experts: a placement for a load [num_logical] of rows per logical expert.
/// physical_to_logical [num_physical] is written.
SY_API sy_status sy_balance_experts(const int64_t* logical_load, size_t num_logical,
                                    const sy_balance_config* config, int32_t* physical_to_logical);
/// load_balance: mean load of a rank divided by the largest, under physical_to_logical
/// [num_physical].
SY_API sy_status sy_load_balance(const int64_t* logical_load, size_t num_logical,
                                 const int32_t* physical_to_logical, int32_t num_physical,
                                 int32_t num_ranks, double* balance);

/// LogicalMaps: where the copies of each logical expert are.
typedef struct sy_logical_maps sy_logical_maps;
/// compute_logical_maps of physical_to_logical [G].
SY_API sy_status sy_logical_maps_create(const int32_t* physical_to_logical, int32_t num_physical,
                                        int32_t num_logical, sy_logical_maps** maps);
/// The tables, as long as the maps.
typedef struct sy_logical_maps_info {
  size_t struct_size;
  int32_t num_logical;                 ///< Q
  int32_t max_replicas;                ///< copies of the most replicated expert
  const int32_t* logical_to_physical;  ///< [num_logical, max_replicas] ascending, then -1
  const int32_t* replica_counts;       ///< [num_logical]
} sy_logical_maps_info;
/// Fills `info`.
SY_API sy_status sy_logical_maps_describe(sy_logical_maps* maps, sy_logical_maps_info* info);
/// map_logical_to_physical: topk_ids and out [T, K] i32 or i64, contiguous, on the host.
SY_API sy_status sy_logical_maps_apply(sy_logical_maps* maps, const sy_tensor* topk_ids,
                                       const sy_tensor* out);
/// Frees them.
SY_API sy_status sy_logical_maps_destroy(sy_logical_maps* maps);
/// choose_replica: the copy that serves token row `token`; num_replicas below 1 counts as 1.
SY_API int32_t sy_choose_replica(int64_t token, int32_t num_replicas);

/// ExpertLoad: rows per physical expert over the last `window` steps. One thread at a time.
typedef struct sy_expert_load sy_expert_load;
/// window 0: 1000.
SY_API sy_status sy_expert_load_create(int32_t num_physical, int32_t window, sy_expert_load** load);
/// Adds a step of counts [num_physical], for example sy_host_counts::expert_load.
SY_API sy_status sy_expert_load_add(sy_expert_load* load, const int64_t* counts, size_t num_counts);
/// Adds a step of chosen experts: physical_ids [T, K], of which num_tokens rows count.
SY_API sy_status sy_expert_load_add_ids(sy_expert_load* load, const sy_tensor* physical_ids,
                                        int64_t num_tokens);
/// Sums [num_physical] over `num_steps` steps.
SY_API sy_status sy_expert_load_physical(sy_expert_load* load, int64_t* sums, size_t num_sums,
                                         int64_t* num_steps);
/// The same with the copies of each logical expert added up: [num_logical].
SY_API sy_status sy_expert_load_logical(sy_expert_load* load, const int32_t* physical_to_logical,
                                        int32_t num_physical, int32_t num_logical, int64_t* sums);
/// Forgets all steps.
SY_API sy_status sy_expert_load_reset(sy_expert_load* load);
/// Frees it.
SY_API sy_status sy_expert_load_destroy(sy_expert_load* load);

/// compute_sp_num_tokens: [num_dp * sp_size] tokens of each rank.
SY_API sy_status sy_sp_num_tokens(const int64_t* tokens_across_dp, size_t num_dp, int64_t sp_size,
                                  int64_t* num_tokens);
/// compute_chunked_local_num_tokens: the same in chunk `chunk` of at most max_chunk tokens.
SY_API sy_status sy_chunked_num_tokens(const int64_t* tokens_across_dp, size_t num_dp,
                                       int64_t sp_size, int64_t max_chunk, int64_t chunk,
                                       int64_t* num_tokens);
/// cu_tokens_across_sp: inclusive prefix sums of sy_sp_num_tokens.
SY_API sy_status sy_cu_tokens_across_sp(const int64_t* tokens_across_dp, size_t num_dp,
                                        int64_t sp_size, int64_t* sums);

#ifdef __cplusplus
}
#endif
