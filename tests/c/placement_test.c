// SPDX-License-Identifier: Apache-2.0
//
// Which rank holds which expert, copies of experts and their load, and token counts.

#include "check.h"

static void test_maps(void) {
  int32_t map[5], num_local = 0;
  int64_t global_ids[3];
  CHECK_OK(sy_expert_map(2, 1, 5, NULL, map, global_ids, &num_local));
  CHECK(num_local == 2 && map[2] == -1 && map[3] == 0 && map[4] == 1 && global_ids[0] == 3);
  CHECK_OK(sy_expert_map(2, 1, 5, "round_robin", map, NULL, &num_local));
  CHECK(num_local == 2 && map[0] == -1 && map[1] == 0 && map[3] == 1);
  CHECK_OK(sy_expert_map(1, 0, 5, NULL, map, NULL, &num_local));
  CHECK(num_local == 5 && map[4] == 4);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "strategy is \"random\"",
                sy_expert_map(2, 1, 5, "random", map, NULL, &num_local));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "expert_map is NULL",
                sy_expert_map(2, 1, 5, NULL, NULL, NULL, &num_local));
  map[0] = 77;  // a refused call writes nothing
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "num_local_experts is NULL",
                sy_expert_map(2, 1, 5, NULL, map, NULL, NULL));
  CHECK(map[0] == 77);

  // Experts 0, 2 and 4 on rank 0.
  int64_t to_physical[5], to_global[5], local_ids[3];
  CHECK_OK(sy_round_robin_tables(2, 0, 5, to_physical, to_global, local_ids));
  CHECK(to_physical[2] == 1 && to_physical[1] == 3 && to_global[3] == 1 && local_ids[2] == 4);

  int32_t ids[2][2] = {{1, -1}, {2, 0}};
  const sy_tensor ti = TENSOR(ids, SY_I32, 2, 2);
  const sy_tensor table = TENSOR(to_physical, SY_I64, 5);
  CHECK_OK(sy_map_expert_ids(&ti, &table, &ti));
  CHECK(ids[0][0] == 3 && ids[0][1] == -1 && ids[1][0] == 1 && ids[1][1] == 0);
  const sy_tensor small = TENSOR(map, SY_I32, 5);
  CHECK_OK(sy_map_expert_ids(&ti, &small, &ti));
  CHECK(ids[0][0] == 3);
  const sy_tensor wrong = TENSOR(to_physical, SY_F32, 5);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "table is f32 [5]", sy_map_expert_ids(&ti, &wrong, &ti));

  const char* strategy = NULL;
  const char* reason = NULL;
  sy_placement_facts facts = {.struct_size = sizeof(facts), .num_expert_groups = 4};
  CHECK_OK(sy_placement_choose("round_robin", &facts, &strategy, &reason));
  CHECK(strcmp(strategy, "round_robin") == 0 && strcmp(reason, "") == 0);
  facts.enable_eplb = true;
  CHECK_OK(sy_placement_choose("round_robin", &facts, &strategy, &reason));
  CHECK(strcmp(strategy, "linear") == 0 && reason[0] != '\0');
}

// The two layers of DeepSeek's example are in balance_experts_test.cpp; this is the first.
static void test_balance(void) {
  const int64_t load[12] = {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const int32_t want[16] = {5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1};
  sy_balance_config config = {
      .struct_size = sizeof(config), .num_physical = 16, .num_ranks = 8, .num_hosts = 2};
  config.num_groups = 4;
  int32_t map[16];
  CHECK_OK(sy_balance_experts(load, 12, &config, map));
  CHECK(memcmp(map, want, sizeof(map)) == 0);
  double balance = 0;
  CHECK_OK(sy_load_balance(load, 12, map, 16, 8, &balance));
  CHECK(balance > 0.8 && balance < 1);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "num_physical is 16, must be a multiple of num_ranks (3)",
                (config.num_ranks = 3, sy_balance_experts(load, 12, &config, map)));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "config is NULL", sy_balance_experts(load, 12, NULL, map));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "balance is NULL",
                sy_load_balance(load, 12, want, 16, 8, NULL));
}

