// SPDX-License-Identifier: Apache-2.0

#include "plan/row_views.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/format.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

// Whether distinct elements are sure to have distinct addresses: one stride steps over the whole
// extent of the other dimension.
bool is_injective(const TensorView& tensor) {
  if (tensor.num_elements() == 0) return true;
  std::int64_t extents[2];
  for (int dim = 0; dim < 2; ++dim) {
    const bool is_single = tensor.shape(dim) <= 1;
    if (!is_single && tensor.stride(dim) < 1) return false;
    extents[dim] = is_single ? 0 : checked_mul(tensor.shape(dim) - 1, tensor.stride(dim));
  }
  checked_mul<std::int64_t>(checked_add(extents[0], extents[1]), bits_of(tensor.dtype()));
  return tensor.shape(0) <= 1 || tensor.shape(1) <= 1 || tensor.stride(0) > extents[1] ||
         tensor.stride(1) > extents[0];
}

void check_scales(const char* function, const TensorView& from, const TensorView& to,
                  std::int64_t num_rows) {
  require(to.num_dims() == 2 && to.shape(0) == num_rows, Errc::kInvalidArgument,
          "{}: output scales is {}, must be [{}, scales] for scales {}", function, to, num_rows,
          from);
  require(from.num_dims() == 2, Errc::kInvalidArgument, "{}: scales is {}, must be [T, S]",
          function, from);
  const bool packs = packs_scales(from, to.dtype());
  require(packs || to.dtype() == from.dtype(), Errc::kInvalidArgument,
          "{}: output scales is {}, must be {} [rows, {}], or i32 for e8m0 scales", function, to,
          name_of(from.dtype()), from.shape(1));
  const std::int64_t num_words = packs ? cdiv<std::int64_t>(from.shape(1), 4) : from.shape(1);
  require(to.shape(1) == num_words, Errc::kInvalidArgument,
          "{}: output scales is {}, must be {} [rows, {}]", function, to, name_of(to.dtype()),
          num_words);
  require(bits_of(from.dtype()) % 8 == 0, Errc::kInvalidArgument,
          "{}: scales is {}, must be elements of whole bytes", function, from);
  require(is_injective(to), Errc::kInvalidArgument,
          "{}: output scales is {}, must be elements that do not overlap", function, to);
}

void check_choices(const char* name, const TensorView& tensor, DType dtype, const IdTable& ids) {
  require(tensor.num_dims() == 2 && tensor.dtype() == dtype && tensor.shape(0) == ids.num_tokens &&
              tensor.shape(1) == ids.num_topk,
          Errc::kInvalidArgument, "ep_gather: {} is {}, must be {} [{}, {}]", name, tensor,
          name_of(dtype), ids.num_tokens, ids.num_topk);
}

void check_floats(const TensorView& expert_output, const TensorView& output, const IdTable& ids) {
  require(expert_output.num_dims() == 2 && is_reducible(expert_output.dtype()),
          Errc::kInvalidArgument,
          "ep_gather: expert_output is {}, must be bf16, f16 or f32 [rows, hidden]", expert_output);
  require(output.num_dims() == 2 && is_reducible(output.dtype()) &&
              output.shape(0) == ids.num_tokens && output.shape(1) == expert_output.shape(1),
          Errc::kInvalidArgument, "ep_gather: output is {}, must be bf16, f16 or f32 [{}, {}]",
          output, ids.num_tokens, expert_output.shape(1));
}

}  // namespace

ByteRows byte_rows(const char* function, const char* name, const TensorView& tensor,
                   bool is_output) {
  require(tensor.num_dims() == 2 && has_contiguous_rows(tensor), Errc::kInvalidArgument,
          "{}: {} is {}, must be [rows, hidden] with contiguous rows", function, name, tensor);
  const std::int64_t bits = bits_of(tensor.dtype());
  const std::int64_t row_bits = checked_mul(tensor.shape(1), bits);
  const std::int64_t stride_bits = checked_mul(tensor.stride(0), bits);
  const bool is_single = tensor.shape(0) <= 1;
  require(row_bits % 8 == 0 && (is_single || stride_bits % 8 == 0), Errc::kInvalidArgument,
          "{}: {} is {}, must be rows of whole bytes", function, name, tensor);
  checked_mul(std::max<std::int64_t>(0, tensor.shape(0) - 1), stride_bits);
  require(!is_output || is_single || stride_bits >= row_bits, Errc::kInvalidArgument,
          "{}: {} is {}, must be rows that do not overlap", function, name, tensor);
  return {tensor.as<std::byte>(), tensor.shape(0), static_cast<std::size_t>(row_bits / 8),
          stride_bits / 8};
}

void check_input_rows(const char* function, const TensorView& x, const TensorView& scales,
                      std::int64_t num_tokens) {
  require(x.num_dims() == 2 && x.shape(0) == num_tokens, Errc::kInvalidArgument,
          "{}: x is {}, must be [{}, hidden], a row for each token of topk_ids", function, x,
          num_tokens);
  require(!scales.has_value() || (scales.num_dims() == 2 && scales.shape(0) == num_tokens),
          Errc::kInvalidArgument, "{}: scales is {}, must be [{}, scales]", function, scales,
          num_tokens);
}

void check_output_rows(const char* function, const TensorView& x, const TensorView& out) {
  require(out.num_dims() == 2 && out.dtype() == x.dtype() && out.shape(1) == x.shape(1),
          Errc::kInvalidArgument, "{}: output x is {}, must be {} [rows, {}]", function, out,
          name_of(x.dtype()), x.shape(1));
}

RowMove check_row_move(const char* function, const TensorView& x, const TensorView& scales,
                       const TensorView& out_x, const TensorView& out_scales) {
  RowMove move{
      byte_rows(function, "x", x, false), byte_rows(function, "output x", out_x, true), {}, {}};
  if (!scales.has_value()) return move;
  check_scales(function, scales, out_scales, move.to.num_rows);
  move.scales = scales;
  move.out_scales = out_scales;
  return move;
}

std::int64_t check_plan_outputs(const char* function, const IdTable& ids, std::int64_t num_rows,
                                const ScatterOutputs& outputs) {
  check_flat(function, "m_indices", outputs.m_indices, DType::kI32, num_rows);
  check_flat(function, "inv_perm", outputs.inv_perm, DType::kI32,
             checked_mul(ids.num_tokens, ids.num_topk));
  const std::int64_t num_local = outputs.first_row.num_elements();
  check_flat(function, "first_row", outputs.first_row, DType::kI64, num_local);
  if (outputs.expert_num_tokens.has_value()) {
    check_flat(function, "output expert_num_tokens", outputs.expert_num_tokens, DType::kI32,
               num_local);
  }
  if (outputs.num_rows.has_value()) {
    check_flat(function, "num_rows", outputs.num_rows, DType::kI64, 1);
  }
  return num_local;
}

GatherViews check_gather(const TensorView& expert_output, const TensorView& topk_ids,
                         const TensorView& topk_weights, const TensorView& inv_perm,
                         const TensorView& expert_map, const TensorView& output) {
  const IdTable ids = id_table("ep_gather", topk_ids);
  const ExpertLookup lookup = expert_lookup("ep_gather", expert_map);
  check_floats(expert_output, output, ids);
  check_choices("inv_perm", inv_perm, DType::kI32, ids);
  if (topk_weights.has_value()) check_choices("topk_weights", topk_weights, DType::kF32, ids);
  return {ids, lookup, byte_rows("ep_gather", "expert_output", expert_output, false),
          byte_rows("ep_gather", "output", output, true)};
}

}  // namespace switchyard
