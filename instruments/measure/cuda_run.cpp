// SPDX-License-Identifier: Apache-2.0

#include "measure/cuda_run.h"

#include <numeric>

#include "measure/cuda_target.h"
#include "measure/statistics.h"
#include "measure/traffic.h"

namespace switchyard::measure {
namespace {

constexpr std::int64_t kNumNcclInputs = 4;
constexpr int kNumEmptyCalls = 20;
constexpr int kResultByte = 0x3C;  // bf16 0x3C3C is about 0.01

std::int64_t rows_of(const TensorView& rows) {
  return rows.num_elements() / rows.shape(rows.num_dims() - 1);
}

}  // namespace

CudaRun::CudaRun(const Group& group, DeviceMeter& meter, const BenchShape& shape)
    : group_(group),
      meter_(meter),
      shape_(shape),
      batch_(shape, group.rank()),
      exchange_(group, shape.exchange_config(), exchange_options(meter, shape)) {
  for (std::size_t i = 0; i < kNumInputs; ++i) {
    inputs_.push_back(upload(batch_, static_cast<std::int64_t>(i), meter.queue()));
  }
  if (wants_tensor_scale(shape.scheme)) {
    tensor_scale_ = copy_of(batch_.dispatch_options().tensor_scale, meter.queue());
  }
  const std::size_t row_bytes = 2 * static_cast<std::size_t>(shape.workload.hidden);
  output_ = meter.queue().allocate(static_cast<std::size_t>(shape.num_tokens) * row_bytes);
  meter.run([&](Stream stream) {
    const Dispatched got = dispatch(inputs_[0], stream);
    num_rows_ = rows_of(got.experts.rows);
    if (shape.gives_codes) (void)exchange_.combine_input(got.handle);  // it may take memory
    exchange_.release(got.handle);
  });
  exchange_.check();
  const std::size_t result_bytes = static_cast<std::size_t>(num_rows_) * row_bytes;
  results_ = meter.queue().allocate(result_bytes);
  meter.queue().fill(results_.get(), kResultByte, result_bytes);
}

TensorView CudaRun::view(const DeviceMemory& memory, DType dtype,
                         std::initializer_list<std::int64_t> shape) const {
  return TensorView(memory.get(), dtype, shape, meter_.queue().device());
}

Dispatched CudaRun::dispatch(const DeviceInput& input, Stream stream) {
  const std::int64_t num_tokens = shape_.num_tokens;
  const std::int64_t num_topk = shape_.workload.num_topk;
  DispatchOptions options;
  if (tensor_scale_ != nullptr) {
    options.tensor_scale = view(tensor_scale_, DType::kF32, {1});
  }
  if (input.scales != nullptr) {
    options.scales = view(input.scales, scale_dtype(shape_.scheme),
                          {num_tokens, num_scales(shape_.scheme, shape_.workload.hidden)});
  }
  const DType dtype = shape_.gives_codes ? shape_.scheme.dtype : DType::kBF16;
  return exchange_.dispatch(view(input.tokens, dtype, {num_tokens, shape_.workload.hidden}),
                            view(input.topk_ids, DType::kI32, {num_tokens, num_topk}),
                            view(input.topk_weights, DType::kF32, {num_tokens, num_topk}), stream,
                            options);
}

// Those of the work that FlashInfer's exchange does lie where it wants them, as there.
TensorView CudaRun::results_of(const DispatchHandle& handle) {
  if (shape_.gives_codes) return exchange_.combine_input(handle);
  return view(results_, DType::kBF16, {num_rows_, shape_.workload.hidden});
}

void CudaRun::combine(const DispatchHandle& handle, Stream stream) {
  const std::int64_t hidden = shape_.workload.hidden;
  exchange_.combine(handle, results_of(handle),
                    view(output_, DType::kBF16, {shape_.num_tokens, hidden}), stream);
}

void CudaRun::poison_output() {
  meter_.queue().fill(output_.get(), 0xFF,
                      2 * static_cast<std::size_t>(shape_.num_tokens * shape_.workload.hidden));
}

std::vector<double> CudaRun::series(const DeviceWork& work, const std::function<void()>& before,
                                    const std::function<void()>& after) {
  return time_series(
      meter_, shape_, work, before, [this] { exchange_.check(); }, after);
}

std::vector<double> CudaRun::times(Operation operation, const std::function<void()>& tick) {
  const int num_calls = calls_per_run(shape_);
  const bool has_hosts = shape_.num_hosts() > 1;
  bytes_ = {};
  const DeviceWork work = [this, operation, num_calls, has_hosts](Stream stream) {
    bytes_.begin();
    for (int i = 0; i < num_calls; ++i) {
      const Dispatched got = dispatch(inputs_[next_input_++ % kNumInputs], stream);
      if (has_hosts) bytes_.add(exchange_.wire_bytes(got.handle));
      if (operation == Operation::kPair) {
        combine(got.handle, stream);
      } else {
        exchange_.release(got.handle);
      }
    }
  };
  return series(
      work, [&] { poison_output(); },
      [&] {
        bytes_.end(num_calls);
        tick();
      });
}

// The kernel that marks an end costs a gap, which calls between nothing show.
std::vector<double> CudaRun::times_apart(Operation operation, Before before) {
  CallsApart calls(group_, meter_, before, shape_.seed);
  const int num_pairs = iterations_per_run(shape_);
  const bool has_dispatch = operation != Operation::kCombine;
  const bool has_combine = operation != Operation::kDispatch;
  const DeviceWork work = [&](Stream stream) {
    calls.restart();
    for (int i = 0; i < num_pairs; ++i) {
      Dispatched got;
      const auto send = [&] { got = dispatch(inputs_[next_input_++ % kNumInputs], stream); };
      has_dispatch ? calls.enqueue(stream, send) : send();
      if (has_combine) {
        calls.enqueue(stream, [&] { combine(got.handle, stream); });
      } else {
        exchange_.release(got.handle);
      }
    }
  };
  const auto mean_of_run = [&](const std::vector<double>& us) {
    return std::accumulate(us.begin(), us.end(), 0.0) / num_pairs;
  };
  CallsApart nothing(group_, meter_, before, shape_.seed);
  const DeviceWork empty = [&](Stream stream) {
    nothing.restart();
    for (int i = 0; i < kNumEmptyCalls; ++i) nothing.enqueue(stream, [] {});
  };
  std::vector<double> empty_us;
  series(
      empty, [] {}, [&] { empty_us.push_back(median(nothing.times())); });
  const double end_us = median(empty_us) * (has_dispatch && has_combine ? 2 : 1);
  std::vector<double> us;
  series(
      work, [&] { poison_output(); },
      [&] { us.push_back((mean_of_run(calls.times()) - end_us) * shape_.num_layers); });
  return us;
}

std::vector<StageTimes> CudaRun::stages(Operation operation) {
  std::vector<std::vector<cuda::KernelStages>> runs;
  bool is_first = true;
  meter_.record_stages(true);
  times(operation, [&] {
    std::vector<cuda::KernelStages> run = meter_.take_stages();
    if (!is_first) runs.push_back(std::move(run));  // the first also has what ran before it
    is_first = false;
  });
  meter_.record_stages(false);
  return stage_times(runs);
}

std::vector<double> CudaRun::nccl_times(Operation operation) {
  const auto size = static_cast<std::size_t>(shape_.num_ranks);
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto work_of = [&](const Flow& flow) {
    std::vector<std::int64_t> sent(size);
    std::vector<std::int64_t> received(size);
    for (std::size_t peer = 0; peer < size; ++peer) {
      sent[peer] = flow.wire[rank * size + peer];
      received[peer] = flow.wire[peer * size + rank];
    }
    return meter_.nccl_all_to_all(sent, received);
  };
  std::vector<std::int64_t> some(size, 256);
  some[rank] = 0;
  meter_.run(meter_.nccl_all_to_all(some, some));  // sets up all connections
  std::vector<std::vector<DeviceWork>> iterations;
  for (std::int64_t i = 0; i < kNumNcclInputs; ++i) {
    const Traffic traffic = traffic_of(shape_, i);
    std::vector<DeviceWork> works;
    if (operation != Operation::kCombine) works.push_back(work_of(traffic.dispatch));
    if (operation != Operation::kDispatch) works.push_back(work_of(traffic.combine));
    iterations.push_back(std::move(works));
  }
  std::size_t next = 0;
  const int num_calls = iterations_per_run(shape_) * shape_.num_layers;
  const DeviceWork work = [&](Stream stream) {
    for (int i = 0; i < num_calls; ++i) {
      for (const DeviceWork& one : iterations[next++ % iterations.size()]) one(stream);
    }
  };
  const auto nothing = [] {};
  return series(work, nothing, nothing);
}

}  // namespace switchyard::measure
