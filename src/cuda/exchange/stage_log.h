// SPDX-License-Identifier: Apache-2.0
//
// stage_log.h: the host's side of stages.h. A launch that is captured in a graph keeps its record:
// every replay writes there again, so take() belongs between two replays.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <vector>

#include "cuda/base/memory.h"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/stages.h"

namespace switchyard::cuda {

/// Memory of the current GPU for the records of the last kMaxLaunches launches.
class StageLog {
 public:
  static constexpr std::size_t kMaxLaunches = 512;

  explicit StageLog(int max_ctas);

  /// Where the next launch writes. `kernel` has its CTAs without times.
  StageRecord next(KernelStages kernel);

  /// Returns the launches that ran since the last call, by the time at which they began. All work
  /// must have ended.
  std::vector<KernelStages> take();

 private:
  std::size_t record_words() const { return max_ctas_ * kNumStages; }

  std::size_t max_ctas_;
  std::vector<KernelStages> launches_;
  std::size_t num_launches_ = 0;
  DeviceBuffer memory_;
};

/// The log of launches by the calling thread; null: they leave no records.
void set_stage_log(StageLog* log);

// Lets a launch record its stages, where the build can and the thread has a log.
void record_stages(DispatchArgs& args, Phases phases);
void record_stages(CombineArgs& args, Phases phases);

}  // namespace switchyard::cuda
