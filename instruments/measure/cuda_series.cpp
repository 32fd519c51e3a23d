// SPDX-License-Identifier: Apache-2.0

#include "measure/cuda_series.h"

#include <algorithm>

namespace switchyard::measure {
namespace {

constexpr int kCallsPerGraph = 20;
constexpr std::int64_t kWarmUps = 3;

}  // namespace

DeviceMemory copy_of(const TensorView& host, DeviceQueue& queue) {
  DeviceMemory memory = queue.allocate(host.num_bytes());
  queue.copy(memory.get(), host.data(), host.num_bytes());
  return memory;
}

DeviceInput upload(BenchBatch& batch, std::int64_t iteration, DeviceQueue& queue) {
  batch.make(iteration);
  const TensorView scales = batch.dispatch_options().scales;
  return {copy_of(batch.tokens(), queue),
          scales.has_value() ? copy_of(scales, queue) : DeviceMemory(),
          copy_of(batch.topk_ids(), queue), copy_of(batch.topk_weights(), queue)};
}

ExchangeOptions exchange_options(DeviceMeter& meter, const BenchShape& shape) {
  ExchangeOptions options;
  options.device = meter.queue().device();
  options.programmatic_launch = shape.is_programmatic;
  if (shape.num_sms > 0) options.num_ctas = meter.num_ctas(shape.num_sms);
  options.exact_messages = shape.has_exact_messages;
  options.host_capacity = shape.host_capacity;
  return options;
}

RunStart run_start(DeviceMeter& meter, const BenchShape& shape) {
  if (shape.uses_graph || shape.num_hosts() == 1) return RunStart::kHeld;
  const bool has_shared_gpus = meter.num_gpus() < shape.num_ranks;
  return shape.has_exact_messages || has_shared_gpus ? RunStart::kAtOnce : RunStart::kHeld;
}

std::string method_of(DeviceMeter& meter, const BenchShape& shape) {
  if (shape.uses_graph) return "graph";
  return run_start(meter, shape) == RunStart::kHeld ? "events" : "launched";
}

int iterations_per_run(const BenchShape& shape) {
  return shape.uses_graph ? std::max(1, kCallsPerGraph / shape.num_layers) : 1;
}

int calls_per_run(const BenchShape& shape) {
  return iterations_per_run(shape) * shape.num_layers * shape.num_micro_batches;
}

std::vector<double> time_series(DeviceMeter& meter, const BenchShape& shape, DeviceWork work,
                                const std::function<void()>& before,
                                const std::function<void()>& check,
                                const std::function<void()>& after) {
  meter.run(work);
  if (shape.uses_graph) work = meter.capture(work);
  const RunStart start = run_start(meter, shape);
  std::vector<double> us;
  for (std::int64_t i = -kWarmUps; i < shape.num_runs; ++i) {
    before();
    const double time = meter.time_us(work, start) / iterations_per_run(shape);
    check();
    if (i < 0) continue;
    us.push_back(time);
    after();
  }
  return us;
}

void measure_host_messages(DeviceMeter& meter, const BenchShape& shape, WireBytes per_call,
                           ShapeResult& result) {
  if (shape.operation == Operation::kDispatch) per_call.combine = 0;
  if (shape.operation == Operation::kCombine) per_call.dispatch = 0;
  const int num_calls = calls_per_run(shape);
  result.host_bytes =
      (per_call.dispatch + per_call.combine) * (num_calls / iterations_per_run(shape));
  result.host_bytes_per_call = per_call;
  const DeviceWork messages = meter.host_messages(per_call);
  const auto nothing = [] {};
  result.host_us = time_series(
      meter, shape,
      [&](Stream stream) {
        for (int i = 0; i < num_calls; ++i) messages(stream);
      },
      nothing, nothing, nothing);
}

}  // namespace switchyard::measure
