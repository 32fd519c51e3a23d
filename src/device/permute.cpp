// SPDX-License-Identifier: Apache-2.0
//
// permute.cpp: the permute family. On the host the calls run at once; for a GPU shapes are checked
// by the same code, values by the kernels.

#include "switchyard/permute.h"

#include <algorithm>
#include <limits>

#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "device/call_checks.h"
#include "device/cuda_module.h"
#include "plan/host_permute.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

// Rows that any routing may need, checked against the buffer's.
void check_capacity(const char* function, const IdTable& ids, std::int64_t num_local,
                    std::int64_t alignment, std::int64_t num_rows) {
  checked_align_up(function, 0, alignment);
  const std::int64_t bound =
      num_local == 0 ? 0 : compute_aligned_m(ids.num_tokens, ids.num_topk, num_local, alignment);
  require(bound <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "{}: {} rows, must be at most 2^31 - 1; rows are named by 32-bit indices", function,
          bound);
  require(num_rows >= bound, Errc::kWorkspaceTooSmall,
          "{}: the buffer has {} rows, any routing needs {}; ask compute_aligned_m()", function,
          num_rows, bound);
}

cuda::ScaleMove scale_move(const RowMove& move) {
  if (!move.scales.has_value()) return {};
  const TensorView& from = move.scales;
  const TensorView& to = move.out_scales;
  cuda::ScaleMove scales{from.as<std::byte>(), to.as<std::byte>(), from.shape(1), to.shape(1),
                         from.stride(0),       from.stride(1),     to.stride(0),  to.stride(1)};
  scales.word_bytes = bits_of(to.dtype()) / 8;
  scales.packs = packs_scales(from, to.dtype());
  return scales;
}

cuda::MapArgs map_args(const char* function, const IdTable& ids, const PermuteOptions& options,
                       const ScatterOutputs& outputs, const ChoiceMapMemory& memory,
                       std::span<std::byte> workspace) {
  cuda::MapArgs args;
  args.ids = ids;
  args.lookup = expert_lookup(function, options.expert_map);
  args.map = memory.place_in(workspace.data());
  // Beyond 32 bits only where there is nothing to align.
  args.alignment = static_cast<std::int32_t>(
      std::min<std::int64_t>(options.alignment, std::numeric_limits<std::int32_t>::max()));
  args.first_row = outputs.first_row.as<std::int64_t>();
  std::byte* counts = workspace.data() + memory.counts_offset;
  std::byte* num_rows = workspace.data() + memory.num_rows_offset;
  args.counts = outputs.expert_num_tokens.has_value() ? outputs.expert_num_tokens.as<std::int32_t>()
                                                      : reinterpret_cast<std::int32_t*>(counts);
  args.num_rows = outputs.num_rows.has_value() ? outputs.num_rows.as<std::int64_t>()
                                               : reinterpret_cast<std::int64_t*>(num_rows);
  const TensorView& known = options.expert_num_tokens;
  if (!known.has_value()) return args;
  check_flat(function, "expert_num_tokens", known, DType::kI32, memory.map.num_local);
  args.known = known.as<std::int32_t>();
  return args;
}

void require_tables(const char* function, Stream stream, const PermuteOptions& options,
                    const ScatterOutputs& outputs) {
  require_device(function, stream.device(),
                 {{"options.expert_map", options.expert_map},
                  {"options.expert_num_tokens", options.expert_num_tokens},
                  {"outputs.x", outputs.x},
                  {"outputs.scales", outputs.scales},
                  {"outputs.m_indices", outputs.m_indices},
                  {"outputs.inv_perm", outputs.inv_perm},
                  {"outputs.first_row", outputs.first_row},
                  {"outputs.expert_num_tokens", outputs.expert_num_tokens},
                  {"outputs.num_rows", outputs.num_rows}});
}

