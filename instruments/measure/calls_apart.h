// SPDX-License-Identifier: Apache-2.0
//
// calls_apart.h: times of calls one by one, each begun on all ranks at once and measured on the
// GPU's clock: what lies between calls is not part of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "switchyard/group.h"

#include "device/device_meter.h"

namespace switchyard::measure {

/// What ranks do before each call.
enum class Before : std::uint8_t {
  kNothing,
  kOtherCode,  ///< DeviceMeter::run_other_code
  kBeLate,     ///< each rank is late by a random time of up to kMaxLateNs
};
inline constexpr std::int64_t kMaxLateNs = 50'000;

/// The lateness of a rank at a call, from 0 to kMaxLateNs, the same for the same seed.
std::int64_t late_ns(std::uint64_t seed, int rank, int call);

/// Wraps calls of one rank while they are enqueued. Numbers count up from 0.
class CallsApart {
 public:
  CallsApart(const Group& group, DeviceMeter& meter, Before before, std::uint64_t seed)
      : group_(group), meter_(meter), before_(before), seed_(seed) {}

  /// Enqueues what comes before, `call` between its two marks.
  void enqueue(Stream stream, const std::function<void()>& call);
  /// The next call is number 0 again.
  void restart() { num_calls_ = 0; }
  int num_calls() const { return num_calls_; }

  /// Collective, after the calls have ended: of each, microseconds from the beginning of the last
  /// rank to the end of the last rank.
  std::vector<double> times() const;

 private:
  Group group_;
  DeviceMeter& meter_;
  Before before_;
  std::uint64_t seed_;
  int num_calls_ = 0;
};

}  // namespace switchyard::measure
