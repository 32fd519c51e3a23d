// SPDX-License-Identifier: Apache-2.0
//
// expert_weight.h: a random weight tensor of any format and its values, decoded by tables.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "switchyard/experts.h"

#include "core/random.h"
#include "quant/scalar.h"
#include "reference/reference.h"

namespace switchyard::test {

/// How weights are stored. Scales and block apply to e4m3, i8 and e2m1.
struct WeightFormat {
  DType dtype = DType::kBF16;
  DType scale_dtype = DType::kF32;
  WeightBlock block{};
  bool has_alpha = false;

  WeightFormat(DType values) : dtype(values) {}  // NOLINT: a dtype alone is a format
  WeightFormat(DType values, DType scales, WeightBlock shared, bool alpha = false)
      : dtype(values), scale_dtype(scales), block(shared), has_alpha(alpha) {}

  bool has_scales() const {
    return dtype == DType::kE4M3 || dtype == DType::kI8 || dtype == DType::kE2M1;
  }
};

inline float value_of(DType dtype, std::uint8_t code) {
  constexpr float kE2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  if (dtype == DType::kE2M1) return kE2M1[code];
  if (dtype == DType::kI8) return code < 128 ? code : static_cast<float>(code) - 256.0f;
  if (dtype == DType::kE8M0) return static_cast<float>(std::ldexp(1.0, code - 127));
  return reference::f32_from_e4m3(code);
}

/// [experts, n, k] with values of about 1 / sqrt(k).
struct Weight {
  Tensor values;
  Tensor scales;
  Tensor alpha;
  std::vector<float> wide;

  Weight(const WeightFormat& format, std::int64_t experts, std::int64_t n, std::int64_t k,
         std::uint64_t seed)
      : values(format.dtype, {experts, n, k}), wide(static_cast<std::size_t>(experts * n * k)) {
    if (format.has_scales()) {
      make_scales(format, experts, n, k, seed + 1);
      make_codes(format, n, k, seed);
      return;
    }
    const double spread = 1.0 / std::sqrt(static_cast<double>(k));
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      scalar::store(values.data(), format.dtype, at,
                    static_cast<float>(random_normal(seed, i) * spread));
      wide[i] = scalar::load(values.data(), format.dtype, at);
    }
  }

 private:
  void make_scales(const WeightFormat& format, std::int64_t experts, std::int64_t n, std::int64_t k,
                   std::uint64_t seed) {
    rows_ = format.block.outputs < 0 ? n : format.block.outputs;
    columns_ = format.block.inputs < 0 ? k : format.block.inputs;
    blocks_n_ = (n + rows_ - 1) / rows_;
    blocks_k_ = (k + columns_ - 1) / columns_;
    scales = Tensor(format.scale_dtype, {experts, blocks_n_, blocks_k_});
    for (std::int64_t i = 0; i < experts * blocks_n_ * blocks_k_; ++i) {
      const double uniform = random_uniform(seed, static_cast<std::uint64_t>(i));
      if (format.scale_dtype == DType::kE8M0 || format.scale_dtype == DType::kE4M3) {
        const int first = format.scale_dtype == DType::kE8M0 ? 118 : 8;
        scales.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(first + 4 * uniform);
      } else {
        scalar::store(scales.data(), format.scale_dtype, i,
                      static_cast<float>((1.0 + uniform) / 512));
      }
    }
    if (!format.has_alpha) return;
    alpha = Tensor(DType::kF32, {experts});
    for (std::int64_t e = 0; e < experts; ++e) {
      alpha.as<float>()[e] = 0.3f + 0.1f * static_cast<float>(e);
    }
  }

  float scale_at(std::int64_t i) const {
    const DType dtype = scales.dtype();
    if (dtype == DType::kE8M0 || dtype == DType::kE4M3) {
      return value_of(dtype, scales.as<std::uint8_t>()[i]);
    }
    return scalar::load(scales.data(), dtype, i);
  }

  void make_codes(const WeightFormat& format, std::int64_t n, std::int64_t k, std::uint64_t seed) {
    const bool is_packed = format.dtype == DType::kE2M1;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      auto code = static_cast<std::uint8_t>(256 * random_uniform(seed, i));
      if (format.dtype == DType::kE4M3) {
        code = reference::e4m3_from_f32(static_cast<float>(16 * random_normal(seed, i)), 0);
      }
      if (is_packed) code &= 15;
      std::uint8_t& byte = values.as<std::uint8_t>()[is_packed ? i / 2 : i];
      byte = is_packed && i % 2 == 1 ? static_cast<std::uint8_t>(byte | code << 4) : code;
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t expert = at / (n * k);
      const std::int64_t block =
          (expert * blocks_n_ + at / k % n / rows_) * blocks_k_ + at % k / columns_;
      float scale = scale_at(block);
      if (alpha.view().has_value()) scale *= alpha.as<float>()[expert];
      wide[i] = value_of(format.dtype, code) * scale;
    }
  }

  std::int64_t rows_ = 1;
  std::int64_t columns_ = 1;
  std::int64_t blocks_n_ = 1;
  std::int64_t blocks_k_ = 1;
};

}  // namespace switchyard::test
