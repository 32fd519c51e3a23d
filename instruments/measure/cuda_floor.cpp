// SPDX-License-Identifier: Apache-2.0

#include "measure/cuda_floor.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "engine/control.h"
#include "measure/gather.h"
#include "measure/statistics.h"
#include "plan/host_map.h"

namespace switchyard::measure {
namespace {

constexpr int kNumGpuSamples = 7;
constexpr int kNumWireSamples = 5;
constexpr int kNumSwaps = 200;
constexpr int kNumSlowSwaps = 10;  // between processes on one GPU a swap takes milliseconds
constexpr int kFewLaunches = 20;
constexpr int kManyLaunches = 220;
constexpr int kBusyCycles = 4000;
constexpr int kNumRows = 512;
constexpr std::size_t kTouchedBytes = std::size_t{8} << 20;  // stays in any L2 cache
constexpr std::size_t kCopiedBytes = std::size_t{128} << 20;
// Long enough that the launch and the end of a kernel are below 1 % of its time.
constexpr std::size_t kCarriedBytes = 6 * DeviceMeter::kWireBytes;
constexpr std::array kWays{WireCopy::kStores, WireCopy::kBulkCopies, WireCopy::kLoads};
constexpr std::array kGrids{4, 8, 16, 24, 32, 64};  // then one and two CTAs per SM

double median_us(const Group& group, DeviceMeter& meter, const DeviceWork& work,
                 int num_samples = kNumGpuSamples) {
  std::vector<double> us;
  for (int i = 0; i < num_samples; ++i) us.push_back(meter.time_us(work));
  return median(max_over_ranks(group, us));
}

bool is_everywhere(const Group& group, bool is_here) {
  return sum_of(group, is_here ? 1 : 0) == group.size();
}

int largest_host(const Group& group) {
  return static_cast<int>(HostMap(group.control().hosts()).max_host_size());
}

double row_hop_us(const Group& group, DeviceMeter& meter) {
  if (largest_host(group) == 1) return 0;
  const int num_swaps = meter.num_gpus() < group.size() ? kNumSlowSwaps : kNumSwaps;
  const DeviceWork swap = [&](Stream stream) { meter.swap_rows(num_swaps, stream); };
  meter.run(swap);
  return median_us(group, meter, swap) / num_swaps;
}

// What a kernel of `num_cycles` adds to a graph.
double kernel_us(const Group& group, DeviceMeter& meter, int num_cycles, bool programmatic) {
  const auto graph_us = [&](int count) {
    const DeviceWork chain = [&meter, num_cycles, programmatic, count](Stream stream) {
      for (int i = 0; i < count; ++i) meter.launch_busy(num_cycles, programmatic, stream);
    };
    meter.run(chain);
    const DeviceWork graph = meter.capture(chain);
    meter.run(graph);
    return median_us(group, meter, graph);
  };
  const double few_us = graph_us(kFewLaunches);
  return std::max(0.0, graph_us(kManyLaunches) - few_us) / (kManyLaunches - kFewLaunches);
}

// The gap between a kernel of a graph and the next one, which hides what the GPU does for a launch
// while the kernel ahead is busy. The times of two kernels differ by kBusyCycles.
double launch_us(const Group& group, DeviceMeter& meter, bool programmatic) {
  const double once_us = kernel_us(group, meter, kBusyCycles, programmatic);
  const double twice_us = kernel_us(group, meter, 2 * kBusyCycles, programmatic);
  return std::max(0.0, 2 * once_us - twice_us);
}

std::vector<int> grids_of(const DeviceMeter& meter, int num_sms) {
  const int all = meter.num_sms();
  const int most = num_sms == 0 ? 2 * all : std::min(num_sms, all);
  std::vector<int> grids;
  for (const int grid : kGrids) {
    if (grid < std::min(most, all)) grids.push_back(grid);
  }
  if (num_sms == 0) grids.push_back(all);
  grids.push_back(most);
  return grids;
}

}  // namespace

const char* name_of(WireCopy how) noexcept {
  switch (how) {
    case WireCopy::kStores: return "16-byte stores";
    case WireCopy::kBulkCopies: return "bulk copies";
    default: return "16-byte loads";
  }
}

CudaFloor::CudaFloor(const Group& group, DeviceMeter& meter)
    : group_(group), host_size_(largest_host(group)), meter_(meter) {
  start_.bytes = FloorBytes::kWire;
  const auto add = [&](const std::string& name, double value, const char* unit) {
    start_.constants.push_back({name, value, unit});
    return value;
  };
  const double row_hop = add("row hop", row_hop_us(group, meter), "us");
  const double launch = add("launch", launch_us(group, meter, false), "us");
  has_bulk_copies_ = is_everywhere(group, meter.compute_major() >= 9);
  if (has_bulk_copies_) {
    const double after = add("programmatic launch", launch_us(group, meter, true), "us");
    start_.saved_us = std::max(0.0, launch - after);
  }
  const DeviceMemory memory = meter.queue().allocate(2 * kCopiedBytes);
  meter.queue().fill(memory.get(), 0, 2 * kCopiedBytes);
  const DeviceWork touch = [&](Stream stream) {
    meter.touch_rows(memory.get(), kTouchedBytes, kNumRows, stream);
  };
  meter.run(touch);
  const double row = add("row", median_us(group, meter, touch) / kNumRows, "us");
  start_.start_us = row_hop + launch + row;
  const double copy_us = median_us(group, meter, [&](Stream stream) {
    meter.queue().copy_async(memory.get() + kCopiedBytes, memory.get(), kCopiedBytes, stream);
  });
  copy_rate_ = add("copy", 2e-3 * static_cast<double>(kCopiedBytes) / copy_us, "GB/s");
}

// GB/s per rank, excluding its own memory.
double CudaFloor::wire_rate(WireCopy how, int num_ctas) {
  const auto [found, is_new] = rates_.try_emplace({how, num_ctas}, 0);
  if (!is_new) return found->second;
  const std::size_t bytes_once = static_cast<std::size_t>(host_size_ - 1) * DeviceMeter::kWireBytes;
  const auto num_times = static_cast<int>(std::max<std::size_t>(1, kCarriedBytes / bytes_once));
  const DeviceWork carry = [&](Stream stream) { meter_.carry(how, num_times, num_ctas, stream); };
  meter_.run(carry);
  const double us = median_us(group_, meter_, carry, kNumWireSamples);
  return found->second = static_cast<double>(bytes_once) * num_times * 1e-3 / us;
}

FloorModel CudaFloor::of(int num_sms) {
  FloorModel floor = start_;
  double rate = copy_rate_;
  if (host_size_ > 1) {
    for (const WireCopy how : kWays) {
      if (how == WireCopy::kBulkCopies && !has_bulk_copies_) continue;
      for (const int num_ctas : grids_of(meter_, num_sms)) {
        floor.wire.push_back({name_of(how), num_ctas, wire_rate(how, num_ctas)});
      }
    }
    rate = best_of(floor.wire)->gb_per_second;
  }
  if (num_sms > 0 && host_size_ > 1) {
    const int num_ctas = grids_of(meter_, num_sms).back();
    floor.constants.push_back({fmt::format("stores of {} SMs", num_ctas),
                               wire_rate(WireCopy::kStores, num_ctas), "GB/s"});
  }
  floor.rate.push_back({static_cast<double>(DeviceMeter::kWireBytes), rate});
  return floor;
}

}  // namespace switchyard::measure
