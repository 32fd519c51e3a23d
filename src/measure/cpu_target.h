// SPDX-License-Identifier: Apache-2.0
//
// cpu_target.h: measures the engines whose ranks are threads or processes of this machine.
#pragma once

#include <memory>

#include "switchyard/group.h"

#include "measure/bench_target.h"

namespace switchyard::measure {

/// Times are of blocking calls, from a barrier to their return. Its floor: what must be written at
/// the rate of memcpy of all ranks at once, and the time in which one rank wakes another.
std::unique_ptr<BenchTarget> make_cpu_target(const Group& group);

/// Collective. The floor by itself.
FloorModel measure_cpu_floor(const Group& group);

/// Collective. Operation kLayer: one prepare/finalize class and exact experts with random bf16
/// weights. The oracle looks at a few tokens of each rank.
ShapeResult measure_cpu_layer(const Group& group, const BenchShape& shape,
                              const std::function<void()>& tick);

/// Bytes of all ranks that measuring `shape` makes real, about.
std::int64_t cpu_bytes_needed(const BenchShape& shape);

/// Timed calls and others: iteration numbers of warm-ups and of the check follow the timed ones.
inline constexpr std::int64_t kNumWarmUps = 3;

/// Warm-ups, timed runs, then the run that is checked. Warm-ups come after the checked iteration.
template <typename Run>
ShapeResult measure_calls(Run& run, const BenchShape& shape, const std::function<void()>& tick) {
  ShapeResult result;
  result.method = "calls";
  for (std::int64_t i = 1; i <= kNumWarmUps; ++i) run.time(shape.num_runs + i);
  for (std::int64_t i = 0; i < shape.num_runs; ++i) {
    result.us.push_back(run.time(i));
    tick();
  }
  result.num_wrong = run.count_wrong(shape.num_runs);
  return result;
}

}  // namespace switchyard::measure
