// SPDX-License-Identifier: Apache-2.0
//
// placement.cpp: which rank holds which expert, copies of experts and their load.

#include "switchyard/c/placement.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "switchyard/eplb.h"
#include "switchyard/expert_placement.h"
#include "switchyard/token_counts.h"

#include "capi/names.h"
#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

template <typename T>
void copy_to_caller(const std::vector<T>& from, T* to, const char* name) {
  std::copy(from.begin(), from.end(), &out(to, name));
}

template <typename T>
void map_by(const TensorView& ids, const TensorView& table, const TensorView& to) {
  map_expert_ids(ids, std::span(table.as<const T>(), static_cast<std::size_t>(table.shape(0))), to);
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_expert_map(int32_t num_ranks, int32_t rank, int32_t num_experts, const char* strategy,
                        int32_t* expert_map, int64_t* global_ids, int32_t* num_local_experts) {
  return call(__func__, [&] {
    std::int32_t& num_local = out(num_local_experts, "num_local_experts");
    ExpertMap map = determine_expert_map(num_ranks, rank, num_experts,
                                         named(strategy, "strategy", PlacementStrategy::kLinear));
    if (map.expert_map.empty()) {  // one rank: every expert is local
      map.expert_map.resize(static_cast<std::size_t>(num_experts));
      std::iota(map.expert_map.begin(), map.expert_map.end(), 0);
    }
    copy_to_caller(map.expert_map, expert_map, "expert_map");
    if (global_ids != nullptr) copy_to_caller(map.global_ids, global_ids, "global_ids");
    num_local = map.num_local_experts;
  });
}

sy_status sy_placement_choose(const char* requested, const sy_placement_facts* facts,
                              const char** strategy, const char** reason) {
  return call(__func__, [&] {
    const sy_placement_facts from = read_sized(facts, "facts");
    static thread_local std::string last_reason;
    const PlacementChoice choice = choose_placement(
        named(requested, "requested", PlacementStrategy::kLinear),
        {from.num_expert_groups == 0 ? 1 : from.num_expert_groups, from.num_redundant_experts,
         from.enable_eplb, from.use_all2all_kernels, from.needs_round_robin_routing_tables});
    last_reason = choice.reason;
    out(strategy, "strategy") = name_of(choice.strategy);
    out(reason, "reason") = last_reason.c_str();
  });
}

sy_status sy_round_robin_tables(int32_t num_ranks, int32_t rank, int32_t num_experts,
                                int64_t* global_to_physical, int64_t* physical_to_global,
                                int64_t* local_ids) {
  return call(__func__, [&] {
    const RoutingTables tables = round_robin_routing_tables(num_ranks, rank, num_experts);
    copy_to_caller(tables.global_to_physical, global_to_physical, "global_to_physical");
    copy_to_caller(tables.physical_to_global, physical_to_global, "physical_to_global");
    if (local_ids != nullptr) {
      copy_to_caller(tables.local_expert_global_ids, local_ids, "local_ids");
    }
  });
}

sy_status sy_map_expert_ids(const sy_tensor* ids, const sy_tensor* table, const sy_tensor* out) {
  return call(__func__, [&] {
    const TensorView map = view_of(table, "table");
    const bool is_i64 = map.dtype() == DType::kI64;
    check((is_i64 || map.dtype() == DType::kI32) && map.num_dims() == 1 && map.is_contiguous() &&
              map.device().is_cpu(),
          "table is {}, must be i32 or i64 [E], contiguous, in host memory", map.describe());
    (is_i64 ? map_by<std::int64_t> : map_by<std::int32_t>)(view_of(ids, "ids"), map,
                                                           view_of(out, "out"));
  });
}

sy_status sy_eplb_initial_map(int32_t num_logical, int32_t num_redundant,
                              int32_t* physical_to_logical) {
  return call(__func__, [&] {
    copy_to_caller(initial_physical_to_logical(num_logical, num_redundant), physical_to_logical,
                   "physical_to_logical");
  });
}

sy_status sy_balance_experts(const int64_t* logical_load, size_t num_logical,
                             const sy_balance_config* config, int32_t* physical_to_logical) {
  return call(__func__, [&] {
    const sy_balance_config from = read_required(config, "config");
    const auto one_if_zero = [](std::int32_t count) { return count == 0 ? 1 : count; };
    copy_to_caller(balance_experts(span_of(logical_load, num_logical, "logical_load"),
                                   {from.num_physical, one_if_zero(from.num_ranks),
                                    one_if_zero(from.num_hosts), one_if_zero(from.num_groups)}),
                   physical_to_logical, "physical_to_logical");
  });
}

sy_status sy_load_balance(const int64_t* logical_load, size_t num_logical,
                          const int32_t* physical_to_logical, int32_t num_physical,
                          int32_t num_ranks, double* balance) {
  return call(__func__, [&] {
    out(balance, "balance") =
        load_balance(span_of(logical_load, num_logical, "logical_load"),
                     span_of(physical_to_logical, num_physical, "physical_to_logical"), num_ranks);
  });
}

sy_status sy_logical_maps_create(const int32_t* physical_to_logical, int32_t num_physical,
                                 int32_t num_logical, sy_logical_maps** maps) {
  return call(__func__, [&] {
    sy_logical_maps*& result = out(maps, "maps");
    result = give<sy_logical_maps>(compute_logical_maps(
        span_of(physical_to_logical, num_physical, "physical_to_logical"), num_logical));
  });
}

sy_status sy_logical_maps_describe(sy_logical_maps* maps, sy_logical_maps_info* info) {
  return call(__func__, [&] {
    const auto of = use(maps);
    write_sized(info, "info",
                {0, of->num_logical, of->max_replicas, of->logical_to_physical.data(),
                 of->replica_counts.data()});
  });
}

sy_status sy_logical_maps_apply(sy_logical_maps* maps, const sy_tensor* topk_ids,
                                const sy_tensor* out) {
  return call(__func__, [&] {
    map_logical_to_physical(view_of(topk_ids, "topk_ids"), *use(maps), view_of(out, "out"));
  });
}

sy_status sy_logical_maps_destroy(sy_logical_maps* maps) { return destroy(__func__, maps); }

int32_t sy_choose_replica(int64_t token, int32_t num_replicas) {
  return choose_replica(token, std::max(1, num_replicas));
}

sy_status sy_expert_load_create(int32_t num_physical, int32_t window, sy_expert_load** load) {
  return call(__func__, [&] {
    sy_expert_load*& result = out(load, "load");
    result = give<sy_expert_load>(num_physical, window == 0 ? ExpertLoad::kDefaultWindow : window);
  });
}

sy_status sy_expert_load_add(sy_expert_load* load, const int64_t* counts, size_t num_counts) {
  return call(__func__, [&] { use(load)->add_step(span_of(counts, num_counts, "counts")); });
}

sy_status sy_expert_load_add_ids(sy_expert_load* load, const sy_tensor* physical_ids,
                                 int64_t num_tokens) {
  return call(__func__,
              [&] { use(load)->add_step(view_of(physical_ids, "physical_ids"), num_tokens); });
}

sy_status sy_expert_load_physical(sy_expert_load* load, int64_t* sums, size_t num_sums,
                                  int64_t* num_steps) {
  return call(__func__, [&] {
    const auto of = use(load);
    const std::span<const std::int64_t> from = of->physical_load();
    check(sums != nullptr && num_sums == from.size(), "sums have {} numbers, must have {}",
          sums == nullptr ? 0 : num_sums, from.size());
    std::copy(from.begin(), from.end(), sums);
    out(num_steps, "num_steps") = of->num_steps();
  });
}

sy_status sy_expert_load_logical(sy_expert_load* load, const int32_t* physical_to_logical,
                                 int32_t num_physical, int32_t num_logical, int64_t* sums) {
  return call(__func__, [&] {
    copy_to_caller(
        use(load)->logical_load(span_of(physical_to_logical, num_physical, "physical_to_logical"),
                                num_logical),
        sums, "sums");
  });
}

sy_status sy_expert_load_reset(sy_expert_load* load) {
  return call(__func__, [&] { use(load)->reset(); });
}

sy_status sy_expert_load_destroy(sy_expert_load* load) { return destroy(__func__, load); }

sy_status sy_sp_num_tokens(const int64_t* tokens_across_dp, size_t num_dp, int64_t sp_size,
                           int64_t* num_tokens) {
  return call(__func__, [&] {
    copy_to_caller(
        compute_sp_num_tokens(span_of(tokens_across_dp, num_dp, "tokens_across_dp"), sp_size),
        num_tokens, "num_tokens");
  });
}

sy_status sy_chunked_num_tokens(const int64_t* tokens_across_dp, size_t num_dp, int64_t sp_size,
                                int64_t max_chunk, int64_t chunk, int64_t* num_tokens) {
  return call(__func__, [&] {
    copy_to_caller(
        compute_chunked_local_num_tokens(span_of(tokens_across_dp, num_dp, "tokens_across_dp"),
                                         sp_size, max_chunk, chunk),
        num_tokens, "num_tokens");
  });
}

sy_status sy_cu_tokens_across_sp(const int64_t* tokens_across_dp, size_t num_dp, int64_t sp_size,
                                 int64_t* sums) {
  return call(__func__, [&] {
    const auto tokens = span_of(tokens_across_dp, num_dp, "tokens_across_dp");
    const TokenCounts counts({tokens.begin(), tokens.end()});
    copy_to_caller(counts.cu_tokens_across_sp(sp_size), sums, "sums");
  });
}

}  // extern "C"
