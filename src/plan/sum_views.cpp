// SPDX-License-Identifier: Apache-2.0

#include "plan/sum_views.h"

#include "core/bytes.h"
#include "core/format.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "weight_and_reduce";

bool has_same_shape(const TensorView& a, const TensorView& b) {
  if (a.num_dims() != b.num_dims()) return false;
  for (int dim = 0; dim < a.num_dims(); ++dim) {
    if (a.shape(dim) != b.shape(dim)) return false;
  }
  return true;
}

bool is_same_tensor(const TensorView& a, const TensorView& b) {
  if (a.data() != b.data() || a.dtype() != b.dtype() || !has_same_shape(a, b)) return false;
  for (int dim = 0; dim < a.num_dims(); ++dim) {
    if (a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

SumViews check_sum(const WeightAndReduceArguments& arguments, const TensorView& output) {
  SumViews sum;
  sum.ids = id_table(kFunction, arguments.topk_ids);
  const TensorView& rows = arguments.expert_output;
  sum.dtype = rows.dtype();
  require(rows.has_value() && is_reducible(sum.dtype) && rows.is_contiguous() &&
              rows.num_dims() >= 2 && rows.num_dims() <= 3,
          Errc::kInvalidArgument,
          "weight_and_reduce: expert_output is {}, must be contiguous bf16, f16 or f32", rows);
  sum.rows = rows.as<std::byte>();
  sum.hidden = rows.shape(rows.num_dims() - 1);
  require(output.num_dims() == 2 && output.dtype() == sum.dtype &&
              output.shape(0) == sum.ids.num_tokens && output.shape(1) == sum.hidden,
          Errc::kInvalidArgument, "weight_and_reduce: output is {}, must be {} [{}, {}]", output,
          name_of(sum.dtype), sum.ids.num_tokens, sum.hidden);
  sum.out = byte_rows(kFunction, "output", output, true);
  if (arguments.apply_router_weight_on_input) return sum;
  const TensorView& given = arguments.topk_weights;
  require(given.num_dims() == 2 && given.shape(0) == sum.ids.num_tokens &&
              given.shape(1) == sum.ids.num_topk && given.dtype() == DType::kF32 &&
              given.is_contiguous(),
          Errc::kInvalidArgument, "weight_and_reduce: topk_weights is {}, must be f32 [{}, {}]",
          given, sum.ids.num_tokens, sum.ids.num_topk);
  sum.weights = given.as<float>();
  return sum;
}

}  // namespace

NoOpViews check_no_op(const TensorView& expert_output, const TensorView& output) {
  require(expert_output.has_value(), Errc::kInvalidArgument,
          "weight_and_reduce: expert_output is absent, must be [T, H]");
  if (!output.has_value() || is_same_tensor(expert_output, output)) return {};
  require(has_same_shape(expert_output, output) && expert_output.dtype() == output.dtype(),
          Errc::kInvalidArgument,
          "weight_and_reduce: output is {}, must be the shape and dtype of expert_output, {}",
          output, expert_output);
  return {true, byte_rows(kFunction, "expert_output", expert_output, false),
          byte_rows(kFunction, "output", output, true)};
}

SumViews check_contiguous(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                          const TensorView& output) {
  SumViews sum = check_sum(arguments, output);
  const TensorView& given = arguments.expert_output;
  const std::int64_t num_rows = checked_mul(sum.ids.num_tokens, sum.ids.num_topk);
  const bool is_flat = given.num_dims() == 2;
  require(is_flat ? given.shape(0) == num_rows
                  : given.shape(0) == sum.ids.num_tokens && given.shape(1) == sum.ids.num_topk,
          Errc::kInvalidArgument, "weight_and_reduce: expert_output is {}, must be [{}, {}, {}]",
          given, sum.ids.num_tokens, sum.ids.num_topk, sum.hidden);
  if (policy.skips_padding) sum.lookup = expert_lookup(kFunction, arguments.expert_map);
  return sum;
}

SumViews check_naive_batched(const WeightAndReduce& policy,
                             const WeightAndReduceArguments& arguments, const TensorView& output) {
  SumViews sum = check_sum(arguments, output);
  const TensorView& given = arguments.expert_output;
  require(given.num_dims() == 3, Errc::kInvalidArgument,
          "weight_and_reduce: expert_output is {}, must be [experts, capacity, {}]", given,
          sum.hidden);
  require(policy.rank >= 0, Errc::kInvalidArgument,
          "weight_and_reduce: rank is {}, must not be negative", policy.rank);
  sum.num_local = given.shape(0);
  sum.capacity = given.shape(1);
  sum.first_expert = checked_mul<std::int64_t>(policy.rank, sum.num_local);
  return sum;
}

void fail_delegate() {
  fail(Errc::kInvalidArgument,
       "weight_and_reduce: the policy is delegate, must be one that prepare/finalize chose; ask "
       "or_else()");
}

}  // namespace switchyard
