// SPDX-License-Identifier: Apache-2.0
//
// cuda_series.h: how everything is timed on GPUs: several calls in a row, launched or as a graph,
// on rotating inputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "device/device_meter.h"
#include "measure/bench_batch.h"
#include "measure/bench_target.h"

namespace switchyard::measure {

inline constexpr std::size_t kNumInputs = 8;  ///< calls rotate through these

/// One rank's batch in device memory.
struct DeviceInput {
  DeviceMemory tokens;
  DeviceMemory scales;  ///< of codes; null: tokens are bf16 or have none of their own
  DeviceMemory topk_ids;
  DeviceMemory topk_weights;
};

DeviceMemory copy_of(const TensorView& host, DeviceQueue& queue);

/// Moves `batch` to `iteration` and copies it to the device.
DeviceInput upload(BenchBatch& batch, std::int64_t iteration, DeviceQueue& queue);

/// As the shape asks for.
ExchangeOptions exchange_options(DeviceMeter& meter, const BenchShape& shape);

/// Held, unless the host waits for the GPU in calls that are not of a graph: over several hosts for
/// the sizes of messages, or because ranks share a GPU.
RunStart run_start(DeviceMeter& meter, const BenchShape& shape);
/// "graph", "events", or "launched" for a start that is not held.
std::string method_of(DeviceMeter& meter, const BenchShape& shape);

/// Returns the iterations per run: a graph has several.
int iterations_per_run(const BenchShape& shape);

/// Dispatches, and as many combines.
int calls_per_run(const BenchShape& shape);

/// Collective. Returns microseconds per iteration for each of shape.num_runs runs. `work` performs
/// all iterations of a run. `before` precedes each run, `after` follows each timed one, and `check`
/// throws the errors that kernels found.
std::vector<double> time_series(DeviceMeter& meter, const BenchShape& shape, DeviceWork work,
                                const std::function<void()>& before,
                                const std::function<void()>& check,
                                const std::function<void()>& after);

/// Collective, with ranks on several hosts: fills in what crossed between them, and the times of
/// NCCL's messages of as many bytes alone. `per_call` is what a dispatch and a combine of this rank
/// sent; of them counts what the shape times.
void measure_host_messages(DeviceMeter& meter, const BenchShape& shape, WireBytes per_call,
                           ShapeResult& result);

}  // namespace switchyard::measure
