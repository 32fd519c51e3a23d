// SPDX-License-Identifier: Apache-2.0
//
// The overloads with a Stream: tensors go up, what is written comes back, with the gaps of its
// strides.

#include <algorithm>
#include <utility>

#include "switchyard/scale_layout.h"

#include "conformance/compare.h"
#include "conformance/device_arena.h"
#include "conformance/exchange_values.h"
#include "conformance/tensor_calls.h"
#include "device/cuda_module.h"

namespace switchyard::conformance {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{768} << 20;

class DeviceCalls final : public TensorCalls {
 public:
  DeviceCalls() : queue_(cuda_module().make_queue(0)), arena_(*queue_, kArenaBytes) {}

  void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                const TensorView& scales, const TensorView& static_scale) override {
    switchyard::quantize(in(x), scheme, out(q), out(scales), stream(), in(static_scale));
    finish();
  }
  void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                  const TensorView& y, const TensorView& tensor_scale) override {
    switchyard::dequantize(in(q), in(scales), scheme, out(y), stream(), in(tensor_scale));
    finish();
  }
  void quantize_batched(const TensorView& x, const TensorView& counts, const QuantScheme& scheme,
                        const TensorView& q, const TensorView& scales,
                        const TensorView& static_scale) override {
    switchyard::quantize_batched(in(x), in(counts), scheme, out(q), out(scales), stream(),
                                 in(static_scale));
    finish();
  }
  void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                         const TensorView& scales, ActivationScale activation_scale,
                         const TensorView& tensor_scale) override {
    switchyard::silu_mul_quantize(in(x), scheme, out(q), out(scales), stream(), activation_scale,
                                  in(tensor_scale));
    finish();
  }
  void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                                 const QuantScheme& scheme, const TensorView& q,
                                 const TensorView& scales, ActivationScale activation_scale,
                                 const TensorView& tensor_scale) override {
    switchyard::silu_mul_quantize_batched(in(x), in(counts), scheme, out(q), out(scales), stream(),
                                          activation_scale, in(tensor_scale));
    finish();
  }

  Permuted permute(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                   std::int32_t num_local_experts, const PermuteOptions& options,
                   ScaleLayout layout) override;
  void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
                 const TensorView& topk_weights, const TensorView& inv_perm,
                 const TensorView& expert_map, const TensorView& output) override {
    switchyard::ep_gather(in(expert_output), in(topk_ids), in(topk_weights), in(inv_perm),
                          in(expert_map), out(output), stream(), errors());
    finish();
  }
  void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                            const TensorView& topk_weights, const TensorView& output) override {
    switchyard::unpermute_and_reduce(in(expert_output), in(plan.inv_perm), in(topk_weights),
                                     out(output), stream(), errors());
    finish();
  }
  void count_expert_num_tokens(const TensorView& topk_ids, const TensorView& expert_num_tokens,
                               const TensorView& expert_map) override {
    switchyard::count_expert_num_tokens(in(topk_ids), out(expert_num_tokens), in(expert_map),
                                        stream(), errors());
    finish();
  }
  void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                        const TensorView& local_ids) override {
    switchyard::apply_expert_map(in(topk_ids), in(expert_map), out(local_ids), stream(), errors());
    finish();
  }
  std::int64_t round_up_and_sum(const TensorView& expert_num_tokens,
                                std::int64_t alignment) override {
    std::int64_t sum = -1;
    expert_num_tokens_round_up_and_sum(in(expert_num_tokens), alignment,
                                       out(TensorView::of(&sum, {1})), stream(), errors());
    finish();
    return sum;
  }
  void weight_and_reduce(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                         const TensorView& output) override;

 private:
  Stream stream() { return queue_->stream(); }
  TensorView in(const TensorView& host) { return arena_.up(host); }
  TensorView out(const TensorView& host) {
    const TensorView device = arena_.up(host);
    if (host.has_value()) written_.emplace_back(device, host);
    return device;
  }
  TensorView errors() { return out(TensorView::of(&num_errors_, {1})); }

  void finish() {
    queue_->wait();
    for (const auto& [device, host] : std::exchange(written_, {})) {
      arena_.down(device, host.data());
    }
    arena_.clear();
    expect(num_errors_ == 0, "{} errors are counted, want none", num_errors_);
  }

  std::unique_ptr<DeviceQueue> queue_;
  DeviceArena arena_;
  std::vector<std::pair<TensorView, TensorView>> written_;  ///< on the GPU, here
  std::int32_t num_errors_ = 0;
};

