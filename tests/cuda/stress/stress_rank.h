// SPDX-License-Identifier: Apache-2.0
//
// stress_rank.h: one rank of one case. All memory, streams and graphs exist before the first
// kernel: the runtime may wait for running kernels, which may wait for a rank on the same GPU.
#pragma once

#include <memory>
#include <vector>

#include "cuda/base/memory.h"
#include "cuda/cuda_graph.h"
#include "stress_case.h"
#include "stress_kernels.h"
#include "stress_lane.h"

namespace switchyard::test {

struct StressOptions {
  bool by_turns = false;  ///< each kernel is launched only after those it needs have ended
  bool injects = false;   ///< spoils bytes, which the test must find
  std::int64_t timeout_ms = 30'000;  ///< of kernels
  int max_delay_us = 50;             ///< longest delay of a rank at each StressPause; 0: none
};

class StressRank {
 public:
  /// Collective, like all members.
  StressRank(const Group& group, const StressCase& c, const StressOptions& options);
  StressRank(const StressRank&) = delete;
  StressRank& operator=(const StressRank&) = delete;
  ~StressRank();

  /// Number of steps per round.
  std::int64_t steps_per_round() const;
  /// So many rounds, then waits. Errors: of Exchange::check.
  void run(int num_rounds);
  /// Returns what was found so far.
  StressTally tally() const;
  const Exchange& exchange() const { return *exchange_; }

 private:
  void begin(StressLane& lane, std::uint32_t offset, std::uint32_t slot);
  void end(StressLane& lane);
  void dispatch(StressLane& lane);
  void combine(StressLane& lane, const DispatchHandle& handle, bool returns_weights);
  void sweep(const StressLane& lane);
  void turn(const StressLane& lane);
  void pause_host(std::uint32_t step) const;
  bool splits() const;
  Stream stream_of(const StressLane& lane) const;
  void enqueue_lanes(std::uint32_t offset, std::uint32_t slot);
  void capture();
  StressLaunch launch_on(const StressLane& lane) const;

  Group group_;
  StressCase case_;
  StressOptions options_;
  Device device_;     ///< the GPU that was current at construction
  int num_ctas_ = 2;  ///< of the kernels of this test
  cuda::DeviceBuffer tally_;
  cuda::DeviceBuffer base_;
  cuda::DeviceBuffer swept_;
  cuda::DeviceBuffer tensor_scale_;
  std::vector<std::unique_ptr<StressLane>> lanes_;
  std::vector<CudaGraph> graphs_;
  std::size_t next_graph_ = 0;
  std::uint32_t next_step_ = 0;
  std::unique_ptr<Exchange> exchange_;  // ends first: then all kernels have ended
};

}  // namespace switchyard::test
