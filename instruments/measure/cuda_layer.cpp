// SPDX-License-Identifier: Apache-2.0
//
// Measures a whole MoE layer on GPUs; see layer_parts.h.

#include "switchyard/modular_kernel.h"

#include "core/fail.h"
#include "measure/bench_batch.h"
#include "measure/call_bytes.h"
#include "measure/cuda_series.h"
#include "measure/cuda_target.h"
#include "measure/layer_parts.h"

namespace switchyard::measure {
namespace {

class CudaLayerRun {
 public:
  CudaLayerRun(const Group& group, DeviceMeter& meter, const BenchShape& shape)
      : group_(group), meter_(meter), shape_(shape), batch_(shape, group.rank()) {
    for (std::size_t i = 0; i < kNumInputs; ++i) {
      inputs_.push_back(upload(batch_, static_cast<std::int64_t>(i), meter.queue()));
    }
    output_ = meter.queue().allocate(output_bytes());
    kernel_ = make_layer(group, shape, exchange_options(meter, shape));
    if (shape.num_hosts() > 1) {
      kernel_->set_inspector([this](const Prepared&, const TensorView&) { count_bytes(); });
    }
  }

  std::vector<double> times(const std::function<void()>& tick) {
    require(kernel_->is_capturable(), Errc::kNotSupported,
            "bench: experts \"{}\" wait for the stream, whose start a timed run holds back",
            kernel_->experts().name());
    const int num_calls = iterations_per_run(shape_) * shape_.num_layers;
    bytes_ = {};
    const DeviceWork work = [this, num_calls](Stream stream) {
      bytes_.begin();
      for (int i = 0; i < num_calls; ++i) apply(inputs_[next_input_++ % kNumInputs], stream);
    };
    return time_series(
        meter_, shape_, work, [this] { poison_output(); }, [this] { kernel_->check(); },
        [&] {
          bytes_.end(calls_per_run(shape_));
          tick();
        });
  }

  /// Of the last times(): what one call of this rank sent to other hosts.
  WireBytes host_bytes() const { return bytes_.per_call(); }

  std::int64_t count_wrong(std::int64_t iteration) {
    const DeviceInput input = upload(batch_, iteration, meter_.queue());
    poison_output();
    meter_.run([&](Stream stream) { apply(input, stream); });
    kernel_->check();
    const Tensor output(DType::kBF16, {shape_.num_tokens, shape_.workload.hidden});
    meter_.queue().copy(output.data(), output_.get(), output_bytes());
    const BenchOracle oracle(shape_, iteration, group_.rank(), reference_expert(shape_.workload),
                             reference_shared(shape_));
    return oracle.count_wrong_output(output, kCheckedTokens, layer_tolerance(shape_));
  }

 private:
  std::size_t output_bytes() const {
    return 2 * static_cast<std::size_t>(shape_.num_tokens * shape_.workload.hidden);
  }
  // Experts of micro-batches run in their order.
  void count_bytes() {
    const int micro_batch = num_counted_++ % shape_.num_micro_batches;
    bytes_.add(kernel_->prepare_finalize().wire_bytes(micro_batch));
  }
  void poison_output() { meter_.queue().fill(output_.get(), 0xFF, output_bytes()); }

  void apply(const DeviceInput& input, Stream stream) {
    const std::int64_t num_tokens = shape_.num_tokens;
    const std::int64_t num_topk = shape_.workload.num_topk;
    const std::int64_t hidden = shape_.workload.hidden;
    PrepareArguments arguments;
    const Device device = meter_.queue().device();
    arguments.hidden = TensorView(input.tokens.get(), DType::kBF16, {num_tokens, hidden}, device);
    arguments.topk_ids =
        TensorView(input.topk_ids.get(), DType::kI32, {num_tokens, num_topk}, device);
    arguments.topk_weights =
        TensorView(input.topk_weights.get(), DType::kF32, {num_tokens, num_topk}, device);
    apply_layer(*kernel_, shape_, arguments,
                TensorView(output_.get(), DType::kBF16, {num_tokens, hidden}, device), stream);
  }

  Group group_;
  DeviceMeter& meter_;
  const BenchShape& shape_;
  BenchBatch batch_;
  std::vector<DeviceInput> inputs_;
  std::size_t next_input_ = 0;
  CallBytes bytes_;
  int num_counted_ = 0;
  DeviceMemory output_;                    ///< [T, H] bf16
  std::unique_ptr<ModularKernel> kernel_;  ///< last: destroyed before the memory it uses
};

}  // namespace

ShapeResult measure_cuda_layer(const Group& group, DeviceMeter& meter, const BenchShape& shape,
                               const std::function<void()>& tick) {
  CudaLayerRun run(group, meter, shape);
  ShapeResult result;
  result.method = method_of(meter, shape);
  result.us = run.times(tick);
  if (shape.num_hosts() > 1) measure_host_messages(meter, shape, run.host_bytes(), result);
  result.num_wrong = run.count_wrong(shape.num_runs);
  return result;
}

}  // namespace switchyard::measure
