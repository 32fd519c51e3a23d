// SPDX-License-Identifier: Apache-2.0
//
// What placement refuses, which strategy it chooses, and ids through its tables. Maps and tables
// are counted out in instruments/conformance.

#include "switchyard/expert_placement.h"

#include <limits>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kLinear = PlacementStrategy::kLinear;
constexpr auto kRoundRobin = PlacementStrategy::kRoundRobin;

TEST(ExpertMapTest, RefusesWhatCannotBe) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  const auto refuses = [](const char* phrase, int ranks, int rank, int experts,
                          PlacementStrategy strategy) {
    expect_invalid(phrase, [&] { (void)determine_expert_map(ranks, rank, experts, strategy); });
  };
  refuses("rank is 0 of 0 ranks", 0, 0, 8, kLinear);
  refuses("rank is 2 of 2 ranks", 2, 2, 8, kLinear);
  refuses("rank is -1", 2, -1, 8, kLinear);
  refuses("num_experts is 0", 2, 0, 0, kLinear);
  refuses("num_experts is 2147483647", 2, 0, kMax, kRoundRobin);
  refuses("strategy is 2, must be linear or round_robin", 2, 0, 8,
          static_cast<PlacementStrategy>(2));
  EXPECT_EQ(determine_expert_map(kMax, kMax - 1, 8, kRoundRobin).num_local_experts, 0);
}

TEST(PlacementStrategyTest, NamesGoBothWays) {
  for (const auto strategy : {kLinear, kRoundRobin}) {
    EXPECT_EQ(placement_strategy_from_name(name_of(strategy)), strategy);
  }
  EXPECT_EQ(placement_strategy_from_name("random"), std::nullopt);
}

TEST(ChoosePlacementTest, RoundRobinNeedsGroupsAndTables) {
  const PlacementFacts good{.num_expert_groups = 4};
  EXPECT_EQ(choose_placement(kRoundRobin, good).strategy, kRoundRobin);
  EXPECT_EQ(choose_placement(kRoundRobin, good).reason, "");
  EXPECT_EQ(choose_placement(kLinear, {}).strategy, kLinear);
  EXPECT_EQ(choose_placement(kLinear, {}).reason, "");

  const auto falls_back = [&](const char* phrase, const PlacementFacts& facts) {
    const PlacementChoice choice = choose_placement(kRoundRobin, facts);
    EXPECT_EQ(choice.strategy, kLinear);
    EXPECT_THAT(choice.reason, HasSubstr(phrase));
  };
  falls_back("one expert group", {.num_expert_groups = 1});
  falls_back("one expert group", {.num_expert_groups = 0});
  falls_back("3 redundant experts", {.num_expert_groups = 4, .num_redundant_experts = 3});
  falls_back("load balancing is on", {.num_expert_groups = 4, .enable_eplb = true});
  falls_back("no routing tables", {.num_expert_groups = 4, .use_all2all_kernels = true});
  PlacementFacts low_latency{.num_expert_groups = 4, .use_all2all_kernels = true};
  low_latency.needs_round_robin_routing_tables = true;
  EXPECT_EQ(choose_placement(kRoundRobin, low_latency).strategy, kRoundRobin);
  expect_invalid("-1 redundant experts", [] {
    (void)choose_placement(kRoundRobin, {.num_expert_groups = 4, .num_redundant_experts = -1});
  });
}

TEST(RoutingTablesTest, RefusesARankThatIsNotThere) {
  expect_invalid("round_robin_routing_tables: rank is 4 of 4 ranks",
                 [] { (void)round_robin_routing_tables(4, 4, 9); });
}

TEST(MapExpertIdsTest, NegativeIdsAreKeptAndWidthsMayDiffer) {
  const RoutingTables tables = round_robin_routing_tables(2, 0, 8);
  const std::vector<std::int32_t> ids{1, -1, 7, 2, -5, 0};
  std::vector<std::int64_t> wide(6, 99);
  map_expert_ids(TensorView::of(ids.data(), {3, 2}), tables.global_to_physical,
                 TensorView::of(wide.data(), {3, 2}));
  EXPECT_THAT(wide, ElementsAre(4, -1, 7, 1, -5, 0));
  std::vector<std::int32_t> back(6, 99);
  map_expert_ids(TensorView::of(wide.data(), {3, 2}), tables.physical_to_global,
                 TensorView::of(back.data(), {3, 2}));
  EXPECT_EQ(back, ids);
  const TensorView same = TensorView::of(wide.data(), {6});
  map_expert_ids(same, tables.physical_to_global, same);
  EXPECT_THAT(wide, ElementsAre(1, -1, 7, 2, -5, 0));
  map_expert_ids(TensorView(nullptr, DType::kI32, {0, 4}), tables.physical_to_global,
                 TensorView(nullptr, DType::kI64, {0, 4}));
}

TEST(MapExpertIdsTest, LocalAndGlobalIds) {
  const ExpertMap map = determine_expert_map(4, 1, 9, kRoundRobin);  // holds experts 1 and 5
  const std::vector<std::int64_t> ids{5, 0, -1, 1};
  std::vector<std::int64_t> local(4, 99);
  global_to_local_ids(TensorView::of(ids.data(), {4}), map, TensorView::of(local.data(), {4}));
  EXPECT_THAT(local, ElementsAre(1, -1, -1, 0));
  local_to_global_ids(TensorView::of(local.data(), {4}), map, TensorView::of(local.data(), {4}));
  EXPECT_THAT(local, ElementsAre(5, -1, -1, 1));
  const ExpertMap alone = determine_expert_map(1, 0, 6, kLinear);
  global_to_local_ids(TensorView::of(ids.data(), {4}), alone, TensorView::of(local.data(), {4}));
  EXPECT_EQ(local, ids);
}

TEST(MapExpertIdsTest, AnErrorWritesNothing) {
  const std::vector<std::int64_t> table{3, std::int64_t{1} << 40};
  const std::vector<std::int64_t> ids{0, 2};
  std::vector<std::int64_t> out{77, 77};
  const TensorView ids_view = TensorView::of(ids.data(), {2});
  const TensorView out_view = TensorView::of(out.data(), {2});
  const auto refuses = [&](const char* phrase, const TensorView& from, const TensorView& to) {
    expect_invalid(phrase, [&] { map_expert_ids(from, table, to); });
    EXPECT_THAT(out, ElementsAre(77, 77));
  };
  refuses("element 1 of ids is 2, must be below 2", ids_view, out_view);
  refuses("ids is f32 [2], must be i32 or i64", TensorView(ids.data(), DType::kF32, {2}), out_view);
  refuses("out is i64 [2], must be the shape of ids, i64 [1, 2]",
          TensorView::of(ids.data(), {1, 2}), out_view);
  refuses("must be i32 or i64, contiguous", TensorView(ids.data(), DType::kI64, {1, 2}, {1, 3}),
          TensorView(out.data(), DType::kI64, {1, 2}, {1, 3}));
  refuses("null pointer", TensorView(nullptr, DType::kI64, {2}), out_view);
  const std::vector<std::int32_t> narrow{0, 1};
  refuses("element 1 of ids becomes a value that i32 cannot hold",
          TensorView::of(narrow.data(), {2}), TensorView(out.data(), DType::kI32, {2}));
  refuses("share memory as i32 and i64", TensorView(out.data(), DType::kI32, {1}),
          TensorView(out.data(), DType::kI64, {1}));
}

}  // namespace
}  // namespace switchyard
