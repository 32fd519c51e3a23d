// SPDX-License-Identifier: Apache-2.0
//
// cuda_run.h: one shape on one rank's GPU: inputs in device memory, times and the check.
#pragma once

#include <functional>
#include <vector>

#include "switchyard/exchange.h"

#include "device/device_meter.h"
#include "measure/bench_batch.h"
#include "measure/call_bytes.h"
#include "measure/calls_apart.h"
#include "measure/cuda_series.h"
#include "measure/stages.h"

namespace switchyard::measure {

class CudaRun {
 public:
  /// Collective, like all members. References must outlive the object.
  CudaRun(const Group& group, DeviceMeter& meter, const BenchShape& shape);

  /// Returns microseconds per iteration, or the mean iteration of each graph. `operation` is
  /// kDispatch, which includes the release of the handle, or kPair. Counts what calls send to other
  /// hosts.
  std::vector<double> times(Operation operation, const std::function<void()>& tick);

  /// Of the last times(): what one call of this rank sent.
  WireBytes host_bytes() const { return bytes_.per_call(); }

  /// Times of calls one by one; also kCombine. Values are as ShapeResult says.
  std::vector<double> times_apart(Operation operation, Before before);

  /// Returns the stages of this rank's kernels in further runs like those of times().
  std::vector<StageTimes> stages(Operation operation);

  /// The same for NCCL's grouped sends and receives of the same bytes; also kCombine.
  std::vector<double> nccl_times(Operation operation);

  /// Returns the number of wrong elements according to BenchOracle.
  std::int64_t count_wrong(std::int64_t iteration);

 private:
  TensorView view(const DeviceMemory& memory, DType dtype,
                  std::initializer_list<std::int64_t> shape) const;
  Dispatched dispatch(const DeviceInput& input, Stream stream);
  TensorView results_of(const DispatchHandle& handle);
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
  CallBytes bytes_;
  DeviceMemory tensor_scale_;
  std::int64_t num_rows_ = 0;  ///< rows in the receive buffer
  DeviceMemory results_;       ///< [num_rows_, H] bf16: what the experts return
  DeviceMemory output_;        ///< [T, H] bf16
  Exchange exchange_;          ///< last: it ends before memory does
};

}  // namespace switchyard::measure
