// SPDX-License-Identifier: Apache-2.0
//
// How the floor of GPUs is computed, with a meter whose times are known. Needs no GPU.

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
  explicit KnownMeter(double slowness) : slowness_(slowness) {}

  const char* heap() const override { return "none"; }
  int ranks_on_gpu() const override { return 1; }
  int num_ctas(int num_sms) const override { return num_sms == 0 ? 40 : 2 * num_sms; }
  DeviceQueue& queue() override { return queue_; }
  void run(const DeviceWork& work) override { work(kStream); }
  DeviceWork capture(const DeviceWork& work) override { return work; }
  double time_us(const DeviceWork& work) override {
    us_ = 0;
    work(kStream);
    return us_ * slowness_;
  }
  void push(std::size_t bytes, int num_times, int num_ctas, Stream) override {
    const double rate = num_ctas > 30 ? 200.0 : 10.0 * num_ctas;  // GB/s; flat above 30 CTAs
    us_ += static_cast<double>(bytes) * num_times * 1e-3 / rate;
  }
  void ping(int num_trips, Stream) override { us_ += 2 * 0.5 * num_trips; }
  void touch_rows(std::byte*, std::size_t, int num_rows, Stream) override {
    us_ += 1.25 * num_rows;
  }
  void launch_nothing(Stream) override { us_ += 0.75; }
  std::string why_no_nccl() const override { return "none here"; }
  std::string join_nccl() override { return "none here"; }
  DeviceWork nccl_all_to_all(const std::vector<std::int64_t>&,
                             const std::vector<std::int64_t>&) override {
    return {};
  }

 private:
  double slowness_;
  double us_ = 0;
  KnownQueue queue_{us_};
};

double value_of(const FloorModel& floor, const std::string& name) {
  for (const Constant& constant : floor.constants) {
    if (constant.name == name) return constant.value;
  }
  return -1;
}

TEST(CudaFloorTest, StartIsHopLaunchAndRowOfTheSlowestRank) {
  test::run_ranks(3, [](const Group& group) {
    KnownMeter meter(group.rank() == 2 ? 2.0 : 1.0);
    const FloorModel floor = measure_cuda_floor(group, meter, 0);
    EXPECT_EQ(floor.bytes, FloorBytes::kWire);
    EXPECT_NEAR(value_of(floor, "hop"), 1.0, 1e-9);
    EXPECT_NEAR(value_of(floor, "launch"), 1.5, 1e-9);
    EXPECT_NEAR(value_of(floor, "row"), 2.5, 1e-9);
    EXPECT_NEAR(value_of(floor, "copy"), 1500, 1e-6);
    EXPECT_NEAR(floor.start_us, 5.0, 1e-9);
    EXPECT_NEAR(value_of(floor, "wire of 8 CTAs"), 40, 1e-6);
    EXPECT_NEAR(value_of(floor, "wire of 16 CTAs"), 80, 1e-6);
    EXPECT_NEAR(value_of(floor, "wire of 32 CTAs"), 100, 1e-6);
    EXPECT_NEAR(value_of(floor, "wire of 40 CTAs"), 100, 1e-6);
    EXPECT_NEAR(rate_at(floor, 1e6), 100, 1e-6);
  });
}

TEST(CudaFloorTest, ABudgetHasTheWireOfItsCtas) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1);
    const FloorModel floor = measure_cuda_floor(group, meter, 6);
    EXPECT_NEAR(value_of(floor, "wire of 12 CTAs"), 120, 1e-6);
    EXPECT_EQ(value_of(floor, "wire of 8 CTAs"), -1);
    EXPECT_NEAR(rate_at(floor, 1e6), 120, 1e-6);
  });
}

TEST(CudaFloorTest, OneRankHasNoWire) {
  test::run_ranks(1, [](const Group& group) {
    KnownMeter meter(1);
    const FloorModel floor = measure_cuda_floor(group, meter, 0);
    EXPECT_EQ(value_of(floor, "hop"), 0);
    EXPECT_NEAR(rate_at(floor, 1e6), 3000, 1e-6);
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
