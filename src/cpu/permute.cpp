// SPDX-License-Identifier: Apache-2.0
//
// permute.cpp: checks everything, plans by plan/permute.h, then moves rows.

#include "switchyard/permute.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "core/bytes.h"
#include "core/format.h"
#include "cpu/permute_rows.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

void check_rows(const char* function, const TensorView& x, const TensorView& scales,
                std::int64_t num_tokens) {
  require(x.num_dims() == 2 && x.shape(0) == num_tokens, Errc::kInvalidArgument,
          "{}: x is {}, want [{}, hidden], a row for each token of topk_ids", function, x,
          num_tokens);
  require(!scales.has_value() || (scales.num_dims() == 2 && scales.shape(0) == num_tokens),
          Errc::kInvalidArgument, "{}: scales is {}, want [{}, scales]", function, scales,
          num_tokens);
}

void check_output_rows(const char* function, const TensorView& x, const TensorView& out) {
  require(out.num_dims() == 2 && out.dtype() == x.dtype() && out.shape(1) == x.shape(1),
          Errc::kInvalidArgument, "{}: output x is {}, want {} [rows, {}]", function, out,
          name_of(x.dtype()), x.shape(1));
}

// What both entry points do once there is a plan. The constructors check, so that nothing is
// written before everything is known to be right.
struct Mover {
  Mover(const char* function, const TensorView& x, const TensorView& scales,
        const TensorView& out_x, const TensorView& out_scales)
      : from(byte_rows(function, "x", x, false)), to(byte_rows(function, "output x", out_x, true)) {
    if (!scales.has_value()) return;
    require(out_scales.num_dims() == 2 && out_scales.shape(0) == to.num_rows,
            Errc::kInvalidArgument, "{}: output scales is {}, want [{}, scales] for scales {}",
            function, out_scales, to.num_rows, scales);
    scale_scatter.emplace(function, scales, out_scales);
  }

  void run(const Destinations& destinations) const {
    scatter_rows(from, destinations, to);
    if (scale_scatter) scale_scatter->run(destinations);
  }

  ByteRows from;
  ByteRows to;
  std::optional<ScaleScatter> scale_scatter;
};

// Memory for scales [num_rows, S] in the layout; the view is their logical shape.
void allocate_scales(const TensorView& scales, std::int64_t num_rows, const PermuteMemory& memory,
                     Permuted& permuted) {
  const bool packs = memory.packs_scales;
  require(!packs || packs_scales(scales, DType::kI32), Errc::kInvalidArgument,
          "permute: packs_scales with scales {}, want e8m0 or u8", scales);
  require(memory.scale_layout != ScaleLayout::kSwizzled, Errc::kInvalidArgument,
          "permute: scale_layout is swizzled, want row-major or column-major");
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

}  // namespace

void ep_scatter(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                const PermuteOptions& options, const ScatterOutputs& outputs) {
  constexpr const char* kFunction = "ep_scatter";
  const IdTable ids = id_table(kFunction, topk_ids);
  check_rows(kFunction, x, scales, ids.num_tokens);
  check_output_rows(kFunction, x, outputs.x);
  const Mover mover(kFunction, x, scales, outputs.x, outputs.scales);
  check_flat(kFunction, "m_indices", outputs.m_indices, DType::kI32, mover.to.num_rows);
  check_flat(kFunction, "inv_perm", outputs.inv_perm, DType::kI32, topk_ids.num_elements());
  const std::int64_t num_local = outputs.first_row.num_elements();
  check_flat(kFunction, "first_row", outputs.first_row, DType::kI64, num_local);

  // The plan's own memory is small beside the rows, so one way of planning serves both callers.
  const PermutePlan plan = build_plan(kFunction, ids, num_local, options, mover.to.num_rows);
  const auto copy = [](const auto* from, std::int64_t count, const TensorView& to) {
    std::copy(from, from + count, to.as<std::remove_cvref_t<decltype(*from)>>());
  };
  copy(plan.m_indices.as<std::int32_t>(), plan.num_rows(), outputs.m_indices);
  copy(plan.inv_perm.as<std::int32_t>(), topk_ids.num_elements(), outputs.inv_perm);
  copy(plan.first_row.data(), num_local, outputs.first_row);
  mover.run({plan.inv_perm.as<std::int32_t>(), ids.num_topk});
}

Permuted permute(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                 std::int32_t num_local_experts, const PermuteOptions& options,
                 const PermuteMemory& memory) {
  constexpr const char* kFunction = "permute";
  const IdTable ids = id_table(kFunction, topk_ids);
  const TensorView row_scales = is_tensor_scale(scales) ? TensorView() : scales;
  check_rows(kFunction, x, row_scales, ids.num_tokens);
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
  const Mover mover(kFunction, x, row_scales, permuted.x, permuted.scales);
  mover.run({permuted.plan.inv_perm.as<std::int32_t>(), ids.num_topk});
  return permuted;
}

ExpertRows Permuted::expert_rows(const QuantScheme& scheme, const TensorView& tensor_scale) const {
  return {x, scales, scheme, plan.first_row, plan.expert_num_tokens, tensor_scale};
}

}  // namespace switchyard
