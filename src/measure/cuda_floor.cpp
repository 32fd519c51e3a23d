// SPDX-License-Identifier: Apache-2.0
//
// The constants of GPUs that reach each other's memory. Hop: a word travels to a peer and back;
// half of the round trip. Launch: empty kernels, one after another in a graph. Row: one CTA reads
// and writes row after row. Copy: the bandwidth of the GPU's own memory, reads plus writes. Wire:
// CTAs store 16-byte words to all peers at once. Each is the median over samples of the slowest
// rank.

#include <algorithm>

#include <fmt/format.h>

#include "measure/cuda_target.h"
#include "measure/gather.h"
#include "measure/statistics.h"

namespace switchyard::measure {
namespace {

constexpr int kNumSamples = 7;
constexpr int kNumTrips = 200;
constexpr int kNumLaunches = 100;
constexpr int kNumRows = 512;
constexpr int kPushTimes = 8;
constexpr std::size_t kCopiedBytes = std::size_t{128} << 20;

double median_us(const Group& group, DeviceMeter& meter, const DeviceWork& work) {
  std::vector<double> us;
  for (int i = 0; i < kNumSamples; ++i) us.push_back(meter.time_us(work));
  return median(slowest_of(group, us));
}

double hop_us(const Group& group, DeviceMeter& meter) {
  if (group.size() == 1) return 0;
  const DeviceWork ping = [&](Stream stream) { meter.ping(kNumTrips, stream); };
  meter.run(ping);
  return median_us(group, meter, ping) / (2 * kNumTrips);
}

double launch_us(const Group& group, DeviceMeter& meter) {
  const DeviceWork many = [&](Stream stream) {
    for (int i = 0; i < kNumLaunches; ++i) meter.launch_nothing(stream);
  };
  meter.run(many);
  return median_us(group, meter, meter.capture(many)) / kNumLaunches;
}

// GB/s per rank, excluding its own memory.
double wire_rate(const Group& group, DeviceMeter& meter, int num_ctas) {
  const DeviceWork push = [&](Stream stream) {
    meter.push(DeviceMeter::kMaxPushBytes, kPushTimes, num_ctas, stream);
  };
  meter.run(push);
  const double bytes = static_cast<double>(DeviceMeter::kMaxPushBytes) * kPushTimes;
  return bytes * 1e-3 / median_us(group, meter, push);
}

std::vector<int> cta_counts(const DeviceMeter& meter, int num_sms) {
  const int all = meter.num_ctas(num_sms);
  std::vector<int> counts;
  for (int count = 8; num_sms == 0 && count < all; count *= 2) counts.push_back(count);
  counts.push_back(all);
  return counts;
}

}  // namespace

FloorModel measure_cuda_floor(const Group& group, DeviceMeter& meter, int num_sms) {
  FloorModel floor;
  floor.bytes = FloorBytes::kWire;
  const auto add = [&](const std::string& name, double value, const char* unit) {
    floor.constants.push_back({name, value, unit});
    return value;
  };
  floor.start_us += add("hop", hop_us(group, meter), "us");
  floor.start_us += add("launch", launch_us(group, meter), "us");

  const DeviceMemory memory = meter.queue().allocate(2 * kCopiedBytes);
  meter.queue().fill(memory.get(), 0, 2 * kCopiedBytes);
  const DeviceWork touch = [&](Stream stream) {
    meter.touch_rows(memory.get(), 2 * kCopiedBytes, kNumRows, stream);
  };
  meter.run(touch);
  floor.start_us += add("row", median_us(group, meter, touch) / kNumRows, "us");
  const double copy_us = median_us(group, meter, [&](Stream stream) {
    meter.queue().copy_async(memory.get() + kCopiedBytes, memory.get(), kCopiedBytes, stream);
  });
  double rate = add("copy", 2e-3 * static_cast<double>(kCopiedBytes) / copy_us, "GB/s");
  if (group.size() > 1) {
    rate = 0;
    for (const int count : cta_counts(meter, num_sms)) {
      rate = std::max(
          rate, add(fmt::format("wire of {} CTAs", count), wire_rate(group, meter, count), "GB/s"));
    }
  }
  floor.rate.push_back({static_cast<double>(DeviceMeter::kMaxPushBytes), rate});
  return floor;
}

}  // namespace switchyard::measure
