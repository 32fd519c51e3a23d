// SPDX-License-Identifier: Apache-2.0
//
// bench_target.h: the interface that a processor implements to be measured. A target belongs to one
// rank of a group; every rank makes one and calls its members in the same order. The caller decides
// what to measure and computes the traffic, the fractions of the floor, the tables and the charts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/exchange_types.h"

#include "measure/bench_shape.h"
#include "measure/floor.h"
#include "measure/stages.h"

namespace switchyard::measure {

/// One rank's part of a measured shape.
struct ShapeResult {
  /// Times of this rank in order, shape.num_runs of them. On a CPU one value per iteration, and
  /// iteration i has the routing of BenchBatch::make(i); GPUs rotate through a few inputs, and a
  /// replayed graph gives one value, the mean of its iterations. The caller takes the slowest rank
  /// of each value.
  std::vector<double> us;
  std::string method;          ///< "calls", "graph" or "events", and what was subtracted
  std::int64_t num_wrong = 0;  ///< by BenchOracle, in an iteration that is not timed
  /// Counted as it was sent to ranks of other hosts, per timed iteration.
  std::int64_t host_bytes = 0;
  /// GPUs of several hosts: the same in one dispatch and in one combine.
  std::optional<WireBytes> host_bytes_per_call;
  /// Times of NCCL's messages of those bytes alone, measured the same way.
  std::vector<double> host_us;
  // Times of calls one by one (measure/calls_apart.h), where the shape asks for them: a value per
  // run, the mean of its iterations, the same on every rank.
  std::vector<double> apart_us;    ///< with nothing between calls
  std::vector<double> cold_us;     ///< with other code and traffic between them
  std::vector<double> skewed_us;   ///< with ranks that are late, from when the last one is there
  std::vector<StageTimes> stages;  ///< of this rank, where the shape asks for them
  /// Times of a baseline that runs on the same ranks, measured the same way; empty: there is none.
  std::vector<double> baseline_us;
};

class BenchTarget {
 public:
  BenchTarget() = default;
  BenchTarget(const BenchTarget&) = delete;
  BenchTarget& operator=(const BenchTarget&) = delete;
  virtual ~BenchTarget() = default;

  /// Names and values for the report, listed before processor and system, such as {"gpu", "8x
  /// NVIDIA H200"}, driver and NCCL; the first identifies the machine. May be empty.
  virtual std::vector<std::pair<std::string, std::string>> machine() const = 0;

  /// Whether ShapeResult::stages can be measured in this build.
  virtual bool has_stages() const { return false; }

  /// Collective. Measures the floor's constants for a budget of `num_sms`; 0: no budget. The
  /// slowest rank counts, so every rank returns the same model.
  virtual FloorModel measure_floor(int num_sms) = 0;

  /// Returns why this shape cannot be measured here, for example for lack of memory; empty: it can.
  /// The answer may differ between ranks: a shape is left out when any rank gives a reason.
  virtual std::string why_left_out(const BenchShape& shape) = 0;

  /// Collective. Warms up, measures and checks. Outputs are poisoned before each run, and all ranks
  /// start each run together. `baseline` is "" or the baseline that the user requested from this
  /// target. The target calls `tick` after each run, outside the timed section.
  virtual ShapeResult measure(const BenchShape& shape, const std::string& baseline,
                              const std::function<void()>& tick) = 0;
};

}  // namespace switchyard::measure
