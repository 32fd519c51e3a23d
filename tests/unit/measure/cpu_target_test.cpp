// SPDX-License-Identifier: Apache-2.0

#include "measure/cpu_target.h"

#include <gtest/gtest.h>

#include "measure/gather.h"
#include "support/ranks.h"

namespace switchyard::measure {
namespace {

BenchShape small_shape(Operation operation) {
  BenchShape shape;
  shape.workload = {"small", 64, 6, 2, 24};
  shape.routing = RoutingPattern::parse("zipf:1", 6, 2);
  shape.num_ranks = 2;
  shape.num_tokens = 3;
  shape.operation = operation;
  shape.scheme = schemes::kFp8Block;
  shape.num_runs = 5;
  return shape;
}

TEST(CpuTargetTest, EveryOperationIsTimedAndRight) {
  for (const Operation operation :
       {Operation::kDispatch, Operation::kCombine, Operation::kPair, Operation::kLayer}) {
    for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
      BenchShape shape = small_shape(operation);
      shape.layout = layout;
      shape.num_layers = operation >= Operation::kPair ? 2 : 1;
      test::run_ranks(2, [&](const Group& group) {
        const auto target = make_cpu_target(group);
        int ticks = 0;
        const ShapeResult result = target->measure(shape, "", [&] { ++ticks; });
        EXPECT_EQ(result.num_wrong, 0) << name_of(operation) << " " << name_of(layout);
        EXPECT_EQ(result.us.size(), 5u);
        EXPECT_EQ(ticks, 5);
        EXPECT_EQ(result.method, "calls");
        for (const double us : result.us) EXPECT_GT(us, 0);
      });
    }
  }
}

TEST(CpuTargetTest, FloorIsTheSameOnEveryRank) {
  test::run_ranks(3, [&](const Group& group) {
    const FloorModel floor = make_cpu_target(group)->measure_floor(0);
    EXPECT_GT(floor.start_us, 0);
    ASSERT_EQ(floor.rate.size(), 4u);
    EXPECT_EQ(floor.constants.size(), 5u);
    std::vector<double> values{floor.start_us};
    for (const RatePoint& point : floor.rate) {
      EXPECT_GT(point.gb_per_second, 0);
      values.push_back(point.gb_per_second);
    }
    EXPECT_EQ(max_over_ranks(group, values), values);
  });
}

TEST(CpuTargetTest, WhatDoesNotFitIsLeftOut) {
  test::run_ranks(1, [](const Group& group) {
    const auto target = make_cpu_target(group);
    BenchShape shape = small_shape(Operation::kPair);
    EXPECT_EQ(target->why_left_out(shape), "");
    shape.num_tokens = std::int64_t{1} << 40;
    EXPECT_NE(target->why_left_out(shape).find("more than 60 %"), std::string::npos);
    shape.num_tokens = std::int64_t{1} << 62;
    EXPECT_EQ(cpu_bytes_needed(shape), std::int64_t{9'000'000'000'000'000'000});
  });
}

TEST(GatherTest, LargestSumAndFirst) {
  test::run_ranks(3, [](const Group& group) {
    const double rank = group.rank();
    EXPECT_EQ(max_over_ranks(group, {rank, -rank, 5}), (std::vector<double>{2, 0, 5}));
    EXPECT_EQ(max_over_ranks(group, {}), std::vector<double>{});
    EXPECT_EQ(sum_of(group, group.rank() + 1), 6);
    EXPECT_EQ(first_text(group, group.rank() == 0 ? "" : std::to_string(group.rank())), "1");
    EXPECT_EQ(first_text(group, ""), "");
  });
}

}  // namespace
}  // namespace switchyard::measure
