// SPDX-License-Identifier: Apache-2.0
//
// tensors.h: helpers shared by tests of whole tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "core/random.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard::test {

inline Tensor normal_tensor(DType dtype, std::initializer_list<std::int64_t> shape,
                            std::uint64_t seed = 7) {
  Tensor x(dtype, shape);
  for (std::int64_t i = 0; i < x.view().num_elements(); ++i) {
    scalar::store(x.data(), dtype, i,
                  static_cast<float>(random_normal(seed, static_cast<std::uint64_t>(i))));
  }
  return x;
}

inline std::vector<std::uint8_t> bytes_of(const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  return {bytes, bytes + num_bytes};
}

inline std::vector<std::uint8_t> bytes_of(const TensorView& contiguous) {
  return bytes_of(contiguous.data(), contiguous.num_bytes());
}

}  // namespace switchyard::test
