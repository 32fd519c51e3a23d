// SPDX-License-Identifier: Apache-2.0
//
// How the floor of GPUs is computed, with a meter whose times are known. Needs no GPU.

#include "measure/cuda_floor.h"

#include <gtest/gtest.h>

#include "known_meter.h"
#include "measure/cuda_target.h"
#include "support/ranks.h"

namespace switchyard::measure {
namespace {

double value_of(const FloorModel& floor, const std::string& name) {
  for (const Constant& constant : floor.constants) {
    if (constant.name == name) return constant.value;
  }
  return -1;
}

double rate_of(const FloorModel& floor, const std::string& by, int num_ctas) {
  for (const WireRate& one : floor.wire) {
    if (one.by == by && one.num_ctas == num_ctas) return one.gb_per_second;
  }
  return -1;
}

TEST(CudaFloorTest, StartIsRowHopLaunchAndRowOfTheSlowestRank) {
  test::run_ranks(3, [](const Group& group) {
    KnownMeter meter(group.rank() == 2 ? 2.0 : 1.0, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(0);
    EXPECT_EQ(floor.bytes, FloorBytes::kWire);
    constexpr double kExtra = 6;  // of each timing, on the slowest rank
    EXPECT_NEAR(value_of(floor, "row hop"), 1.0 + kExtra / 200, 1e-9);
    EXPECT_NEAR(value_of(floor, "launch"), 1.5, 1e-9);
    EXPECT_NEAR(value_of(floor, "programmatic launch"), 0.5, 1e-9);
    EXPECT_NEAR(value_of(floor, "row"), 2.5 + kExtra / 512, 1e-9);
    EXPECT_NEAR(floor.start_us, 5.0 + kExtra / 200 + kExtra / 512, 1e-9);
    EXPECT_NEAR(floor.saved_us, 1.0, 1e-9);
  });
}

TEST(CudaFloorTest, WireIsTheBestOfAllWaysAndGrids) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(0);
    const auto near = [](double value, double wanted) { EXPECT_NEAR(value, wanted, 2); };
    near(rate_of(floor, "16-byte stores", 4), 40);
    near(rate_of(floor, "16-byte stores", 24), 240);
    near(rate_of(floor, "bulk copies", 8), 192);
    near(rate_of(floor, "16-byte loads", 80), 400);
    EXPECT_EQ(floor.wire.size(), 3u * 7);  // 4, 8, 16, 24, 32, 40 and 80 CTAs
    ASSERT_NE(best_of(floor.wire), nullptr);
    EXPECT_EQ(best_of(floor.wire)->by, "16-byte loads");
    EXPECT_EQ(best_of(floor.wire)->num_ctas, 80);
    near(rate_at(floor, 1e6), 400);
    const std::vector<WireRate> each = best_of_each(floor.wire);
    ASSERT_EQ(each.size(), 3u);
    EXPECT_EQ(each[0].by, "16-byte stores");
    EXPECT_EQ(each[0].num_ctas, 32);  // of equals the first
    EXPECT_EQ(each[1].num_ctas, 8);
  });
}

TEST(CudaFloorTest, ABudgetHasTheWireOfItsSmsAndWhatTheyStore) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(12);
    EXPECT_EQ(floor.wire.size(), 3u * 3);  // 4, 8 and 12 CTAs
    EXPECT_EQ(best_of(floor.wire)->by, "bulk copies");
    EXPECT_NEAR(rate_at(floor, 1e6), 192, 1);
    EXPECT_NEAR(value_of(floor, "stores of 12 SMs"), 120, 1);
    const int before = meter.num_carries();
    EXPECT_EQ(all.of(12).wire.size(), floor.wire.size());
    EXPECT_EQ(meter.num_carries(), before);  // nothing is measured twice
  });
}

TEST(CudaFloorTest, OldGpusHaveNeitherBulkCopiesNorProgrammaticLaunch) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1, group.rank() == 1 ? 8 : 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(8);
    EXPECT_EQ(rate_of(floor, "bulk copies", 8), -1);
    EXPECT_EQ(value_of(floor, "programmatic launch"), -1);
    EXPECT_EQ(floor.saved_us, 0);
  });
}

TEST(CudaFloorTest, OneRankHasNoWire) {
  test::run_ranks(1, [](const Group& group) {
    KnownMeter meter(1, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(0);
    EXPECT_EQ(value_of(floor, "row hop"), 0);
    EXPECT_TRUE(floor.wire.empty());
    EXPECT_NEAR(rate_at(floor, 1e6), 3000, 200);
  });
}

// The largest host counts, on every rank.
TEST(CudaFloorTest, SeveralHostsHaveTheWireInsideThem) {
  test::run_ranks_on_hosts({0, 1, 0}, [](const Group& group) {
    KnownMeter meter(1, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(12);
    EXPECT_NEAR(rate_of(floor, "16-byte stores", 12), 120, 1);
    EXPECT_NEAR(value_of(floor, "row hop"), 0.5, 0.1);
  });
  test::run_ranks_on_hosts({0, 1}, [](const Group& group) {
    KnownMeter meter(1, 9, group.size());
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(0);
    EXPECT_TRUE(floor.wire.empty());
    EXPECT_EQ(value_of(floor, "row hop"), 0);
  });
}

TEST(CudaFloorTest, MemoryNeededGrowsWithWhatIsReceived) {
  BenchShape shape;
  shape.workload = find_workload("deepseek-v3");
  shape.num_ranks = 8;
  shape.num_tokens = 128;
  shape.scheme = schemes::kFp8Block;
  const std::int64_t expanded = cuda_bytes_needed(shape);
  EXPECT_GT(expanded, std::int64_t{8} * 128 * 8 * (2 * 7168 + 7168));  // results and rows
  shape.layout = Layout::kBatched;
  EXPECT_GT(cuda_bytes_needed(shape), 2 * expanded);
  shape.layout = Layout::kCompact;
  EXPECT_LT(cuda_bytes_needed(shape), expanded);
  const std::int64_t one_host = cuda_bytes_needed(shape);
  shape.hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  EXPECT_GT(cuda_bytes_needed(shape), one_host + 128 * 4 * 2 * 7168);  // returned by four ranks
  shape.num_tokens = std::int64_t{1} << 24;
  EXPECT_GT(cuda_bytes_needed(shape), std::int64_t{1} << 40);
}

}  // namespace
}  // namespace switchyard::measure
