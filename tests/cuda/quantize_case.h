// SPDX-License-Identifier: Apache-2.0
//
// quantize_case.h: inputs with every kind of float, in tensors that exist on both processors.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "core/random.h"
#include "gpu.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "tensor_pair.h"

namespace switchyard::test {

/// Schemes without a name, whose blocks only the general kernel supports.
inline std::vector<QuantScheme> unnamed_schemes() {
  std::vector<QuantScheme> schemes{{DType::kF16}, {DType::kF32}};
  for (const std::int32_t block : {1, 7, 64, 128, 300, 100000}) {
    schemes.push_back(
        {DType::kE4M3, ScaleGroup::kBlock, block, ScaleRule::kDivide, ScaleFormat::kF32PowerOfTwo});
    schemes.push_back({DType::kE4M3, ScaleGroup::kBlock, block, ScaleRule::kMultiply,
                       ScaleFormat::kF32PowerOfTwo});
    schemes.push_back({DType::kE4M3, ScaleGroup::kBlock, block, ScaleRule::kMultiply});
    schemes.push_back({DType::kI8, ScaleGroup::kBlock, block});
  }
  return schemes;
}

/// The scale layouts for a matrix: all except swizzled tiles.
inline std::vector<ScaleLayout> matrix_layouts_of(const QuantScheme& scheme) {
  std::vector<ScaleLayout> layouts = layouts_of(scheme);
  if (layouts.back() == ScaleLayout::kSwizzled) layouts.pop_back();
  return layouts;
}

/// Element h of row `row`; each row in eight has its own kind of rare value.
inline float element(std::int64_t row, std::int64_t h) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto counter = static_cast<std::uint64_t>(row * 100003 + h);
  const auto normal = static_cast<float>(random_normal(3, counter));
  const std::uint64_t chance = random_bits(4, counter) % 8;
  switch (row % 8) {
    case 1: return h % 3 == 0 ? -0.0f : 0.0f;
    case 2: return chance == 0 ? std::nanf("1") : chance == 1 ? -0.0f : normal;
    case 3: return chance == 0 ? (h % 2 == 0 ? kInf : -kInf) : normal * 100.0f;
    case 4: return normal * 1e-30f;
    case 5: return normal * 1e37f;
    case 6: return std::ldexp(normal, static_cast<int>(chance) * 4 - 16);
    case 7: return std::round(normal * 4.0f) / 4.0f;  // causes many ties
    default: return normal;
  }
}

/// Rows of `hidden` elements, `stride` elements apart.
inline TensorPair make_rows(DType dtype, std::int64_t num_rows, std::int64_t hidden,
                            std::int64_t stride, std::size_t misalignment = 0) {
  const auto bytes = static_cast<std::size_t>(num_rows * stride * bits_of(dtype) / 8);
  TensorPair rows = TensorPair::bytes(bytes, misalignment);
  for (std::int64_t t = 0; t < num_rows; ++t) {
    for (std::int64_t h = 0; h < hidden; ++h) {
      scalar::store(rows.data(Device::cpu()), dtype, t * stride + h, element(t, h));
    }
  }
  rows.upload();
  return rows;
}

inline std::string describe(const QuantScheme& scheme, DType dtype, std::int64_t num_rows,
                            std::int64_t hidden) {
  return name_of(scheme) + " of " + name_of(dtype) + " [" + std::to_string(num_rows) + ", " +
         std::to_string(hidden) + "]";
}

}  // namespace switchyard::test
