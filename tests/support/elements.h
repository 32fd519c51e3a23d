// SPDX-License-Identifier: Apache-2.0
//
// elements.h: vectors as views, views as ranges, and tensors of the shape of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

namespace switchyard::test {

/// The elements of a contiguous view of host memory; of an absent one none.
template <typename T>
std::span<const T> elements(const TensorView& view) {
  return {view.as<T>(), static_cast<std::size_t>(view.num_elements())};
}

/// A vector as a view of one dimension.
template <typename T>
TensorView view_of(const std::vector<T>& values) {
  return TensorView::of(values.data(), {static_cast<std::int64_t>(values.size())});
}

/// Zeros of the shape of rows, [N, H] or [L, C, H].
inline Tensor zeros_like(const TensorView& rows, DType dtype = DType::kBF16) {
  if (rows.num_dims() == 3) return {dtype, {rows.shape(0), rows.shape(1), rows.shape(2)}};
  return {dtype, {rows.shape(0), rows.shape(1)}};
}

}  // namespace switchyard::test
