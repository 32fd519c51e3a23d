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
  return options;
}

int iterations_per_run(const BenchShape& shape) {
  return shape.uses_graph ? std::max(1, kCallsPerGraph / shape.num_layers) : 1;
}

std::vector<double> time_series(DeviceMeter& meter, const BenchShape& shape, DeviceWork work,
                                const std::function<void()>& before,
                                const std::function<void()>& check,
                                const std::function<void()>& after) {
  meter.run(work);
  if (shape.uses_graph) work = meter.capture(work);
  std::vector<double> us;
  for (std::int64_t i = -kWarmUps; i < shape.num_runs; ++i) {
    before();
    const double time = meter.time_us(work) / iterations_per_run(shape);
    check();
    if (i < 0) continue;
    us.push_back(time);
    after();
  }
  return us;
}

}  // namespace switchyard::measure
