// SPDX-License-Identifier: Apache-2.0
//
// cuda_run.h: one shape on one rank's GPU: inputs in device memory, times, and the check.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "device/device_meter.h"
#include "measure/bench_batch.h"
#include "measure/cuda_series.h"

namespace switchyard::measure {

class CudaRun {
 public:
  /// Collective, as all members. References must outlive it.
  CudaRun(const Group& group, DeviceMeter& meter, const BenchShape& shape);

  /// Microseconds of each iteration, or of the mean iteration of each graph. kDispatch: with the
  /// release of what came; kPair.
  std::vector<double> times(Operation operation, const std::function<void()>& tick);

  /// The same for NCCL's grouped sends and receives of the same bytes; kDispatch, kCombine, kPair.
  std::vector<double> nccl_times(Operation operation);

  /// By BenchOracle.
  std::int64_t count_wrong(std::int64_t iteration);

 private:
  Dispatched dispatch(const DeviceInput& input, Stream stream);
  void combine(const DispatchHandle& handle, Stream stream);
  void poison_output();
  std::vector<double> series(const DeviceWork& work, const std::function<void()>& before,
                             const std::function<void()>& after);

  Group group_;
  DeviceMeter& meter_;
  const BenchShape& shape_;
  BenchBatch batch_;
  std::vector<DeviceInput> inputs_;
  std::size_t next_input_ = 0;
  DeviceMemory tensor_scale_;
  std::int64_t num_rows_ = 0;  ///< of the receive buffer
  DeviceMemory results_;       ///< [num_rows_, H] bf16: what experts return
  DeviceMemory output_;        ///< [T, H] bf16
  Exchange exchange_;          ///< last: it ends before memory does
};

}  // namespace switchyard::measure
