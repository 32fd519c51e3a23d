// SPDX-License-Identifier: Apache-2.0

#include "forecast/simulation.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace switchyard::forecast {
namespace {

HostsShape shape_of(int num_ranks, int num_hosts, const std::string& routing) {
  HostsShape shape;
  shape.workload = measure::find_workload("deepseek-v3");
  shape.routing = measure::RoutingPattern::parse(routing, 256, 8);
  shape.num_ranks = num_ranks;
  shape.num_hosts = num_hosts;
  shape.num_tokens = 64;
  return shape;
}

double mean_of(const Simulation& simulation, std::int64_t RankLoad::*field) {
  double sum = 0;
  for (const RankLoad& load : simulation.loads) sum += static_cast<double>(load.*field);
  return sum / static_cast<double>(simulation.loads.size());
}

// A token of 8 of 256 experts reaches 8 x (1 - C(224, 8) / C(256, 8)) = 5.30 of 8 ranks.
TEST(SimulationTest, UniformRoutingReachesAsManyRanksAsItMust) {
  const Simulation simulation = simulate(shape_of(8, 1, "uniform"), {}, 0);
  EXPECT_NEAR(mean_of(simulation, &RankLoad::arrivals) / 64, 5.30, 0.1);
  EXPECT_EQ(mean_of(simulation, &RankLoad::placed), 64 * 8);
  EXPECT_EQ(mean_of(simulation, &RankLoad::passed_on), 0);
  EXPECT_GT(simulation.balance, 0.85);
}

// Half of the 4 groups are on each host: a token of one group stays on one host.
TEST(SimulationTest, LimitedRoutingCrossesToFewHosts) {
  const auto crossings = [](const std::string& routing) {
    const Simulation simulation = simulate(shape_of(8, 4, routing), {}, 0);
    double sum = 0;
    for (const RankLoad& load : simulation.loads) {
      sum += static_cast<double>(load.dispatch.across_out);
    }
    return sum / (8 * 64);
  };
  EXPECT_LE(crossings("limited:4:1"), 1);
  EXPECT_NEAR(crossings("limited:4:1"), 0.75, 0.1);
  EXPECT_GT(crossings("uniform"), 2.3);
}

TEST(SimulationTest, BalancingWithCopiesEvensOutASkewedLoad) {
  const HostsShape shape = shape_of(8, 1, "zipf:1.2");
  const double in_order = simulate(shape, {0, false}, 0).balance;
  const Simulation balanced = simulate(shape, {64, true}, 0);
  EXPECT_EQ(balanced.num_physical, 320);
  EXPECT_LT(in_order, 0.8);
  EXPECT_GT(balanced.balance, in_order + 0.1);
}

TEST(SimulationTest, MoreRanksThanExpertsNeedCopies) {
  EXPECT_EQ(min_redundant(256, 512), 256);
  EXPECT_EQ(min_redundant(384, 256), 128);
  EXPECT_EQ(min_redundant(256, 64), 0);
  const HostsShape shape = shape_of(512, 64, "uniform");
  const auto without_rows = [](const RankLoad& load) { return load.placed == 0; };
  const Simulation too_few = simulate(shape, {0, false}, 0);
  EXPECT_EQ(std::ranges::count_if(too_few.loads, without_rows), 256);
  const Simulation simulation = simulate(shape, {256, false}, 0);
  EXPECT_EQ(std::ranges::count_if(simulation.loads, without_rows), 0);
}

}  // namespace
}  // namespace switchyard::forecast
