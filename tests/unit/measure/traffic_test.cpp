// SPDX-License-Identifier: Apache-2.0

#include "measure/traffic.h"

#include <gmock/gmock.h>

namespace switchyard::measure {
namespace {

using ::testing::ElementsAre;

BenchShape small_shape() {
  BenchShape shape;
  shape.workload = {"small", 16, 4, 2, 8};  // experts 0 and 1 on rank 0, 2 and 3 on rank 1
  shape.num_ranks = 2;
  shape.num_tokens = 2;
  return shape;
}

// bf16 rows of 32 bytes, and 16 bytes of routing per token on the wire.
TEST(TrafficTest, CountsByHand) {
  BenchShape shape = small_shape();
  // Rank 0: one token for both experts of rank 1, one that stays. Rank 1: one for each rank, one
  // none.
  const std::vector<std::vector<std::int32_t>> ids{{2, 3, 0, 1}, {1, 2, -1, -1}};
  const Traffic traffic = traffic_of(shape, ids);
  EXPECT_THAT(traffic.dispatch.wire, ElementsAre(0, 48, 48, 0));
  EXPECT_THAT(traffic.combine.wire, ElementsAre(0, 32, 32, 0));
  // Each rank reads its tokens with an expert, two and one, and one that arrives.
  EXPECT_THAT(traffic.dispatch.read, ElementsAre(3 * 32, 2 * 32));
  // Each rank publishes one row and fills 2 + 1 places.
  EXPECT_THAT(traffic.dispatch.written, ElementsAre(4 * 32, 4 * 32));
  // Each rank reads the results in its places, 3, and one row that returns.
  EXPECT_THAT(traffic.combine.read, ElementsAre(4 * 32, 4 * 32));
  EXPECT_EQ(busiest_copy(traffic.dispatch), (3 + 4) * 32 / 2);
  // Each rank returns one row and writes two rows of output.
  EXPECT_THAT(traffic.combine.written, ElementsAre(3 * 32, 3 * 32));
  shape.reduce = Reduce::kPerExpert;
  EXPECT_THAT(traffic_of(shape, ids).combine.wire, ElementsAre(0, 32, 64, 0));
  shape.layout = Layout::kCompact;
  EXPECT_THAT(traffic_of(shape, ids).dispatch.written, ElementsAre(3 * 32, 3 * 32));
}

// Rows of 16 codes and one scale of 4 bytes, either way; results and sums are bf16.
TEST(TrafficTest, CodesAndQuantizedReturnsCountByHand) {
  BenchShape shape = small_shape();
  shape.scheme = shape.returned = schemes::kInt8Token;
  const std::vector<std::vector<std::int32_t>> ids{{2, 3, 0, 1}, {1, 2, -1, -1}};
  EXPECT_THAT(traffic_of(shape, ids).dispatch.read, ElementsAre(2 * 32 + 20, 32 + 20));
  shape.gives_codes = true;
  const Traffic traffic = traffic_of(shape, ids);
  EXPECT_THAT(traffic.dispatch.read, ElementsAre(3 * 20, 2 * 20));
  EXPECT_THAT(traffic.combine.wire, ElementsAre(0, 20, 20, 0));
  EXPECT_THAT(traffic.combine.read, ElementsAre(3 * 32 + 20, 3 * 32 + 20));
  EXPECT_THAT(traffic.combine.written, ElementsAre(20 + 2 * 32, 20 + 2 * 32));
}

// Hosts of ranks 0 and 1, and of 2. Rank 0 forwards what rank 2 sends to rank 1, and what rank 1
// returns for it.
TEST(TrafficTest, InsideHostsForwardersPassRowsOn) {
  Traffic traffic;
  traffic.num_ranks = 3;
  traffic.dispatch.wire = {0, 1, 2, 4, 0, 8, 16, 32, 0};
  traffic.combine.wire = {0, 64, 128, 256, 0, 512, 1024, 2048, 0};
  const Traffic inside = inside_hosts(traffic, HostMap({0, 0, 1}));
  EXPECT_THAT(inside.dispatch.wire, ElementsAre(0, 1 + 32, 0, 4, 0, 0, 0, 0, 0));
  EXPECT_THAT(inside.combine.wire, ElementsAre(0, 64, 0, 256 + 512, 0, 0, 0, 0, 0));
  EXPECT_EQ(busiest_link(inside.combine, 3), 256 + 512);
  EXPECT_EQ(inside_hosts(traffic, HostMap({5, 5, 5})).dispatch.wire, traffic.dispatch.wire);
}

TEST(TrafficTest, BusiestAreTheLargestSums) {
  const Flow flow{{0, 1, 2, 3, 0, 4, 50, 6, 0}, {1, 2, 6}, {7, 9, 8}};
  EXPECT_EQ(busiest_egress(flow, 3), 56);
  EXPECT_EQ(busiest_link(flow, 3), 56);
  EXPECT_EQ(busiest_copy(flow), 7);
  const Flow incast{{0, 0, 0, 5, 0, 0, 5, 0, 0}, {}, {}};
  EXPECT_EQ(busiest_egress(incast, 3), 5);
  EXPECT_EQ(busiest_link(incast, 3), 10);
  EXPECT_EQ(busiest_copy(incast), 0);
}

// Eight of 256 experts, eight ranks: 7 (1 - C(224, 8) / C(256, 8)) = 4.633 remote ranks per token.
TEST(TrafficTest, UniformRoutingReachesTheExpectedRanks) {
  BenchShape shape;
  shape.workload = {"v3", 7168, 256, 8, 2048};
  shape.routing = RoutingPattern::parse("uniform", 256, 8);
  shape.num_ranks = 8;
  shape.num_tokens = 2048;
  shape.scheme = schemes::kFp8Block;
  const Traffic traffic = traffic_of(shape, std::int64_t{0});
  double dispatch = 0;
  for (const std::int64_t bytes : traffic.dispatch.wire) dispatch += static_cast<double>(bytes);
  double combine = 0;
  for (const std::int64_t bytes : traffic.combine.wire) combine += static_cast<double>(bytes);
  const double tokens = 8 * 2048;
  EXPECT_NEAR(dispatch / tokens / 7456, 4.633, 0.03);  // 7168 + 56 scales + 8 choices
  EXPECT_NEAR(combine / tokens / 14336, 4.633, 0.03);
}

TEST(TrafficTest, HotRoutingGoesToOneRank) {
  BenchShape shape = small_shape();
  shape.routing = RoutingPattern::parse("hot", 4, 2);
  const Traffic traffic = traffic_of(shape, std::int64_t{3});
  EXPECT_THAT(traffic.dispatch.wire, ElementsAre(0, 0, 2 * 48, 0));
  EXPECT_THAT(traffic.combine.wire, ElementsAre(0, 2 * 32, 0, 0));
}

}  // namespace
}  // namespace switchyard::measure
