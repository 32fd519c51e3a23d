// SPDX-License-Identifier: Apache-2.0
//
// How the floor of GPUs is computed, with a meter whose times are known. Needs no GPU.

#include "measure/cuda_floor.h"

#include <gtest/gtest.h>

#include "measure/cuda_target.h"
#include "support/ranks.h"

namespace switchyard::measure {
namespace {

const Stream kStream = Stream::default_of(Device::cuda(0));  // nothing is queued in it

// Adds the time that a copy would take.
class KnownQueue final : public DeviceQueue {
 public:
  explicit KnownQueue(double& us) : us_(us) {}

  Device device() const override { return kStream.device(); }
  Stream stream() override { return kStream; }
  std::size_t free_bytes() override { return 0; }
  DeviceMemory allocate(std::size_t) override { return std::make_shared<std::byte>(); }
  void copy(void*, const void*, std::size_t) override {}
  void copy_async(void*, const void*, std::size_t bytes, Stream) override {
    us_ += 2 * static_cast<double>(bytes) * 1e-3 / 3000;
  }
  void fill(void*, int, std::size_t) override {}
  void wait() override {}

 private:
  double& us_;
};

// Every operation adds the time it would take. `slowness` is this rank's factor.
class KnownMeter final : public DeviceMeter {
 public:
  explicit KnownMeter(double slowness, int compute_major = 9)
      : slowness_(slowness), compute_major_(compute_major) {}

  const char* heap() const override { return "none"; }
  int ranks_on_gpu() const override { return 1; }
  int num_ctas(int num_sms) const override { return num_sms == 0 ? 80 : 2 * num_sms; }
  int num_sms() const override { return 40; }
  int compute_major() const override { return compute_major_; }
  DeviceQueue& queue() override { return queue_; }
  void run(const DeviceWork& work) override { work(kStream); }
  DeviceWork capture(const DeviceWork& work) override { return work; }
  double time_us(const DeviceWork& work) override {
    us_ = 3;  // of a graph or a kernel beside its work
    work(kStream);
    return us_ * slowness_;
  }
  // GB/s to one peer: 10 per CTA up to 30 CTAs by stores, 24 up to 8 by bulk copies, 5 by loads.
  void carry(WireCopy how, int num_times, int num_ctas, Stream) override {
    ++num_carries_;
    const double rate = how == WireCopy::kStores       ? std::min(300, 10 * num_ctas)
                        : how == WireCopy::kBulkCopies ? std::min(192, 24 * num_ctas)
                                                       : 5.0 * num_ctas;
    us_ += static_cast<double>(kWireBytes) * num_times * 1e-3 / rate;
  }
  void swap_rows(int num_rows, Stream) override { us_ += 0.5 * num_rows; }
  void touch_rows(std::byte*, std::size_t, int num_rows, Stream) override {
    us_ += 1.25 * num_rows;
  }
  void launch_busy(int num_cycles, bool programmatic, Stream) override {
    us_ += 0.001 * num_cycles + (programmatic ? 0.25 : 0.75);
  }
  std::string why_no_nccl() const override { return "none here"; }
  std::string join_nccl() override { return "none here"; }
  DeviceWork nccl_all_to_all(const std::vector<std::int64_t>&,
                             const std::vector<std::int64_t>&) override {
    return {};
  }

  int num_carries() const { return num_carries_; }

 private:
  double slowness_;
  int compute_major_;
  int num_carries_ = 0;
  double us_ = 0;
  KnownQueue queue_{us_};
};

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
    KnownMeter meter(group.rank() == 2 ? 2.0 : 1.0);
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
    KnownMeter meter(1);
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
    KnownMeter meter(1);
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
    KnownMeter meter(1, group.rank() == 1 ? 8 : 9);
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(8);
    EXPECT_EQ(rate_of(floor, "bulk copies", 8), -1);
    EXPECT_EQ(value_of(floor, "programmatic launch"), -1);
    EXPECT_EQ(floor.saved_us, 0);
  });
}

TEST(CudaFloorTest, OneRankHasNoWire) {
  test::run_ranks(1, [](const Group& group) {
    KnownMeter meter(1);
    CudaFloor all(group, meter);
    const FloorModel floor = all.of(0);
    EXPECT_EQ(value_of(floor, "row hop"), 0);
    EXPECT_TRUE(floor.wire.empty());
    EXPECT_NEAR(rate_at(floor, 1e6), 3000, 200);
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
  shape.num_tokens = std::int64_t{1} << 24;
  EXPECT_GT(cuda_bytes_needed(shape), std::int64_t{1} << 40);
}

}  // namespace
}  // namespace switchyard::measure
