// SPDX-License-Identifier: Apache-2.0
//
// row_views.h: row tensors in the form that host and device code move, and the argument checks of
// functions that move rows. Messages begin with `function`; errors are kInvalidArgument. No element
// is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/permute.h"

#include "core/host_device.h"
#include "plan/permute.h"

namespace switchyard {

/// Rows [N, H]; the bytes of each row are contiguous.
struct ByteRows {
  std::byte* data = nullptr;
  std::int64_t num_rows = 0;
  std::size_t row_bytes = 0;
  std::int64_t stride_bytes = 0;

  SWITCHYARD_HOST_DEVICE std::byte* row(std::int64_t n) const { return data + n * stride_bytes; }
};

/// Rejects rows with gaps, rows that do not fill whole bytes and, for an output, rows that overlap.
ByteRows byte_rows(const char* function, const char* name, const TensorView& tensor,
                   bool is_output);

/// Whether e8m0 or u8 scales are packed, four per i32.
inline bool packs_scales(const TensorView& from, DType to) {
  return (from.dtype() == DType::kE8M0 || from.dtype() == DType::kU8) && to == DType::kI32;
}

/// Requires x [num_tokens, H] and scales [num_tokens, S], or no scales.
void check_input_rows(const char* function, const TensorView& x, const TensorView& scales,
                      std::int64_t num_tokens);

/// Requires `out` [M, H] with the dtype of x.
void check_output_rows(const char* function, const TensorView& x, const TensorView& out);

/// Rows to move, and their scales [T, S], which become [M, S] or, packed, [M, cdiv(S, 4)]. Both
/// scale tensors are absent when there are no scales.
struct RowMove {
  ByteRows from;
  ByteRows to;
  TensorView scales;
  TensorView out_scales;
};
RowMove check_row_move(const char* function, const TensorView& x, const TensorView& scales,
                       const TensorView& out_x, const TensorView& out_scales);

/// Checks the plan tensors among the outputs of ep_scatter. Returns the number of local experts.
std::int64_t check_plan_outputs(const char* function, const IdTable& ids, std::int64_t num_rows,
                                const ScatterOutputs& outputs);

/// The tensors of ep_gather.
struct GatherViews {
  IdTable ids;
  ExpertLookup lookup;
  ByteRows rows;
  ByteRows out;
};
GatherViews check_gather(const TensorView& expert_output, const TensorView& topk_ids,
                         const TensorView& topk_weights, const TensorView& inv_perm,
                         const TensorView& expert_map, const TensorView& output);

/// True for bf16, f16 and f32.
inline bool is_reducible(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace switchyard
