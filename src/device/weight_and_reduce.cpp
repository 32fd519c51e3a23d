// SPDX-License-Identifier: Apache-2.0
//
// weight_and_reduce on either device. On a GPU the map of kNaiveBatched is that of a permute
// without alignment, where a token counts once for an expert.

#include "switchyard/weight_and_reduce.h"

#include "core/fail.h"
#include "core/require_device.h"
#include "cpu/host_reduce.h"
#include "device/call_checks.h"
#include "device/cuda_module.h"
#include "plan/sum_views.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "weight_and_reduce";

TensorView no_op(const TensorView& rows, const TensorView& output, Stream stream) {
  const NoOpViews views = check_no_op(rows, output);
  if (!views.is_copy) return rows;
  require(views.from.num_rows <= 0x7FFFFFFF, Errc::kInvalidArgument,
          "weight_and_reduce: {} rows, must be at most 2^31 - 1 on a GPU", views.from.num_rows);
  cuda_module().copy_rows(views.from, views.to, stream);
  return output;
}

cuda::ReduceArgs reduce_args(const SumViews& sum, std::int64_t num_rows,
                             const TensorView& num_errors) {
  check_grid(kFunction, sum.ids);
  cuda::ReduceArgs args;
  args.ids = sum.ids;
  args.lookup = sum.lookup;
  args.weights = sum.weights;
  args.weight_token_stride = sum.ids.num_topk;
  args.weight_choice_stride = 1;
  args.rows = {sum.rows, num_rows, sum.out.row_bytes, static_cast<std::int64_t>(sum.out.row_bytes)};
  args.out = sum.out;
  args.hidden = sum.hidden;
  args.row_dtype = sum.dtype;
  args.out_dtype = sum.dtype;
  args.num_errors = error_word(kFunction, num_errors);
  return args;
}

void contiguous(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                const TensorView& output, Stream stream, const TensorView& num_errors) {
  const SumViews sum = check_contiguous(policy, arguments, output);
  cuda::ReduceArgs args = reduce_args(sum, sum.ids.num_tokens * sum.ids.num_topk, num_errors);
  args.sum_source = cuda::SumSource::kContiguous;
  args.skips_padding = policy.skips_padding;
  args.weighs_in_place = sum.weights != nullptr;
  cuda_module().reduce_rows(args, stream);
}

void naive_batched(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                   const TensorView& output, std::span<std::byte> workspace, Stream stream,
                   const TensorView& num_errors) {
  const SumViews sum = check_naive_batched(policy, arguments, output);
  const ChoiceMapMemory memory = checked_choice_map(kFunction, sum.ids, sum.num_local);
  check_workspace(kFunction, workspace, memory.num_bytes);
  cuda::ReduceArgs args = reduce_args(sum, sum.num_local * sum.capacity, num_errors);
  args.sum_source = cuda::SumSource::kBatched;
  args.map = memory.place_in(workspace.data());
  args.capacity = sum.capacity;
  cuda::MapArgs map;
  map.ids = sum.ids;
  map.map = args.map;
  map.first_expert = sum.first_expert;
  map.is_strict = false;
  map.is_once_a_token = true;
  map.is_aligned = false;
  map.counts = reinterpret_cast<std::int32_t*>(workspace.data() + memory.counts_offset);
  map.num_rows = reinterpret_cast<std::int64_t*>(workspace.data() + memory.num_rows_offset);
  const CudaModule& module = cuda_module();
  module.map_choices(map, stream);
  module.reduce_rows(args, stream);
}

}  // namespace

std::size_t weight_and_reduce_workspace_bytes(const WeightAndReduce& policy,
                                              std::int64_t num_tokens, std::int64_t num_topk,
                                              std::int64_t num_local_experts) {
  if (policy.kind != WeightAndReduceKind::kNaiveBatched) return 0;
  return checked_choice_map("weight_and_reduce_workspace_bytes",
                            {nullptr, false, num_tokens, num_topk, 0, 0}, num_local_experts)
      .num_bytes;
}

TensorView weight_and_reduce(const WeightAndReduce& policy,
                             const WeightAndReduceArguments& arguments, const TensorView& output,
                             Stream stream, std::span<std::byte> workspace,
                             const TensorView& num_errors) {
  require_device(kFunction, stream.device(),
                 {{"expert_output", arguments.expert_output},
                  {"topk_weights", arguments.topk_weights},
                  {"topk_ids", arguments.topk_ids},
                  {"expert_map", arguments.expert_map},
                  {"output", output},
                  {"num_errors", num_errors}});
  if (stream.device().is_cpu()) return host::weight_and_reduce(policy, arguments, output);
  switch (policy.kind) {
    case WeightAndReduceKind::kNoOp: return no_op(arguments.expert_output, output, stream);
    case WeightAndReduceKind::kContiguous:
      contiguous(policy, arguments, output, stream, num_errors);
      return output;
    case WeightAndReduceKind::kNaiveBatched:
      naive_batched(policy, arguments, output, workspace, stream, num_errors);
      return output;
    case WeightAndReduceKind::kDelegate: break;
  }
  fail_delegate();
}

}  // namespace switchyard
