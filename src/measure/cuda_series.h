// SPDX-License-Identifier: Apache-2.0
//
// cuda_series.h: how anything is timed on GPUs: so many calls in a row, as launches or as a graph,
// on inputs that take turns.
#pragma once

#include <functional>
#include <vector>

#include "switchyard/exchange.h"

#include "device/device_meter.h"
#include "measure/bench_batch.h"

namespace switchyard::measure {

inline constexpr std::size_t kNumInputs = 8;  ///< that calls take by turns

/// A batch of one rank in device memory.
struct DeviceInput {
  DeviceMemory tokens;
  DeviceMemory topk_ids;
  DeviceMemory topk_weights;
};

DeviceMemory copy_of(const TensorView& host, DeviceQueue& queue);

/// Batch `iteration`; `batch` goes there.
DeviceInput upload(BenchBatch& batch, std::int64_t iteration, DeviceQueue& queue);

/// As the shape asks for.
ExchangeOptions exchange_options(const DeviceMeter& meter, const BenchShape& shape);

/// Iterations that one run makes: a graph has several.
int iterations_per_run(const BenchShape& shape);

/// Collective. Microseconds of an iteration, for each of shape.num_runs. `work`: as many iterations
/// as a run makes. `before` comes before each run, `after` behind it, `check` throws what kernels
/// found.
std::vector<double> time_series(DeviceMeter& meter, const BenchShape& shape, DeviceWork work,
                                const std::function<void()>& before,
                                const std::function<void()>& check,
                                const std::function<void()>& after);

}  // namespace switchyard::measure
