// SPDX-License-Identifier: Apache-2.0
//
// cpu_target.h: measures the engines whose ranks are threads or processes of this machine.
#pragma once

#include <memory>

#include "switchyard/group.h"

#include "measure/bench_target.h"

namespace switchyard::measure {

/// Times blocking calls, from a barrier to their return. The floor: the bytes that must be written,
/// at the rate of a memcpy by all ranks at once, plus the time for one rank to wake another.
std::unique_ptr<BenchTarget> make_cpu_target(const Group& group);

/// Collective. Measures the floor alone.
FloorModel measure_cpu_floor(const Group& group);

/// Collective. Measures Operation::kLayer: one prepare/finalize class and exact experts with random
/// bf16 weights. The oracle checks a few tokens per rank.
ShapeResult measure_cpu_layer(const Group& group, const BenchShape& shape,
                              const std::function<void()>& tick);

/// Returns the approximate bytes that measuring `shape` touches, over all ranks.
std::int64_t cpu_bytes_needed(const BenchShape& shape);

/// Warm-up calls. Iteration numbers of the check and the warm-ups follow those of timed calls.
inline constexpr std::int64_t kNumWarmUps = 3;

/// Runs warm-ups, timed iterations, then the checked one. Iteration numbers of warm-ups follow that
/// of the checked iteration.
template <typename Run>
ShapeResult measure_calls(Run& run, const BenchShape& shape, const std::function<void()>& tick) {
  ShapeResult result;
  result.method = "calls";
  for (std::int64_t i = 1; i <= kNumWarmUps; ++i) run.time(shape.num_runs + i);
  for (std::int64_t i = 0; i < shape.num_runs; ++i) {
    result.us.push_back(run.time(i));
    tick();
  }
  result.host_bytes = run.host_bytes().per_iteration();
  result.num_wrong = run.count_wrong(shape.num_runs);
  return result;
}

}  // namespace switchyard::measure
