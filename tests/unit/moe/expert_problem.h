// SPDX-License-Identifier: Apache-2.0
//
// expert_problem.h: random weights and rows of every dtype and scheme, and what the oracle says
// that experts return.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "switchyard/experts.h"

#include "core/aligned_buffer.h"
#include "core/random.h"
#include "expert_weight.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "reference/reference.h"
#include "support/elements.h"

namespace switchyard::test {

struct Problem {
  std::int64_t hidden;
  std::int64_t intermediate;
  std::vector<std::int32_t> num_rows;
  QuantScheme scheme;
  std::vector<std::int64_t> first_row;
  std::int64_t total_rows = 0;
  WeightBlock block;
  Weight gate, up, down;
  Tensor gate_bias, up_bias, down_bias;
  Tensor rows, scales, tensor_scale;
  std::vector<float> x;  // the rows as f32

  /// Two unowned rows follow each expert.
  Problem(std::int64_t hidden_size, std::int64_t intermediate_size,
          std::vector<std::int32_t> counts, const WeightFormat& format = DType::kBF16,
          QuantScheme input_scheme = schemes::kNone)
      : hidden(hidden_size),
        intermediate(intermediate_size),
        num_rows(std::move(counts)),
        scheme(input_scheme),
        block(format.block),
        gate(format, num_experts(), intermediate, hidden, 1),
        up(format, num_experts(), intermediate, hidden, 3),
        down(format, num_experts(), hidden, intermediate, 5) {
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
    const DType stored = stored_dtype(scheme);
    const std::int64_t per_row = num_scales(scheme, hidden);
    rows = Tensor(stored, {total_rows, hidden});
    float whole = 1.0f;
    if (scheme.group == ScaleGroup::kTensor) {
      whole = 0.0125f;
      scales = Tensor(DType::kF32, {1});
      scales.as<float>()[0] = whole;
    } else if (per_row > 0) {
      scales = Tensor(scale_dtype(scheme), {total_rows, per_row});
    }
    if (scheme.needs_tensor_scale()) {
      whole = 700.0f;
      tensor_scale = Tensor(DType::kF32, {1});
      tensor_scale.as<float>()[0] = whole;
    }
    for (std::int64_t n = 0; n < total_rows; ++n) {
      std::byte* row = rows.as<std::byte>() + n * (hidden * bits_of(stored) / 8);
      std::byte* scale = scales.as<std::byte>();
      if (scheme.group != ScaleGroup::kTensor) {
        scale += n * (per_row * bits_of(scale_dtype(scheme)) / 8);
      }
      std::vector<std::uint16_t> narrow(static_cast<std::size_t>(hidden));
      for (std::size_t h = 0; h < narrow.size(); ++h) {
        narrow[h] = bf16_from_f32(values[static_cast<std::size_t>(n * hidden) + h]);
      }
      quantize_row(scheme, narrow.data(), DType::kBF16, hidden, row, scale, whole);
      dequantize_row(scheme, row, scale, stored, hidden, x.data() + n * hidden, whole);
    }
  }

  /// Adds biases of about 1.
  void add_biases(DType dtype) {
    const auto make = [&](std::int64_t width, std::uint64_t seed) {
      Tensor bias(dtype, {num_experts(), width});
      for (std::int64_t i = 0; i < num_experts() * width; ++i) {
        scalar::store(bias.data(), dtype, i,
                      static_cast<float>(random_normal(seed, static_cast<std::uint64_t>(i))));
      }
      return bias;
    };
    gate_bias = make(intermediate, 11);
    up_bias = make(intermediate, 12);
    down_bias = make(hidden, 13);
  }

  ExpertWeights weights() const {
    return {gate.values, up.values, down.values, gate.scales, up.scales, down.scales, block,
            gate.alpha,  up.alpha,  down.alpha,  gate_bias,   up_bias,   down_bias};
  }
  ExpertRows input() const {
    return {rows, scales, scheme, view_of(first_row), view_of(num_rows), tensor_scale};
  }
};

constexpr std::uint16_t kUntouchedBits = 0xABCD;

/// What apply should write by the oracle, including unowned rows, as f32.
inline std::vector<float> oracle_values(const Problem& problem, const ExpertOptions& options = {}) {
  const std::int64_t hidden = problem.hidden;
  const std::int64_t width = problem.intermediate;
  const std::int64_t experts = problem.num_experts();
  const auto widen = [&](const Tensor& bias, std::int64_t columns) {
    if (!bias.view().has_value()) return reference::Table<float>{};
    reference::Table<float> wide(experts, columns);
    for (std::size_t i = 0; i < wide.data.size(); ++i) {
      wide.data[i] = scalar::load(bias.data(), bias.dtype(), static_cast<std::int64_t>(i));
    }
    return wide;
  };
  const reference::MlpWeights weights{static_cast<std::int32_t>(experts),
                                      hidden,
                                      width,
                                      {experts * width, hidden, problem.gate.wide},
                                      {experts * width, hidden, problem.up.wide},
                                      {experts * hidden, width, problem.down.wide},
                                      widen(problem.gate_bias, width),
                                      widen(problem.up_bias, width),
                                      widen(problem.down_bias, hidden)};
  std::optional<float> scale;
  if (options.intermediate_scale.has_value()) scale = *options.intermediate_scale.as<float>();
  std::vector<float> out(problem.x.size(), f32_from_bf16(kUntouchedBits));
  for (std::int32_t e = 0; e < weights.num_experts; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const std::int64_t first = problem.first_row[at] * hidden;
    const std::int64_t count = problem.num_rows[at];
    const reference::Table<float> rows(
        count, hidden,
        std::vector<float>(problem.x.begin() + first, problem.x.begin() + first + count * hidden));
    const auto y =
        reference::expert_mlp(weights, e, rows, options.intermediate, options.activation, scale);
    std::copy(y.data.begin(), y.data.end(), out.begin() + first);
  }
  return out;
}

/// The same as bf16.
inline std::vector<std::uint16_t> oracle_experts(const Problem& problem,
                                                 const ExpertOptions& options = {}) {
  std::vector<std::uint16_t> out;
  for (const float value : oracle_values(problem, options)) out.push_back(bf16_from_f32(value));
  return out;
}

/// Runs apply with exactly the workspace it requires.
template <typename Element>
std::vector<Element> run_experts_as(Experts& experts, const Problem& problem, Element untouched) {
  std::vector<Element> out(problem.x.size(), untouched);
  const AlignedBuffer workspace(experts.workspace_bytes(problem.rows));
  experts.apply(
      problem.input(),
      TensorView(out.data(), experts.output_dtype(), {problem.total_rows, problem.hidden}),
      {workspace.data(), workspace.size_bytes()});
  return out;
}

inline std::vector<std::uint16_t> run_experts(Experts& experts, const Problem& problem) {
  return run_experts_as(experts, problem, kUntouchedBits);
}

/// The largest |out - expected| / |expected| of any row, in Euclidean norms.
inline double worst_row_error(const std::vector<std::uint16_t>& out,
                              const std::vector<std::uint16_t>& expected, std::size_t hidden) {
  double worst = 0;
  for (std::size_t first = 0; first < out.size(); first += hidden) {
    double error = 0;
    double size = 0;
    for (std::size_t i = first; i < first + hidden; ++i) {
      const double wanted = f32_from_bf16(expected[i]);
      error += std::pow(f32_from_bf16(out[i]) - wanted, 2);
      size += wanted * wanted;
    }
    worst = std::max(worst, std::sqrt(error / size));
  }
  return worst;
}

}  // namespace switchyard::test
