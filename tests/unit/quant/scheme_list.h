// SPDX-License-Identifier: Apache-2.0
//
// scheme_list.h: the named schemes, and what tests of whole tensors share.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "core/random.h"
#include "quant/scalar.h"

namespace switchyard::test {

inline std::vector<QuantScheme> all_schemes() {
  std::vector<QuantScheme> schemes;
  for (const char* name : {"none", "fp8_block", "fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep",
                           "fp8_token", "fp8_tensor", "int8_token", "int8_tensor", "int8_block",
                           "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}) {
    schemes.push_back(*scheme_from_name(name));
  }
  return schemes;
}

inline bool has_row_scales(const QuantScheme& scheme) {
  return scheme.is_quantized() && !scheme.is_simulated() && scheme.group != ScaleGroup::kTensor;
}

/// Layouts that the scales of a scheme can have.
inline std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme) {
  if (!has_row_scales(scheme)) return {ScaleLayout::kRowMajor};
  std::vector<ScaleLayout> layouts{ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                   ScaleLayout::kColumnMajorAligned, ScaleLayout::kSwizzled};
  if (bits_of(scale_dtype(scheme)) != 8) layouts.pop_back();
  return layouts;
}

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
