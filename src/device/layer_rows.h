// SPDX-License-Identifier: Apache-2.0
//
// layer_rows.h: small steps of the prepare/finalize classes and of the modular kernel, on either
// device. Callers have checked shapes and devices.
#pragma once

#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cuda/experts/layer_rows.h"

namespace switchyard {

/// Ids in another numbering; see cuda::RenameIdsArgs. With a table on the host, an id that it does
/// not have is kInvalidArgument instead of `invalid`.
void rename_ids(const cuda::RenameIdsArgs& args, Stream stream);

/// Ids of expert-major rows; see cuda::MarkRowsArgs.
void mark_rows(const cuda::MarkRowsArgs& args, Stream stream);

/// to[t] = round(from[t] * round(weights[t])): weights are rounded to the dtype of the rows, as in
/// the originals, and products are f32. [T, H], contiguous, of one dtype; weights [T] f32.
void weigh_rows(const TensorView& from, const TensorView& weights, const TensorView& to,
                Stream stream);

/// Contiguous tensors of equal size.
void copy_tensor(const TensorView& from, const TensorView& to, Stream stream);

/// sums[m] = round(sum over k ascending, where expert_map has topk_ids[m, k], of
/// fma(weights[m, k], rows[m, k], sum)), in f32 from +0. rows [M, K, H], sums [M, H], contiguous;
/// weights [M, K] f32, or absent: 1.
void sum_choices(const TensorView& rows, const TensorView& topk_ids, const TensorView& weights,
                 const TensorView& expert_map, const TensorView& sums, Stream stream);

/// rows[t] = round(fma(sigmoid(hidden[t] . gate), rows[t], +0)), in place. hidden [T, H], rows
/// [T, H] bf16, gate of H elements; `weights` is scratch, [T] f32.
void gate_rows(const TensorView& hidden, const TensorView& gate, const TensorView& weights,
               const TensorView& rows, Stream stream);

}  // namespace switchyard
