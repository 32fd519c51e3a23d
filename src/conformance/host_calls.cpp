// SPDX-License-Identifier: Apache-2.0

#include "conformance/tensor_calls.h"

namespace switchyard::conformance {
namespace {

class HostCalls final : public TensorCalls {
 public:
  void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                const TensorView& scales, const TensorView& static_scale) override {
    switchyard::quantize(x, scheme, q, scales, static_scale);
  }
  void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                  const TensorView& y, const TensorView& tensor_scale) override {
    switchyard::dequantize(q, scales, scheme, y, tensor_scale);
  }
  void quantize_batched(const TensorView& x, const TensorView& counts, const QuantScheme& scheme,
                        const TensorView& q, const TensorView& scales,
                        const TensorView& static_scale) override {
    switchyard::quantize_batched(x, counts, scheme, q, scales, static_scale);
  }
  void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                         const TensorView& scales, ActivationScale activation_scale,
                         const TensorView& tensor_scale) override {
    switchyard::silu_mul_quantize(x, scheme, q, scales, activation_scale, tensor_scale);
  }
  void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                                 const QuantScheme& scheme, const TensorView& q,
                                 const TensorView& scales, ActivationScale activation_scale,
                                 const TensorView& tensor_scale) override {
    switchyard::silu_mul_quantize_batched(x, counts, scheme, q, scales, activation_scale,
                                          tensor_scale);
  }

  Permuted permute(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                   std::int32_t num_local_experts, const PermuteOptions& options,
                   ScaleLayout layout) override {
    return switchyard::permute(x, scales, topk_ids, num_local_experts, options,
                               {.scale_layout = layout});
  }
  void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
                 const TensorView& topk_weights, const TensorView& inv_perm,
                 const TensorView& expert_map, const TensorView& output) override {
    switchyard::ep_gather(expert_output, topk_ids, topk_weights, inv_perm, expert_map, output);
  }
  void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                            const TensorView& topk_weights, const TensorView& output) override {
    switchyard::unpermute_and_reduce(expert_output, plan, topk_weights, output);
  }
  void count_expert_num_tokens(const TensorView& topk_ids, const TensorView& expert_num_tokens,
                               const TensorView& expert_map) override {
    switchyard::count_expert_num_tokens(topk_ids, expert_num_tokens, expert_map);
  }
  void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                        const TensorView& local_ids) override {
    switchyard::apply_expert_map(topk_ids, expert_map, local_ids);
  }
  std::int64_t round_up_and_sum(const TensorView& expert_num_tokens,
                                std::int64_t alignment) override {
    return expert_num_tokens_round_up_and_sum(expert_num_tokens, alignment);
  }
  void weight_and_reduce(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                         const TensorView& output) override {
    switchyard::weight_and_reduce(policy, arguments, output);
  }
};

}  // namespace

std::unique_ptr<TensorCalls> make_host_calls() { return std::make_unique<HostCalls>(); }

}  // namespace switchyard::conformance
