// SPDX-License-Identifier: Apache-2.0
//
// cuda_floor.h: the shortest time that GPUs allow which reach each other's memory: the bytes, at
// the rate of the fastest way to carry bytes to all peers at once, after a start time: a launch, a
// row's way to a peer, and one read and write of a row in own memory. With several hosts all of
// this is inside each of them, at the same time.
#pragma once

#include <map>
#include <utility>

#include "switchyard/group.h"

#include "device/device_meter.h"
#include "measure/floor.h"

namespace switchyard::measure {

const char* name_of(WireCopy how) noexcept;

/// Constants are measured once, the wire once for each way and number of CTAs; a time is the median
/// over samples of the slowest rank.
class CudaFloor {
 public:
  /// Collective, like all members. `meter` must outlive the object.
  CudaFloor(const Group& group, DeviceMeter& meter);

  /// With a budget of `num_sms`, which may be 0, only grids of at most as many CTAs are tried, and
  /// one of exactly as many.
  FloorModel of(int num_sms);

 private:
  double wire_rate(WireCopy how, int num_ctas);

  Group group_;
  int host_size_;  ///< of the largest host
  DeviceMeter& meter_;
  FloorModel start_;  ///< without a rate
  double copy_rate_ = 0;
  bool has_bulk_copies_ = false;
  std::map<std::pair<WireCopy, int>, double> rates_;
};

}  // namespace switchyard::measure
