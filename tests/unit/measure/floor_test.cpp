// SPDX-License-Identifier: Apache-2.0

#include "measure/floor.h"

#include <gtest/gtest.h>

#include "measure/statistics.h"
#include "support/errors.h"

namespace switchyard::measure {
namespace {

FloorModel two_points() {
  FloorModel floor;
  floor.start_us = 3;
  floor.rate = {{1000, 10}, {100'000, 30}};
  return floor;
}

TEST(FloorTest, RateIsInterpolatedOverTheLogarithmOfBytes) {
  EXPECT_DOUBLE_EQ(rate_at(two_points(), 1), 10);
  EXPECT_DOUBLE_EQ(rate_at(two_points(), 1000), 10);
  EXPECT_DOUBLE_EQ(rate_at(two_points(), 10'000), 20);
  EXPECT_DOUBLE_EQ(rate_at(two_points(), 100'000), 30);
  EXPECT_DOUBLE_EQ(rate_at(two_points(), 1e9), 30);
  test::expect_error(Errc::kInternal, "no measured rate", [] { rate_at({}, 1); });
}

TEST(FloorTest, TransferIsStartAndBytesOverRate) {
  EXPECT_DOUBLE_EQ(transfer_us(two_points(), 0), 3);
  EXPECT_DOUBLE_EQ(transfer_us(two_points(), 3e6), 3 + 100);  // 30 GB/s: 30000 bytes per us
}

TEST(FloorTest, OperationsAddUp) {
  BenchShape shape;
  Traffic traffic;
  traffic.num_ranks = 2;
  traffic.dispatch = {{0, 300'000, 600'000, 0}, {900'000, 0}, {900'000, 0}};
  traffic.combine = {{0, 0, 300'000, 0}, {0, 400'000}, {0, 2'000'000}};
  FloorModel floor = two_points();
  const auto us = [&](Operation operation) {
    shape.operation = operation;
    return floor_us(floor, shape, traffic);
  };
  EXPECT_DOUBLE_EQ(us(Operation::kDispatch), 3 + 30);
  EXPECT_DOUBLE_EQ(us(Operation::kCombine), 3 + 40);
  EXPECT_DOUBLE_EQ(us(Operation::kPair), 76);
  EXPECT_DOUBLE_EQ(us(Operation::kLayer), 76);
  EXPECT_EQ(wire_bytes(shape, traffic), 900'000);
  floor.bytes = FloorBytes::kWire;
  EXPECT_DOUBLE_EQ(us(Operation::kDispatch), 3 + 20);
  EXPECT_EQ(wire_bytes(shape, traffic), 600'000);
  shape.num_layers = 61;
  EXPECT_DOUBLE_EQ(us(Operation::kPair), 61 * (3 + 20 + 3 + 10));
  EXPECT_EQ(wire_bytes(shape, traffic), 61 * 900'000);
}

TEST(FloorTest, ProgrammaticLaunchSavesItsShareOfEveryStart) {
  BenchShape shape;
  shape.operation = Operation::kPair;
  Traffic traffic;
  traffic.num_ranks = 2;
  traffic.dispatch = {{0, 0, 0, 0}, {0, 0}, {0, 0}};
  traffic.combine = traffic.dispatch;
  FloorModel floor = two_points();
  floor.saved_us = 0.25;
  EXPECT_DOUBLE_EQ(floor_us(floor, shape, traffic), 2 * 2.75);
  shape.is_programmatic = false;
  EXPECT_DOUBLE_EQ(floor_us(floor, shape, traffic), 2 * 3);
}

TEST(StatisticsTest, NearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 0.5), 50);
  EXPECT_EQ(percentile(values, 0.99), 99);
  EXPECT_EQ(percentile(values, 1), 100);
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(median(values), 50.5);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

}  // namespace
}  // namespace switchyard::measure
