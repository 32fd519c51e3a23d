// SPDX-License-Identifier: Apache-2.0
//
// check_matrix.h: checks dtype, shape and address of the tensor arguments of the exchange.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "switchyard/tensor.h"

namespace switchyard {

inline constexpr std::int64_t kAnyRows = -1;

/// Requirements on a two-dimensional tensor. Its address must be aligned to the element size.
struct MatrixRule {
  const char* function;
  std::string_view name;
  std::initializer_list<DType> dtypes;
  std::int64_t num_rows;  ///< kAnyRows: the tensor determines T
  std::int64_t num_columns;
  bool may_have_row_stride = false;  ///< rows are contiguous, but may lie apart
};

/// Errors: kInvalidArgument, stating what the tensor is and what it must be.
void check_matrix(const TensorView& view, const MatrixRule& rule);

/// Whether the elements of each row, along the last dimension, lie side by side.
bool has_contiguous_rows(const TensorView& view);

/// Unless the view is empty, its address must be non-null and aligned to the element size.
/// Errors: kInvalidArgument.
void check_address(const TensorView& view, const char* function, std::string_view name);

}  // namespace switchyard
