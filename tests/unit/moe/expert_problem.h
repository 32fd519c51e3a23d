// SPDX-License-Identifier: Apache-2.0
//
// expert_problem.h: random weights and rows of every dtype and scheme, and the expert MLP written
// once more as plainly as possible: scalar loops over std::fma.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "switchyard/experts.h"

#include "core/aligned_buffer.h"
#include "core/random.h"
#include "quant/exp.h"
#include "quant/scalar.h"

namespace switchyard::test {

/// A weight tensor, its scales when it is e4m3, and its values as f32.
struct Weight {
  Tensor values;
  Tensor scales;
  std::vector<float> wide;

  Weight(DType dtype, std::int64_t experts, std::int64_t n, std::int64_t k, std::uint64_t seed)
      : values(dtype, {experts, n, k}), wide(static_cast<std::size_t>(experts * n * k)) {
    const std::int64_t blocks_n = (n + 127) / 128;
    const std::int64_t blocks_k = (k + 127) / 128;
    if (dtype == DType::kE4M3) scales = Tensor(DType::kF32, {experts, blocks_n, blocks_k});
    const double spread = 1.0 / std::sqrt(static_cast<double>(k));
    for (std::int64_t i = 0; i < experts * n * k; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double normal = random_normal(seed, at) * spread;
      if (dtype != DType::kE4M3) {
        scalar::store(values.data(), dtype, i, static_cast<float>(normal));
        wide[at] = scalar::load(values.data(), dtype, i);
        continue;
      }
      const std::uint8_t code = e4m3_from_f32(static_cast<float>(normal * 256));
      const std::int64_t block =
          (i / (n * k) * blocks_n + i / k % n / 128) * blocks_k + i % k / 128;
      float& scale = scales.as<float>()[block];
      scale = static_cast<float>(
          (1.0 + 0.25 * random_uniform(seed + 1, static_cast<std::size_t>(block))) / 256);
      values.as<std::uint8_t>()[i] = code;
      wide[at] = f32_from_e4m3(code) * scale;
    }
  }
};

struct Problem {
  std::int64_t hidden;
  std::int64_t intermediate;
  std::vector<std::int32_t> num_rows;
  QuantScheme scheme;
  std::vector<std::int64_t> first_row;
  std::int64_t total_rows = 0;
  Weight gate, up, down;
  Tensor rows, scales;
  std::vector<float> x;  // the rows as f32

  /// Two rows that nobody owns stand between experts.
  Problem(std::int64_t hidden_size, std::int64_t intermediate_size,
          std::vector<std::int32_t> counts, DType weight_dtype = DType::kBF16,
          QuantScheme input_scheme = schemes::kNone)
      : hidden(hidden_size),
        intermediate(intermediate_size),
        num_rows(std::move(counts)),
        scheme(input_scheme),
        gate(weight_dtype, num_experts(), intermediate, hidden, 1),
        up(weight_dtype, num_experts(), intermediate, hidden, 3),
        down(weight_dtype, num_experts(), hidden, intermediate, 5) {
    for (const std::int32_t count : num_rows) {
      first_row.push_back(total_rows);
      total_rows += count + 2;
    }
    std::vector<float> values(static_cast<std::size_t>(total_rows * hidden));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(random_normal(7, i));
    }
    set_rows(values);
  }

  std::int64_t num_experts() const { return static_cast<std::int64_t>(num_rows.size()); }

  void set_rows(const std::vector<float>& values) {
    x.resize(values.size());
    Tensor wide(DType::kF32, {total_rows, hidden});
    std::memcpy(wide.data(), values.data(), values.size() * sizeof(float));
    const Tensor back(DType::kF32, {total_rows, hidden});
    if (scheme.is_quantized()) {
      const DType word =
          scheme.scale_format == ScaleFormat::kE8M0Packed ? DType::kI32 : DType::kF32;
      rows = Tensor(scheme.dtype, {total_rows, hidden});
      scales = scheme.group == ScaleGroup::kTensor
                   ? Tensor(word, {1})
                   : Tensor(word, {total_rows, num_scales(scheme, hidden)});
      quantize(wide, scheme, rows, scales);
      dequantize(rows, scales, scheme, back);
      std::memcpy(x.data(), back.data(), x.size() * sizeof(float));
      return;
    }
    rows = Tensor(DType::kBF16, {total_rows, hidden});
    for (std::size_t i = 0; i < values.size(); ++i) {
      rows.as<std::uint16_t>()[i] = bf16_from_f32(values[i]);
      x[i] = f32_from_bf16(rows.as<std::uint16_t>()[i]);
    }
  }

