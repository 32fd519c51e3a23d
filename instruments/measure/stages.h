// SPDX-License-Identifier: Apache-2.0
//
// stages.h: where the time of an exchange goes: of its kernels, from the stamps of their CTAs; on
// CPUs, of its phases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/exchange/stages.h"

namespace switchyard::measure {

/// When CTAs of a role reached a stage, in microseconds after the first CTA of their kernel began;
/// over all CTAs that reached it and all calls. On CPUs: how long a rank was at it, over all calls.
struct StageTimes {
  std::string kernel;  ///< "dispatch" or "combine"
  std::string role;    ///< "notify", "send", "receive" or "all work"; "-" for the gap; CPUs: "rank"
  /// As in docs/bench.md. "gap": from the last end of the kernel ahead to the first start.
  std::string stage;
  double min_us = 0;
  double median_us = 0;
  double max_us = 0;
  std::int64_t count = 0;
  double floor_us = 0;  ///< CPUs: of a copy of the bytes that it must write; 0: it writes none
};

/// Each run is what DeviceMeter::take_stages returned. Rows are ordered by kernel, role and stage;
/// what no CTA reached has none.
std::vector<StageTimes> stage_times(const std::vector<std::vector<cuda::KernelStages>>& runs);

}  // namespace switchyard::measure
