// SPDX-License-Identifier: Apache-2.0
//
// permute.cpp: checks all arguments, plans with plan/permute.h, then moves rows.

#include "switchyard/permute.h"

#include <algorithm>
#include <type_traits>

#include "core/bytes.h"
#include "core/format.h"
#include "core/require_device.h"
#include "cpu/permute_rows.h"
#include "plan/host_permute.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

void move_rows(const RowMove& move, const Destinations& destinations) {
  scatter_rows(move.from, destinations, move.to);
  if (move.scales.has_value()) ScaleScatter(move.scales, move.out_scales).run(destinations);
}

// Allocates scales [num_rows, S] in the requested layout; the view has their logical shape.
void allocate_scales(const TensorView& scales, std::int64_t num_rows, const PermuteMemory& memory,
                     Permuted& permuted) {
  const bool packs = memory.packs_scales;
  require(!packs || packs_scales(scales, DType::kI32), Errc::kInvalidArgument,
          "permute: packs_scales with scales {}, must be e8m0 or u8", scales);
  require(memory.scale_layout != ScaleLayout::kSwizzled, Errc::kInvalidArgument,
          "permute: scale_layout is swizzled, must be row-major or column-major");
  const DType dtype = packs ? DType::kI32 : scales.dtype();
  const std::int64_t columns = packs ? cdiv<std::int64_t>(scales.shape(1), 4) : scales.shape(1);
  const bool is_aligned = memory.scale_layout == ScaleLayout::kColumnMajorAligned;
  const std::int64_t stride = is_aligned ? align_up<std::int64_t>(num_rows, 4) : num_rows;
  if (memory.scale_layout == ScaleLayout::kRowMajor) {
    permuted.scales_memory = Tensor(dtype, {num_rows, columns});
    permuted.scales = permuted.scales_memory;
    return;
  }
  permuted.scales_memory = Tensor(dtype, {columns, stride});
  permuted.scales =
      TensorView(permuted.scales_memory.data(), dtype, {num_rows, columns}, {1, stride});
}

bool is_tensor_scale(const TensorView& scales) {
  return scales.num_dims() == 1 && scales.shape(0) == 1;
}

// The plan's own memory is small beside the rows, so one way of planning serves all callers.
PermutePlan plan_into(const char* function, const IdTable& ids, std::int64_t num_local,
                      const PermuteOptions& options, const ScatterOutputs& outputs,
                      std::int64_t num_rows) {
  PermutePlan plan = build_plan(function, ids, num_local, options, num_rows);
  const auto copy = [](const auto* from, std::int64_t count, const TensorView& to) {
    std::copy(from, from + count, to.as<std::remove_cvref_t<decltype(*from)>>());
  };
  copy(plan.m_indices.as<std::int32_t>(), plan.num_rows(), outputs.m_indices);
  copy(plan.inv_perm.as<std::int32_t>(), ids.num_tokens * ids.num_topk, outputs.inv_perm);
  copy(plan.first_row.data(), num_local, outputs.first_row);
  if (outputs.expert_num_tokens.has_value()) {
    copy(plan.expert_num_tokens.data(), num_local, outputs.expert_num_tokens);
  }
  if (outputs.num_rows.has_value()) {
    *outputs.num_rows.as<std::int64_t>() =
        start_experts(function, plan.expert_num_tokens, options.alignment, {});
  }
  return plan;
}

}  // namespace

namespace host {

void ep_scatter(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                const PermuteOptions& options, const ScatterOutputs& outputs) {
  constexpr const char* kFunction = "ep_scatter";
  const IdTable ids = id_table(kFunction, topk_ids);
  check_input_rows(kFunction, x, scales, ids.num_tokens);
  check_output_rows(kFunction, x, outputs.x);
  const RowMove move = check_row_move(kFunction, x, scales, outputs.x, outputs.scales);
  const std::int64_t num_local = check_plan_outputs(kFunction, ids, move.to.num_rows, outputs);

  const PermutePlan plan = plan_into(kFunction, ids, num_local, options, outputs, move.to.num_rows);
  move_rows(move, {plan.inv_perm.as<std::int32_t>(), ids.num_topk});
}

void plan_permute(const TensorView& topk_ids, const PermuteOptions& options,
                  const ScatterOutputs& outputs) {
  constexpr const char* kFunction = "plan_permute";
  const IdTable ids = id_table(kFunction, topk_ids);
  const std::int64_t num_rows = outputs.m_indices.num_elements();
  const std::int64_t num_local = check_plan_outputs(kFunction, ids, num_rows, outputs);
  (void)plan_into(kFunction, ids, num_local, options, outputs, num_rows);
}

}  // namespace host

Permuted permute(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                 std::int32_t num_local_experts, const PermuteOptions& options,
                 const PermuteMemory& memory) {
  constexpr const char* kFunction = "permute";
  require_host(kFunction, {{"x", x},
                           {"scales", scales},
                           {"topk_ids", topk_ids},
                           {"options.expert_map", options.expert_map},
                           {"options.expert_num_tokens", options.expert_num_tokens},
                           {"memory.x", memory.x}});
  const IdTable ids = id_table(kFunction, topk_ids);
  const TensorView row_scales = is_tensor_scale(scales) ? TensorView() : scales;
  check_input_rows(kFunction, x, row_scales, ids.num_tokens);
  if (memory.x.has_value()) check_output_rows(kFunction, x, memory.x);
  Permuted permuted;
  permuted.plan = build_plan(kFunction, ids, num_local_experts, options,
                             memory.x.has_value() ? memory.x.shape(0) : -1);
  const std::int64_t num_rows = permuted.plan.num_rows();
  permuted.x = memory.x;
  permuted.scales = scales;
  if (row_scales.has_value()) allocate_scales(row_scales, num_rows, memory, permuted);
  if (!memory.x.has_value()) {
    permuted.x_memory = Tensor(x.dtype(), {num_rows, x.shape(1)});
    permuted.x = permuted.x_memory;
  }
  move_rows(check_row_move(kFunction, x, row_scales, permuted.x, permuted.scales),
            {permuted.plan.inv_perm.as<std::int32_t>(), ids.num_topk});
  return permuted;
}

ExpertRows Permuted::expert_rows(const QuantScheme& scheme, const TensorView& tensor_scale) const {
  const auto num_local = static_cast<std::int64_t>(plan.first_row.size());
  return {x,
          scales,
          scheme,
          TensorView::of(plan.first_row.data(), {num_local}),
          TensorView::of(plan.expert_num_tokens.data(), {num_local}),
          tensor_scale};
}

}  // namespace switchyard
