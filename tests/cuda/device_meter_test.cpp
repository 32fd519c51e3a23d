// SPDX-License-Identifier: Apache-2.0
//
// The meter on real GPUs: memory, graphs, the common start, the kernels of the floor, NCCL. Ranks
// are threads; with fewer GPUs than ranks some share a GPU.

#include "device/device_meter.h"

#include <numeric>

#include <gtest/gtest.h>

#include "device/cuda_module.h"
#include "gpu.h"
#include "measure/cuda_floor.h"
#include "support/ranks.h"

namespace switchyard::test {
namespace {

int num_ranks() { return std::max(2, std::min(num_gpus(), 8)); }

TEST(DeviceMeterTest, CopiesAndGraphsDoWhatTheySay) {
  REQUIRE_GPU();
  run_ranks(num_ranks(), [](const Group& group) {
    const auto meter = cuda_module().make_meter(group);
    constexpr std::size_t kCount = 1000;
    std::vector<std::uint32_t> in(kCount);
    std::iota(in.begin(), in.end(), 17u);
    const DeviceMemory a = meter->queue().allocate(kCount * 4);
    const DeviceMemory b = meter->queue().allocate(kCount * 4);
    meter->queue().copy(a.get(), in.data(), kCount * 4);
    meter->queue().fill(b.get(), 0xFF, kCount * 4);
    const DeviceWork graph = meter->capture(
        [&](Stream stream) { meter->queue().copy_async(b.get(), a.get(), kCount * 2, stream); });
    EXPECT_GT(meter->time_us(graph), 0);
    std::vector<std::uint32_t> out(kCount);
    meter->queue().copy(out.data(), b.get(), kCount * 4);
    EXPECT_EQ(out[0], 17u);
    EXPECT_EQ(out[kCount / 2 - 1], in[kCount / 2 - 1]);
    EXPECT_EQ(out[kCount / 2], 0xFFFFFFFFu);
  });
}

TEST(DeviceMeterTest, MoreWorkTakesLonger) {
  REQUIRE_GPU();
  run_ranks(num_ranks(), [](const Group& group) {
    const auto meter = cuda_module().make_meter(group);
    constexpr std::size_t kBytes = std::size_t{16} << 20;
    const DeviceMemory memory = meter->queue().allocate(kBytes);
    meter->queue().fill(memory.get(), 0, kBytes);
    const auto touch = [&](int rows) {
      const DeviceWork work = [&meter, &memory, rows](Stream stream) {
        meter->touch_rows(memory.get(), kBytes, rows, stream);
      };
      meter->run(work);
      return meter->time_us(work);
    };
    const double few = touch(100);
    const double many = touch(10000);
    EXPECT_GT(many, 10 * few);
  });
}

TEST(DeviceMeterTest, FloorHasPositiveConstantsAlikeOnAllRanks) {
  REQUIRE_GPU();
  std::vector<double> starts(static_cast<std::size_t>(num_ranks()));
  run_ranks(num_ranks(), [&](const Group& group) {
    const auto meter = cuda_module().make_meter(group);
    measure::CudaFloor all(group, *meter);
    const measure::FloorModel floor = all.of(0);
    for (const measure::WireRate& one : floor.wire) EXPECT_GT(one.gb_per_second, 0) << one.by;
    for (const measure::Constant& constant : floor.constants) {
      EXPECT_GT(constant.value, 0) << constant.name;
    }
    starts[static_cast<std::size_t>(group.rank())] = floor.start_us;
  });
  for (const double start : starts) EXPECT_EQ(start, starts[0]);
}

TEST(DeviceMeterTest, NcclExchangesInAGraphOrSaysWhyNot) {
  REQUIRE_GPU();
  run_ranks(num_ranks(), [](const Group& group) {
    const auto meter = cuda_module().make_meter(group);
    const std::string why = meter->join_nccl();
    if (!why.empty()) {
      if (group.rank() == 0) GTEST_LOG_(INFO) << why;
      return;
    }
    std::vector<std::int64_t> bytes(static_cast<std::size_t>(group.size()), 4096);
    bytes[static_cast<std::size_t>(group.rank())] = 0;
    const DeviceWork exchange = meter->nccl_all_to_all(bytes, bytes);
    meter->run(exchange);
    EXPECT_GT(meter->time_us(meter->capture(exchange)), 0);
  });
}

}  // namespace
}  // namespace switchyard::test
