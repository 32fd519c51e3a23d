// SPDX-License-Identifier: Apache-2.0
//
// known_meter.h: a meter whose times are known. Needs no GPU.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "device/device_meter.h"

namespace switchyard::measure {

inline const Stream kStream = Stream::default_of(Device::cuda(0));  // nothing is queued in it

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
  explicit KnownMeter(double slowness, int compute_major = 9, int num_gpus = 1)
      : slowness_(slowness), compute_major_(compute_major), num_gpus_(num_gpus) {}

  const char* heap() const override { return "none"; }
  int ranks_on_gpu() const override { return 1; }
  int num_gpus() const override { return num_gpus_; }
  int num_ctas(int num_sms) const override { return num_sms == 0 ? 80 : 2 * num_sms; }
  int num_sms() const override { return 40; }
  int compute_major() const override { return compute_major_; }
  DeviceQueue& queue() override { return queue_; }
  void run(const DeviceWork& work) override { work(kStream); }
  DeviceWork capture(const DeviceWork& work) override { return work; }
  double time_us(const DeviceWork& work, RunStart start) override {
    start_ = start;
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
  // Calls take what advance() says.
  void begin_call(int call, std::int64_t late_ns, Stream) override {
    calls_.resize(static_cast<std::size_t>(call) + 1);
    calls_.back().late_us = 1e-3 * static_cast<double>(late_ns);
    began_us_ = us_;
  }
  void end_call(int, Stream) override { calls_.back().us = (us_ - began_us_) * slowness_; }
  std::vector<CallTime> call_times(int num_calls) override {
    return {calls_.begin(), calls_.begin() + num_calls};
  }
  void run_other_code(Stream) override { ++num_other_codes_; }
  void advance(double us) { us_ += us; }
  int num_other_codes() const { return num_other_codes_; }
  bool has_stages() const override { return false; }
  void record_stages(bool) override {}
  std::vector<cuda::KernelStages> take_stages() override { return {}; }
  // 1 us per byte, and 10 more for a combine that sends any.
  DeviceWork host_messages(const WireBytes& sent) override {
    return [this, sent](Stream) {
      us_ += static_cast<double>(sent.dispatch + sent.combine + (sent.combine > 0 ? 10 : 0));
    };
  }
  RunStart start() const { return start_; }
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
  int num_gpus_;
  RunStart start_ = RunStart::kHeld;
  int num_carries_ = 0;
  int num_other_codes_ = 0;
  double began_us_ = 0;
  std::vector<CallTime> calls_;
  double us_ = 0;
  KnownQueue queue_{us_};
};

}  // namespace switchyard::measure
