// SPDX-License-Identifier: Apache-2.0
//
// A layer by GPUs: arguments go up, the output comes home.

#include "switchyard/device_modular_kernel.h"
#include "switchyard/error.h"

#include "conformance/device_arena.h"
#include "conformance/exchange_values.h"
#include "conformance/layer_run.h"
#include "core/even_parts.h"
#include "device/cuda_module.h"

namespace switchyard::conformance {
namespace {

// cuBLAS where it is there.
std::unique_ptr<DeviceExperts> make_layer_experts(const std::string& name,
                                                  const ExpertWeights& weights,
                                                  const ExpertOptions& options,
                                                  Agreement& agreement) {
  if (name != "onednn") return make_device_experts(name, weights, options);
  try {
    return make_device_experts("cublas", weights, options);
  } catch (const Error& error) {
    if (error.code() != Errc::kNotAvailable) throw;
    agreement.left_out.emplace_back("cuBLAS, which is not there: exact experts instead");
    return make_device_experts("exact", weights, options);
  }
}

// Rows [begin, end) of a matrix.
TensorView rows_of(const TensorView& matrix, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * matrix.stride(0) * bits_of(matrix.dtype()) / 8;
  return TensorView(matrix.as<std::byte>() + at, matrix.dtype(), {end - begin, matrix.shape(1)},
                    {matrix.stride(0), 1});
}

// Micro-batch after micro-batch.
void apply_in_turn(DeviceModularKernel& kernel, const DevicePrepareArguments& whole,
                   const TensorView& output, int num_micro_batches, Stream stream) {
  const std::int64_t num_tokens = whole.hidden.shape(0);
  for (int m = 0; m < num_micro_batches; ++m) {
    const std::int64_t begin = part_begin(num_tokens, num_micro_batches, m);
    const std::int64_t end = part_begin(num_tokens, num_micro_batches, m + 1);
    DevicePrepareArguments part = whole;
    part.hidden = rows_of(whole.hidden, begin, end);
    part.topk_ids = rows_of(whole.topk_ids, begin, end);
    part.topk_weights = rows_of(whole.topk_weights, begin, end);
    part.micro_batch = m;
    kernel.apply(part, rows_of(output, begin, end), stream);
  }
}

}  // namespace

Tensor LayerRun::run_on_gpus(const Group& group, Agreement& agreement) const try {
  const Setup setup = set_up();
  const PrepareArguments& given = setup.arguments;
  Tensor output = poisoned(DType::kBF16, given.hidden.shape(0), test_.shape.hidden);
  const std::unique_ptr<DeviceQueue> queue = cuda_module().make_queue(group.rank());
  constexpr std::size_t kAlignment = 4096;
  DeviceArena arena(*queue, span_bytes(given.hidden) + span_bytes(given.topk_ids) +
                                span_bytes(given.topk_weights) + span_bytes(output) + kAlignment);
  DevicePrepareFinalizeOptions options;
  options.exchange.timeout_ms = group.timeout_ms();
  DeviceModularKernel kernel(
      make_device_prepare_finalize(test_.kind, group, setup.config, options),
      make_layer_experts(test_.experts, setup.weights(), setup.options, agreement));
  DevicePrepareArguments arguments;
  arguments.hidden = arena.up(given.hidden);
  arguments.topk_ids = arena.up(given.topk_ids);
  arguments.topk_weights = arena.up(given.topk_weights);
  arguments.apply_router_weight_on_input = given.apply_router_weight_on_input;
  const TensorView on_gpu = arena.up(output);
  group.barrier();  // all have their memory
  apply_in_turn(kernel, arguments, on_gpu, test_.num_micro_batches, queue->stream());
  queue->wait();
  kernel.check();
  arena.down(on_gpu, output.data());
  agreement.heap = kernel.prepare_finalize().heap();
  agreement.is_shared_gpu = kernel.prepare_finalize().is_shared_gpu();
  return output;
} catch (const Error& error) {
  // Refused for its configuration: by every rank alike, before anything was sent.
  if (error.code() != Errc::kNotSupported) throw;
  agreement.skipped = error.what();
  return {};
}

}  // namespace switchyard::conformance
