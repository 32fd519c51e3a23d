// SPDX-License-Identifier: Apache-2.0

#include "forecast/layer_time.h"

#include <gtest/gtest.h>

namespace switchyard::forecast {
namespace {

const measure::Workload kWorkload{"", 1000, 16, 2, 100};  // 300,000 weights per expert

TEST(LayerTimeTest, ExpertsComputeOrReadTheirWeights) {
  std::vector<RankLoad> loads(2);
  loads[0].placed = 1;
  loads[1].placed = 1000;
  // 2 x 300,000 x 1000 operations at 1 TFLOP/s; 8 weights of 300,000 bytes at 1 GB/s.
  EXPECT_DOUBLE_EQ(experts_us({1, 1e9, 8}, kWorkload, 8, loads), 600);
  EXPECT_DOUBLE_EQ(experts_us({1, 1e9, 8, 0.5}, kWorkload, 8, loads), 1200);
  EXPECT_DOUBLE_EQ(experts_us({1e9, 1, 8}, kWorkload, 8, loads), 2400);
  EXPECT_DOUBLE_EQ(experts_us({1e9, 1, 4}, kWorkload, 8, loads), 1200);
  loads[1].placed = 0;
  EXPECT_DOUBLE_EQ(experts_us({1e9, 1, 8}, kWorkload, 8, loads), 300);  // only one has a row
}

TEST(LayerTimeTest, MicroBatchesHideWhatTheyCan) {
  EXPECT_DOUBLE_EQ(layer_us({{10, 40, 20}}), 70);
  // Dispatches end at 10 and 20, experts at 50 and 90, combines at 70 and 110.
  EXPECT_DOUBLE_EQ(layer_us({{10, 40, 20}, {10, 40, 20}}), 110);
  // Calls are longer: dispatches end at 40, experts at 25 and 45; combines at 60 and 80.
  EXPECT_DOUBLE_EQ(layer_us({{20, 5, 20}, {20, 5, 20}}), 80);
  // Dispatches end at 10 and 15, experts at 50 and 70, combines at 70 and 80.
  EXPECT_DOUBLE_EQ(layer_us({{10, 40, 20}, {5, 20, 10}}), 80);
}

TEST(LayerTimeTest, CallsThatTakeTheWholeProcessorHideNothing) {
  EXPECT_DOUBLE_EQ(layer_us({{10, 40, 20, 1, 1}, {10, 40, 20, 1, 1}}), 140);
  EXPECT_DOUBLE_EQ(layer_us({{20, 5, 20, 1, 1}, {20, 5, 20, 1, 1}}), 90);
}

TEST(LayerTimeTest, ExpertsGoOnWithWhatCallsLeave) {
  // Dispatches end at 10 and 20; experts do 5 of 40 beside the second and end at 55, do 10 of 40
  // beside the first combine, until 75, and end at 105; the second combine ends at 125.
  EXPECT_DOUBLE_EQ(layer_us({{10, 40, 20, 0.5, 0.5}, {10, 40, 20, 0.5, 0.5}}), 125);
}

}  // namespace
}  // namespace switchyard::forecast