// Into buffers for any routing, which are cut to what the ids need.
Permuted DeviceCalls::permute(const TensorView& x, const TensorView& scales,
                              const TensorView& topk_ids, std::int32_t num_local_experts,
                              const PermuteOptions& options, ScaleLayout layout) {
  const std::int64_t num_tokens = topk_ids.shape(0);
  const std::int64_t num_topk = topk_ids.shape(1);
  const std::int64_t most =
      compute_aligned_m(num_tokens, num_topk, num_local_experts, options.alignment);
  Permuted result;
  result.x_memory = poisoned(x.dtype(), most, x.shape(1));
  result.x = result.x_memory;
  OwnedScales owned = make_scales(scales.dtype(), layout, most, scales.shape(1));
  result.scales = owned.view;
  result.scales_memory = std::move(owned.memory);
  const Tensor m_indices(DType::kI32, {most});
  result.plan.inv_perm = Tensor(DType::kI32, {num_tokens, num_topk});
  result.plan.first_row.resize(static_cast<std::size_t>(num_local_experts));
  result.plan.expert_num_tokens.resize(static_cast<std::size_t>(num_local_experts));
  std::int64_t num_rows = -1;
  ScatterOutputs outputs;
  outputs.x = out(result.x);
  outputs.scales = out(result.scales);
  outputs.m_indices = out(m_indices);
  outputs.inv_perm = out(result.plan.inv_perm);
  outputs.first_row = out(TensorView::of(result.plan.first_row.data(), {num_local_experts}));
  outputs.expert_num_tokens =
      out(TensorView::of(result.plan.expert_num_tokens.data(), {num_local_experts}));
  outputs.num_rows = out(TensorView::of(&num_rows, {1}));
  PermuteOptions on_gpu = options;
  on_gpu.expert_map = in(options.expert_map);
  const std::size_t workspace = ep_scatter_workspace_bytes(num_tokens, num_topk, num_local_experts);
  ep_scatter(in(x), in(scales), in(topk_ids), on_gpu, outputs,
             {arena_.allocate(workspace), workspace}, stream(), errors());
  finish();
  expect(num_rows >= 0 && num_rows <= most, "{} rows of {}", num_rows, most);
  result.plan.m_indices = Tensor(DType::kI32, {num_rows});
  std::copy_n(m_indices.as<std::int32_t>(), num_rows, result.plan.m_indices.as<std::int32_t>());
  for (std::int64_t row = num_rows; row < most; ++row) {
    expect(m_indices.as<std::int32_t>()[row] == -1, "m_indices[{}] is {} behind the last row", row,
           m_indices.as<std::int32_t>()[row]);
  }
  return result;
}

// Rows of choices are weighted where they lie.
void DeviceCalls::weight_and_reduce(const WeightAndReduce& policy,
                                    const WeightAndReduceArguments& arguments,
                                    const TensorView& output) {
  WeightAndReduceArguments on_gpu = arguments;
  on_gpu.expert_output = out(arguments.expert_output);
  on_gpu.topk_weights = in(arguments.topk_weights);
  on_gpu.topk_ids = in(arguments.topk_ids);
  on_gpu.expert_map = in(arguments.expert_map);
  const std::size_t workspace = weight_and_reduce_workspace_bytes(
      policy, arguments.topk_ids.shape(0), arguments.topk_ids.shape(1),
      arguments.expert_output.shape(0));
  switchyard::weight_and_reduce(policy, on_gpu, out(output),
                                {arena_.allocate(workspace), workspace}, stream(), errors());
  finish();
}

}  // namespace

std::unique_ptr<TensorCalls> make_device_calls() { return std::make_unique<DeviceCalls>(); }

}  // namespace switchyard::conformance
