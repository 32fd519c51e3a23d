// SPDX-License-Identifier: Apache-2.0
//
// tensor_calls.h: functions of tensors as cases call them: all tensors in host memory, whatever
// computes. One check judges the functions of CPUs and their overloads with a Stream.
#pragma once

#include <memory>
#include <string>

#include "switchyard/permute.h"
#include "switchyard/quant.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard::conformance {

/// Each member is the public function of its name.
class TensorCalls {
 public:
  TensorCalls() = default;
  TensorCalls(const TensorCalls&) = delete;
  TensorCalls& operator=(const TensorCalls&) = delete;
  virtual ~TensorCalls() = default;

  virtual void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                        const TensorView& scales, const TensorView& static_scale) = 0;
  virtual void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                          const TensorView& y, const TensorView& tensor_scale) = 0;
  virtual void quantize_batched(const TensorView& x, const TensorView& counts,
                                const QuantScheme& scheme, const TensorView& q,
                                const TensorView& scales, const TensorView& static_scale) = 0;
  virtual void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme,
                                 const TensorView& q, const TensorView& scales,
                                 ActivationScale activation_scale,
                                 const TensorView& tensor_scale) = 0;
  virtual void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                                         const QuantScheme& scheme, const TensorView& q,
                                         const TensorView& scales, ActivationScale activation_scale,
                                         const TensorView& tensor_scale) = 0;

  virtual Permuted permute(const TensorView& x, const TensorView& scales,
                           const TensorView& topk_ids, std::int32_t num_local_experts,
                           const PermuteOptions& options, ScaleLayout layout) = 0;
  virtual void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
                         const TensorView& topk_weights, const TensorView& inv_perm,
                         const TensorView& expert_map, const TensorView& output) = 0;
  virtual void unpermute_and_reduce(const TensorView& expert_output, const PermutePlan& plan,
                                    const TensorView& topk_weights, const TensorView& output) = 0;
  virtual void count_expert_num_tokens(const TensorView& topk_ids,
                                       const TensorView& expert_num_tokens,
                                       const TensorView& expert_map) = 0;
  virtual void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                                const TensorView& local_ids) = 0;
  virtual std::int64_t round_up_and_sum(const TensorView& expert_num_tokens,
                                        std::int64_t alignment) = 0;
  virtual void weight_and_reduce(const WeightAndReduce& policy,
                                 const WeightAndReduceArguments& arguments,
                                 const TensorView& output) = 0;
};

std::unique_ptr<TensorCalls> make_host_calls();
/// On the first GPU. Errors: kNotAvailable. A call that counts an error of its input differs.
std::unique_ptr<TensorCalls> make_device_calls();

/// "cpu" or "cuda".
inline std::unique_ptr<TensorCalls> make_calls(const std::string& device) {
  return device == "cuda" ? make_device_calls() : make_host_calls();
}

}  // namespace switchyard::conformance
