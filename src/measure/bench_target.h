// SPDX-License-Identifier: Apache-2.0
//
// bench_target.h: the one thing that a processor must offer to be measured. A target belongs to one
// rank of a group; every rank makes one and calls its members in the same order. What to measure,
// the traffic, fractions of the floor, tables and charts are the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "measure/bench_shape.h"
#include "measure/floor.h"

namespace switchyard::measure {

/// One rank's part of a measured shape.
struct ShapeResult {
  /// Of this rank, one an iteration, shape.num_runs of them, in order: iteration i has the routing
  /// of BenchBatch::make(i). The caller takes the slowest rank of each. A replayed graph is many
  /// iterations: one value, their mean.
  std::vector<double> us;
  std::string method;          ///< "calls", "graph" or "events", and what was subtracted
  std::int64_t num_wrong = 0;  ///< by BenchOracle, in an iteration that is not timed
  /// A baseline that runs on the same ranks, timed likewise; empty: there is none.
  std::vector<double> baseline_us;
};

class BenchTarget {
 public:
  BenchTarget() = default;
  BenchTarget(const BenchTarget&) = delete;
  BenchTarget& operator=(const BenchTarget&) = delete;
  virtual ~BenchTarget() = default;

  /// For the report, before processor and system: names and values, such as {"gpu", "8x NVIDIA
  /// H200"}, driver and NCCL; the first names the machine. May be empty.
  virtual std::vector<std::pair<std::string, std::string>> machine() const = 0;

  /// Collective. Measures the floor's constants for a budget of `num_sms`; 0: none. The slowest
  /// rank counts: the same model on every rank.
  virtual FloorModel measure_floor(int num_sms) = 0;

  /// Why this shape cannot be measured here, for example its memory; empty: it can. May differ
  /// between ranks: a shape is left out when any rank says so.
  virtual std::string why_left_out(const BenchShape& shape) = 0;

  /// Collective. Warms up, measures and checks. Outputs are poisoned before each iteration, and
  /// ranks start each together. `baseline`: "", or the one that the user asks of this target.
  /// `tick` is to be called after each iteration, outside of what is timed.
  virtual ShapeResult measure(const BenchShape& shape, const std::string& baseline,
                              const std::function<void()>& tick) = 0;
};

}  // namespace switchyard::measure
