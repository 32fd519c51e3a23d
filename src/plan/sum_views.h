// SPDX-License-Identifier: Apache-2.0
//
// sum_views.h: checks the tensors of weight_and_reduce, for host and device. No element is read.
// Errors: kInvalidArgument.
#pragma once

#include "switchyard/weight_and_reduce.h"

#include "plan/row_views.h"

namespace switchyard {

/// kNoOp: whether rows must be copied, and their source and destination.
struct NoOpViews {
  bool is_copy = false;
  ByteRows from;
  ByteRows to;
};
NoOpViews check_no_op(const TensorView& expert_output, const TensorView& output);

/// Arguments common to the two policies that sum.
struct SumViews {
  IdTable ids;
  ExpertLookup lookup;             ///< only for kContiguous with skips_padding
  const float* weights = nullptr;  ///< [T, K]; null when already applied to the experts' input
  std::byte* rows = nullptr;       ///< contiguous rows of out.row_bytes each
  ByteRows out;
  std::int64_t hidden = 0;
  DType dtype = DType::kBF16;
  std::int64_t first_expert = 0;  ///< only for kNaiveBatched, like the next two
  std::int64_t num_local = 0;
  std::int64_t capacity = 0;

  SWITCHYARD_HOST_DEVICE std::byte* row(std::int64_t n) const {
    return rows + n * static_cast<std::int64_t>(out.row_bytes);
  }
};
SumViews check_contiguous(const WeightAndReduce& policy, const WeightAndReduceArguments& arguments,
                          const TensorView& output);
SumViews check_naive_batched(const WeightAndReduce& policy,
                             const WeightAndReduceArguments& arguments, const TensorView& output);

/// Throws the error for policy kDelegate.
[[noreturn]] void fail_delegate();

}  // namespace switchyard