  ExpertWeights weights() const {
    return {gate.values, up.values, down.values, gate.scales, up.scales, down.scales};
  }
  ExpertRows input() const { return {rows, scales, scheme, first_row, num_rows}; }
};

inline std::vector<float> naive_gemm(const std::vector<float>& x, const float* w, std::int64_t rows,
                                     std::int64_t n, std::int64_t k) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      float acc = 0.0f;
      for (std::int64_t i = 0; i < k; ++i) {
        acc = std::fma(x[static_cast<std::size_t>(r * k + i)], w[j * k + i], acc);
      }
      y.push_back(acc);
    }
  }
  return y;
}

/// Rounds the activation between the GEMMs, by the scalar definitions.
inline void naive_round(const QuantScheme& scheme, std::int64_t width, std::vector<float>& h) {
  if (!scheme.is_quantized()) {
    for (float& value : h) value = f32_from_bf16(bf16_from_f32(value));
    return;
  }
  std::vector<std::uint8_t> q(static_cast<std::size_t>(width));
  std::vector<float> scales(static_cast<std::size_t>(num_scales(scheme, width)));
  const auto total = static_cast<std::int64_t>(h.size());
  if (scheme.group == ScaleGroup::kTensor) {
    scales[0] = tensor_scale(scalar::max_magnitude(h.data(), DType::kF32, 0, total));
  }
  for (std::int64_t at = 0; at < total; at += width) {
    scalar::quantize_row(scheme, h.data() + at, DType::kF32, width, q.data(), scales.data(),
                         scales[0]);
    scalar::dequantize_row(scheme, q.data(), scales.data(), width, h.data() + at, scales[0]);
  }
}

constexpr std::uint16_t kUntouchedBits = 0xABCD;

/// What apply should write, rows that nobody owns included.
inline std::vector<std::uint16_t> naive_experts(const Problem& problem,
                                                const QuantScheme& intermediate) {
  const std::int64_t hidden = problem.hidden;
  const std::int64_t width = problem.intermediate;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(problem.total_rows * hidden),
                                 kUntouchedBits);
  for (std::int64_t e = 0; e < problem.num_experts(); ++e) {
    const std::int64_t first = problem.first_row[static_cast<std::size_t>(e)] * hidden;
    const std::int64_t count = problem.num_rows[static_cast<std::size_t>(e)];
    const std::vector<float> x(problem.x.begin() + first,
                               problem.x.begin() + first + count * hidden);
    const std::int64_t at = e * hidden * width;
    std::vector<float> h = naive_gemm(x, problem.gate.wide.data() + at, count, width, hidden);
    const auto up = naive_gemm(x, problem.up.wide.data() + at, count, width, hidden);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] = canonical_f32(silu(h[i]) * up[i]);
    naive_round(intermediate, width, h);
    const auto y = naive_gemm(h, problem.down.wide.data() + at, count, hidden, width);
    for (std::size_t i = 0; i < y.size(); ++i) {
      out[static_cast<std::size_t>(first) + i] = bf16_from_f32(y[i]);
    }
  }
  return out;
}

/// Runs apply with exactly the workspace that it asks for.
inline std::vector<std::uint16_t> run_experts(Experts& experts, const Problem& problem) {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(problem.total_rows * problem.hidden),
                                 kUntouchedBits);
  const AlignedBuffer workspace(experts.workspace_bytes(problem.total_rows));
  experts.apply(problem.input(),
                TensorView(out.data(), DType::kBF16, {problem.total_rows, problem.hidden}),
                {workspace.data(), workspace.size_bytes()});
  return out;
}

}  // namespace switchyard::test
