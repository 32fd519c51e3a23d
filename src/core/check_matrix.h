// SPDX-License-Identifier: Apache-2.0
//
// check_matrix.h: what every tensor argument of the exchange must be.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "switchyard/tensor.h"

namespace switchyard {

inline constexpr std::int64_t kAnyRows = -1;

/// A tensor of two dimensions, aligned to its elements.
struct MatrixRule {
  const char* function;
  std::string_view name;
  std::initializer_list<DType> dtypes;
  std::int64_t num_rows;  ///< kAnyRows: T is the tensor's own
  std::int64_t num_columns;
  bool may_have_row_stride = false;  ///< rows contiguous, but not one behind the other
};

/// Errors: kInvalidArgument, with what the tensor is and what it must be.
void check_matrix(const TensorView& view, const MatrixRule& rule);

/// Elements, if there are any, must be somewhere, aligned to their size.
void check_address(const TensorView& view, const char* function, std::string_view name);

}  // namespace switchyard