// Three logical experts and one copy of expert 0: physical 0, 1, 2, 3 are 0, 1, 2, 0.
static void test_eplb(void) {
  int32_t physical[4];
  CHECK_OK(sy_eplb_initial_map(3, 1, physical));
  CHECK(physical[0] == 0 && physical[2] == 2 && physical[3] == 0);
  sy_logical_maps* maps = NULL;
  CHECK_OK(sy_logical_maps_create(physical, 4, 3, &maps));
  sy_logical_maps_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_logical_maps_describe(maps, &info));
  CHECK(info.num_logical == 3 && info.max_replicas == 2 && info.replica_counts[0] == 2);
  CHECK(info.logical_to_physical[1] == 3 && info.logical_to_physical[3] == -1);
  int64_t ids[2][2] = {{0, 2}, {0, -1}};
  const sy_tensor ti = TENSOR(ids, SY_I64, 2, 2);
  CHECK_OK(sy_logical_maps_apply(maps, &ti, &ti));
  CHECK(ids[0][0] == info.logical_to_physical[sy_choose_replica(0, 2)] && ids[0][1] == 2);
  CHECK(ids[1][0] == info.logical_to_physical[sy_choose_replica(1, 2)] && ids[1][1] == -1);
  CHECK(sy_choose_replica(0, 2) == 0 && sy_choose_replica(1, 2) == 1);
  CHECK(sy_choose_replica(5, 0) == 0);
  CHECK_OK(sy_logical_maps_destroy(maps));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_logical_maps was destroyed",
                sy_logical_maps_describe(maps, &info));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "physical_to_logical is NULL",
                sy_logical_maps_create(NULL, 4, 3, &maps));

  sy_expert_load* load = NULL;
  CHECK_OK(sy_expert_load_create(4, 2, &load));
  const int64_t step[4] = {5, 0, 1, 2};
  CHECK_OK(sy_expert_load_add(load, step, 4));
  int32_t chosen[2][2] = {{3, 3}, {1, -1}};
  const sy_tensor tc = TENSOR(chosen, SY_I32, 2, 2);
  CHECK_OK(sy_expert_load_add_ids(load, &tc, 1));
  int64_t sums[4], logical[3], num_steps = 0;
  CHECK_OK(sy_expert_load_physical(load, sums, 4, &num_steps));
  CHECK(num_steps == 2 && sums[0] == 5 && sums[1] == 0 && sums[3] == 4);
  CHECK_OK(sy_expert_load_logical(load, physical, 4, 3, logical));
  CHECK(logical[0] == 9 && logical[1] == 0 && logical[2] == 1);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "3", sy_expert_load_add(load, step, 3));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "must have 4",
                sy_expert_load_physical(load, sums, 3, &num_steps));
  CHECK_OK(sy_expert_load_reset(load));
  CHECK_OK(sy_expert_load_physical(load, sums, 4, &num_steps));
  CHECK(num_steps == 0 && sums[0] == 0);
  CHECK_OK(sy_expert_load_destroy(load));
}

// Data-parallel ranks with 5 and 2 tokens, two ranks each.
static void test_token_counts(void) {
  const int64_t tokens[2] = {5, 2};
  int64_t counts[4];
  CHECK_OK(sy_sp_num_tokens(tokens, 2, 2, counts));
  CHECK(counts[0] == 3 && counts[1] == 3 && counts[2] == 1 && counts[3] == 1);
  CHECK_OK(sy_cu_tokens_across_sp(tokens, 2, 2, counts));
  CHECK(counts[0] == 3 && counts[1] == 6 && counts[2] == 7 && counts[3] == 8);
  CHECK_OK(sy_chunked_num_tokens(tokens, 2, 2, 2, 1, counts));
  CHECK(counts[0] == 1 && counts[2] == 1);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "0", sy_sp_num_tokens(tokens, 2, 0, counts));
}

void test_placement(void) {
  test_maps();
  test_balance();
  test_eplb();
  test_token_counts();
}