// Both entry points; `move` is empty for the plan alone.
void scatter(const char* function, const IdTable& ids, const RowMove& move, std::int64_t num_rows,
             const PermuteOptions& options, const ScatterOutputs& outputs,
             std::span<std::byte> workspace, Stream stream, const TensorView& num_errors) {
  const std::int64_t num_local = check_plan_outputs(function, ids, num_rows, outputs);
  const ChoiceMapMemory memory = checked_choice_map(function, ids, num_local);
  check_capacity(function, ids, num_local, options.alignment, num_rows);
  check_workspace(function, workspace, memory.num_bytes);
  cuda::MapArgs map = map_args(function, ids, options, outputs, memory, workspace);
  map.num_errors = error_word(function, num_errors);
  cuda::ScatterArgs args;
  args.num_local = num_local;
  args.from = move.from;
  args.to = move.to;
  args.scales = scale_move(move);
  args.num_topk = ids.num_topk;
  args.inv_perm = outputs.inv_perm.as<std::int32_t>();
  args.m = num_rows;
  args.reads_ahead = map.lookup.map == nullptr || 2 * num_local >= map.lookup.num_experts;
  args.counts = map.counts;
  args.first_row = map.first_row;
  args.num_rows = map.num_rows;
  map.inv_perm = outputs.inv_perm.as<std::int32_t>();
  map.m_indices = outputs.m_indices.as<std::int32_t>();
  map.m = num_rows;
  map.is_padding_owned = options.compat_padding == CompatPadding::kOwner;
  if (args.scales.has_columns()) map.tokens = reinterpret_cast<std::int32_t*>(args.scales.to);
  const CudaModule& module = cuda_module();
  module.map_choices(map, stream);
  module.scatter_rows(args, stream);
}

}  // namespace

std::size_t ep_scatter_workspace_bytes(std::int64_t num_tokens, std::int64_t num_topk,
                                       std::int64_t num_local_experts) {
  return checked_choice_map("ep_scatter_workspace_bytes",
                            {nullptr, false, num_tokens, num_topk, 0, 0}, num_local_experts)
      .num_bytes;
}

void ep_scatter(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                const PermuteOptions& options, const ScatterOutputs& outputs, Stream stream,
                std::span<std::byte> workspace, const TensorView& num_errors) {
  constexpr const char* kFunction = "ep_scatter";
  require_device(
      kFunction, stream.device(),
      {{"x", x}, {"scales", scales}, {"topk_ids", topk_ids}, {"num_errors", num_errors}});
  require_tables(kFunction, stream, options, outputs);
  if (stream.device().is_cpu()) return host::ep_scatter(x, scales, topk_ids, options, outputs);
  const IdTable ids = id_table(kFunction, topk_ids);
  check_input_rows(kFunction, x, scales, ids.num_tokens);
  check_output_rows(kFunction, x, outputs.x);
  const RowMove move = check_row_move(kFunction, x, scales, outputs.x, outputs.scales);
  scatter(kFunction, ids, move, move.to.num_rows, options, outputs, workspace, stream, num_errors);
}

void plan_permute(const TensorView& topk_ids, const PermuteOptions& options,
                  const ScatterOutputs& outputs, Stream stream, std::span<std::byte> workspace,
                  const TensorView& num_errors) {
  constexpr const char* kFunction = "plan_permute";
  require_device(kFunction, stream.device(), {{"topk_ids", topk_ids}, {"num_errors", num_errors}});
  require_tables(kFunction, stream, options, outputs);
  require(!outputs.x.has_value() && !outputs.scales.has_value(), Errc::kInvalidArgument,
          "plan_permute: outputs have x or scales, must be the plan alone; call ep_scatter()");
  if (stream.device().is_cpu()) return host::plan_permute(topk_ids, options, outputs);
  scatter(kFunction, id_table(kFunction, topk_ids), {}, outputs.m_indices.num_elements(), options,
          outputs, workspace, stream, num_errors);
}

void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
               const TensorView& topk_weights, const TensorView& inv_perm,
               const TensorView& expert_map, const TensorView& output, Stream stream,
               const TensorView& num_errors) {
  require_device("ep_gather", stream.device(),
                 {{"expert_output", expert_output},
                  {"topk_ids", topk_ids},
                  {"topk_weights", topk_weights},
                  {"inv_perm", inv_perm},
                  {"expert_map", expert_map},
                  {"output", output},
                  {"num_errors", num_errors}});
  if (stream.device().is_cpu()) {
    return host::ep_gather(expert_output, topk_ids, topk_weights, inv_perm, expert_map, output);
  }
  const GatherViews views =
      check_gather(expert_output, topk_ids, topk_weights, inv_perm, expert_map, output);
  check_grid("ep_gather", views.ids);
  cuda::ReduceArgs args;
  args.sum_source = cuda::SumSource::kGather;
  args.ids = views.ids;
  args.lookup = views.lookup;
  if (topk_weights.has_value()) {
    args.weights = topk_weights.as<float>();
    args.weight_token_stride = topk_weights.stride(0);
    args.weight_choice_stride = topk_weights.stride(1);
  }
  args.inv_perm = inv_perm.as<std::int32_t>();
  args.inv_perm_token_stride = inv_perm.stride(0);
  args.inv_perm_choice_stride = inv_perm.stride(1);
  args.rows = views.rows;
  args.out = views.out;
  args.hidden = output.shape(1);
  args.row_dtype = expert_output.dtype();
  args.out_dtype = output.dtype();
  args.num_errors = error_word("ep_gather", num_errors);
  cuda_module().reduce_rows(args, stream);
}

