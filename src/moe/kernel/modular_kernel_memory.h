// SPDX-License-Identifier: Apache-2.0
//
// modular_kernel_memory.h: what a modular kernel keeps from call to call, on its device.
#pragma once

#include <memory>

#include "switchyard/modular_kernel.h"

namespace switchyard {

/// Memory of one micro-batch.
struct ModularKernel::Scratch {
  Tensor expert_output;  ///< [N or M, H] bf16
  Tensor expert_workspace;
  // Where rows are token-major.
  Tensor rows;         ///< [M, H] as stored
  Tensor scales;       ///< [M, S], likewise
  Tensor row_experts;  ///< [M] i32
  Tensor inv_perm;     ///< [N, K] i32
  Tensor first_row;    ///< [L] i64
  Tensor num_rows;     ///< [L] i32
  Tensor reduced;      ///< [N, H] bf16
  Tensor permute_workspace;
  // Of the shared expert.
  Tensor shared_rows;     ///< [T, H] bf16
  Tensor shared_weights;  ///< [T] f32
  Tensor shared_workspace;
  /// On GPUs with several micro-batches: for apply_overlapped. One for all where ranks share it.
  std::shared_ptr<CUstream_st> side_stream;
  StageTimes times;
};

/// The shared expert's rows: one expert, with the first t rows of the batch.
struct ModularKernel::SharedMemory {
  Tensor first_row;   ///< [1] i64: 0
  Tensor num_tokens;  ///< [T + 1] i32: entry t is t, a count that needs no copy
};

/// What goes to finalize.
struct ModularKernel::Returned {
  TensorView rows;
  WeightAndReduce weight_and_reduce;
};

}  // namespace switchyard
