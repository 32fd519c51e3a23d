// SPDX-License-Identifier: Apache-2.0
//
// Which rank holds which expert, by counting: linear and round-robin placement, translation tables,
// redundant experts and the choice among copies.

#include <algorithm>

#include <fmt/format.h>

#include "switchyard/eplb.h"
#include "switchyard/expert_placement.h"
#include "switchyard/permute.h"

#include "conformance/arena.h"
#include "conformance/check_case.h"

namespace switchyard::conformance {
namespace {

// Owner of each expert, dealt out one by one.
std::vector<int> owners(int num_ranks, int num_experts, PlacementStrategy strategy) {
  std::vector<int> result;
  if (strategy == PlacementStrategy::kRoundRobin) {
    for (int e = 0; e < num_experts; ++e) result.push_back(e % num_ranks);
    return result;
  }
  for (int r = 0; r < num_ranks; ++r) {
    int share = num_experts / num_ranks;
    if (r < num_experts % num_ranks) ++share;
    for (int i = 0; i < share; ++i) result.push_back(r);
  }
  return result;
}

// Every id through the map.
void check_lookup(Arena& arena, const ExpertMap& map) {
  if (map.expert_map.empty()) return;
  const auto num_experts = static_cast<std::int64_t>(map.expert_map.size());
  std::vector<std::int32_t> ids;
  for (std::int32_t e = 0; e < num_experts; ++e) ids.push_back(e);
  std::vector<std::int32_t> local(ids.size(), -7);
  apply_expert_map(arena.in(TensorView::of(ids.data(), {num_experts, 1})),
                   arena.in(TensorView::of(map.expert_map.data(), {num_experts})),
                   arena.out(TensorView::of(local.data(), {num_experts, 1})), arena.stream(),
                   arena.errors());
  arena.finish();
  arena.clear();
  expect(local == map.expert_map, "local ids differ from the map");
}

void check_map(const std::string& device, int num_ranks, int num_experts,
               PlacementStrategy strategy) {
  Arena arena(device_of(device), kCaseBytes);
  const std::vector<int> owner = owners(num_ranks, num_experts, strategy);
  for (int r = 0; r < num_ranks; ++r) {
    const ExpertMap got = determine_expert_map(num_ranks, r, num_experts, strategy);
    std::int32_t num_local = 0;
    std::vector<std::int32_t> own;
    for (int e = 0; e < num_experts; ++e) {
      const bool is_own = owner[static_cast<std::size_t>(e)] == r;
      if (is_own) own.push_back(e);
      const std::int32_t want = is_own ? num_local++ : -1;
      if (num_ranks == 1) continue;
      const std::int32_t found = got.expert_map[static_cast<std::size_t>(e)];
      expect(found == want, "rank {}: expert_map[{}] is {}, expected {}", r, e, found, want);
    }
    check_lookup(arena, got);
    expect(got.num_local_experts == num_local, "rank {} has {} experts, expected {}", r,
           got.num_local_experts, num_local);
    expect(std::ranges::equal(got.global_ids, own), "experts of rank {} differ", r);
    expect(num_ranks > 1 || got.expert_map.empty(), "a map although there is one rank");
  }
}

// Physical ids number the experts of rank 0, then those of rank 1, and so on.
void check_tables(int num_ranks, int num_experts) {
  std::vector<std::int64_t> by_physical;
  for (int r = 0; r < num_ranks; ++r) {
    std::vector<std::int64_t> local;
    for (int e = r; e < num_experts; e += num_ranks) local.push_back(e);
    by_physical.insert(by_physical.end(), local.begin(), local.end());
    const RoutingTables got = round_robin_routing_tables(num_ranks, r, num_experts);
    expect(got.local_expert_global_ids == local, "local_expert_global_ids of rank {} differ", r);
  }
  const RoutingTables got = round_robin_routing_tables(num_ranks, 0, num_experts);
  expect(got.physical_to_global == by_physical, "physical_to_global differs");
  for (std::size_t p = 0; p < by_physical.size(); ++p) {
    const auto global = static_cast<std::size_t>(by_physical[p]);
    expect(got.global_to_physical[global] == static_cast<std::int64_t>(p),
           "global_to_physical[{}] is {}, expected {}", global, got.global_to_physical[global], p);
  }
}

void check_replicas(int num_logical, int num_redundant) {
  const std::vector<std::int32_t> map = initial_physical_to_logical(num_logical, num_redundant);
  expect(static_cast<int>(map.size()) == num_logical + num_redundant, "{} physical experts",
         map.size());
  for (std::size_t p = 0; p < map.size(); ++p) {
    const int physical = static_cast<int>(p);
    const int want = physical < num_logical ? physical : (physical - num_logical) % num_logical;
    expect(map[p] == want, "physical expert {} is {}, expected {}", p, map[p], want);
  }
  const LogicalMaps maps = compute_logical_maps(map, num_logical);
  for (int e = 0; e < num_logical; ++e) {
    std::vector<std::int32_t> want;
    for (std::size_t p = 0; p < map.size(); ++p) {
      if (map[p] == e) want.push_back(static_cast<std::int32_t>(p));
    }
    const auto count = static_cast<std::int32_t>(want.size());
    expect(maps.replica_counts[static_cast<std::size_t>(e)] == count,
           "expert {} has {} copies, expected {}", e,
           maps.replica_counts[static_cast<std::size_t>(e)], count);
    want.resize(static_cast<std::size_t>(maps.max_replicas), -1);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::size_t at =
          static_cast<std::size_t>(e) * static_cast<std::size_t>(maps.max_replicas) + i;
      expect(maps.logical_to_physical[at] == want[i], "copy {} of expert {} is {}, expected {}", i,
             e, maps.logical_to_physical[at], want[i]);
    }
  }
}

// Tokens 0 to 7 over 2 and 3 copies.
void check_choice() {
  constexpr int kOfTwo[] = {0, 1, 0, 1, 0, 1, 0, 1};
  constexpr int kOfThree[] = {0, 0, 2, 2, 1, 0, 0, 2};
  for (int t = 0; t < 8; ++t) {
    expect(choose_replica(t, 2) == kOfTwo[t], "token {} takes copy {} of 2", t,
           choose_replica(t, 2));
    expect(choose_replica(t, 3) == kOfThree[t], "token {} takes copy {} of 3", t,
           choose_replica(t, 3));
  }
}

void add(Cases& cases, const std::string& device, const char* row, const std::string& name,
         std::function<void()> body) {
  CheckCase result;
  result.group = "placement";
  result.name = fmt::format("placement/{}{}/{}", name_part(device), row, name);
  result.row = row;
  result.column = column_part(device) + "exact values";
  result.device = device;
  result.body = [body = std::move(body)](const Group&, std::uint64_t) {
    body();
    return Agreement{};
  };
  cases.push_back(std::move(result));
}

}  // namespace

