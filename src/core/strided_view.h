// SPDX-License-Identifier: Apache-2.0
//
// strided_view.h: views whose number of dimensions is known only at run time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "switchyard/tensor.h"

namespace switchyard {

/// `strides` are as many as the dimensions, from 0 to kMaxDims. Those of an array without elements
/// mean nothing, and libraries differ in them: it is contiguous here.
inline TensorView strided_view(const void* data, DType dtype, std::span<const std::int64_t> shape,
                               std::span<const std::int64_t> strides, Device device) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return {data, dtype, shape, device};
  // TensorView takes strides as a list whose length is known to the compiler.
  const auto of = [&]<std::size_t... kDim>(std::index_sequence<kDim...>) {
    return TensorView(data, dtype, {shape[kDim]...}, {strides[kDim]...}, device);
  };
  switch (shape.size()) {
    case 0: return TensorView(data, dtype, shape, device);
    case 1: return of(std::make_index_sequence<1>());
    case 2: return of(std::make_index_sequence<2>());
    case 3: return of(std::make_index_sequence<3>());
    case 4: return of(std::make_index_sequence<4>());
    case 5: return of(std::make_index_sequence<5>());
    default: return of(std::make_index_sequence<kMaxDims>());
  }
}

}  // namespace switchyard