void unpermute_and_reduce(const TensorView& expert_output, const TensorView& inv_perm,
                          const TensorView& topk_weights, const TensorView& output, Stream stream,
                          const TensorView& num_errors) {
  require_device("unpermute_and_reduce", stream.device(),
                 {{"expert_output", expert_output},
                  {"inv_perm", inv_perm},
                  {"topk_weights", topk_weights},
                  {"output", output},
                  {"num_errors", num_errors}});
  if (stream.device().is_cpu()) host::check_inv_perm(inv_perm);
  ep_gather(expert_output, inv_perm, topk_weights, inv_perm, {}, output, stream, num_errors);
}

void count_expert_num_tokens(const TensorView& topk_ids, const TensorView& expert_num_tokens,
                             const TensorView& expert_map, Stream stream,
                             const TensorView& num_errors) {
  constexpr const char* kFunction = "count_expert_num_tokens";
  require_device(kFunction, stream.device(),
                 {{"topk_ids", topk_ids},
                  {"expert_num_tokens", expert_num_tokens},
                  {"expert_map", expert_map},
                  {"num_errors", num_errors}});
  if (stream.device().is_cpu()) {
    return host::count_expert_num_tokens(topk_ids, expert_num_tokens, expert_map);
  }
  cuda::CountArgs args;
  args.ids = any_id_table(kFunction, topk_ids);
  args.lookup = expert_lookup(kFunction, expert_map);
  args.num_local = expert_num_tokens.num_elements();
  check_flat(kFunction, "expert_num_tokens", expert_num_tokens, DType::kI32, args.num_local);
  checked_num_experts(kFunction, args.num_local);
  checked_num_choices(kFunction, args.ids);
  args.counts = expert_num_tokens.as<std::int32_t>();
  args.num_errors = error_word(kFunction, num_errors);
  cuda_module().count_experts(args, stream);
}

void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                      const TensorView& local_ids, Stream stream, const TensorView& num_errors) {
  constexpr const char* kFunction = "apply_expert_map";
  require_device(kFunction, stream.device(),
                 {{"topk_ids", topk_ids},
                  {"expert_map", expert_map},
                  {"local_ids", local_ids},
                  {"num_errors", num_errors}});
  if (stream.device().is_cpu()) return host::apply_expert_map(topk_ids, expert_map, local_ids);
  const MappedIds views = check_mapped_ids(topk_ids, expert_map, local_ids);
  checked_num_choices(kFunction, views.ids);
  cuda_module().map_ids({views.ids, views.lookup, views.local, error_word(kFunction, num_errors)},
                        stream);
}

void expert_num_tokens_round_up_and_sum(const TensorView& expert_num_tokens, std::int64_t alignment,
                                        const TensorView& sum, Stream stream,
                                        const TensorView& num_errors) {
  constexpr const char* kFunction = "expert_num_tokens_round_up_and_sum";
  constexpr std::int64_t kMaxAlignment = std::numeric_limits<std::int32_t>::max();
  require_device(
      kFunction, stream.device(),
      {{"expert_num_tokens", expert_num_tokens}, {"sum", sum}, {"num_errors", num_errors}});
  cuda::RoundUpArgs args;
  args.num_local = expert_num_tokens.num_elements();
  check_flat(kFunction, "expert_num_tokens", expert_num_tokens, DType::kI32, args.num_local);
  checked_num_experts(kFunction, args.num_local);
  require(alignment >= 1 && alignment <= kMaxAlignment, Errc::kInvalidArgument,
          "{}: alignment is {}, must be from 1 to {}", kFunction, alignment, kMaxAlignment);
  check_flat(kFunction, "sum", sum, DType::kI64, 1);
  if (stream.device().is_cpu()) {
    *sum.as<std::int64_t>() = expert_num_tokens_round_up_and_sum(expert_num_tokens, alignment);
    return;
  }
  args.counts = expert_num_tokens.as<std::int32_t>();
  args.alignment = alignment;
  args.sum = sum.as<std::int64_t>();
  args.num_errors = error_word(kFunction, num_errors);
  cuda_module().round_up_and_sum(args, stream);
}

}  // namespace switchyard