void add_placement_cases(Cases& cases) {
  struct Size {
    int num_ranks, num_experts;
  };
  for (const Size s : {Size{1, 5},
                       {2, 4},
                       {2, 8},
                       {2, 9},
                       {2, 16},
                       {2, 17},
                       {4, 8},
                       {4, 9},
                       {4, 16},
                       {4, 18},
                       {4, 32},
                       {4, 33},
                       {7, 3},
                       {7, 65535},
                       {8, 1},
                       {8, 61},
                       {16, 256}}) {
    const std::string name = fmt::format("E{}_P{}", s.num_experts, s.num_ranks);
    for (const auto strategy : {PlacementStrategy::kLinear, PlacementStrategy::kRoundRobin}) {
      for (const char* device : kDevices) {
        add(cases, device, switchyard::name_of(strategy), name,
            [=] { check_map(device, s.num_ranks, s.num_experts, strategy); });
      }
    }
    add(cases, "cpu", "routing_tables", name, [=] { check_tables(s.num_ranks, s.num_experts); });
  }
  for (const int num_redundant : {0, 1, 3, 8, 19}) {
    add(cases, "cpu", "replicas", fmt::format("8_and_{}", num_redundant),
        [=] { check_replicas(8, num_redundant); });
  }
  add(cases, "cpu", "replicas", "choice", check_choice);
}

}  // namespace switchyard::conformance
