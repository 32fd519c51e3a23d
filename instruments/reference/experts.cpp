// SPDX-License-Identifier: Apache-2.0
//
// experts.cpp: the expert MLP, with its fixed order of additions.

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "quant/exp.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

float dot(std::span<const float> weight, std::span<const float> x) {
  float sum = 0.0f;
  for (std::size_t i = 0; i < x.size(); ++i) sum = std::fma(weight[i], x[i], sum);
  return sum;
}

float bias_of(const Table<float>& bias, std::int64_t expert, std::int64_t i, float sum) {
  return bias.data.empty() ? sum : sum + bias(expert, i);
}

float activate(const Activation& activation, float gate, float up) {
  if (activation.kind == ActivationKind::kSiluMul) return silu(gate) * up;
  const float limit = activation.limit;
  const float g = std::min(gate, limit);
  const float u = std::max(std::min(up, limit), -limit);
  const float scaled = activation.alpha * g;
  return g / (1.0f + exp_f32(-scaled)) * (u + activation.beta);
}

}  // namespace

MlpWeights slice_of(const MlpWeights& weights, std::int64_t first, std::int64_t count) {
  MlpWeights slice = weights;
  slice.intermediate = count;
  slice.gate = Table<float>(weights.num_experts * count, weights.hidden);
  slice.up = slice.gate;
  slice.down = Table<float>(weights.num_experts * weights.hidden, count);
  for (std::int32_t e = 0; e < weights.num_experts; ++e) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t inner = e * weights.intermediate + first + i;
      std::ranges::copy(weights.gate.row(inner), slice.gate.row(e * count + i).begin());
      std::ranges::copy(weights.up.row(inner), slice.up.row(e * count + i).begin());
    }
    for (std::int64_t h = e * weights.hidden; h < (e + 1) * weights.hidden; ++h) {
      for (std::int64_t i = 0; i < count; ++i) slice.down(h, i) = weights.down(h, first + i);
    }
  }
  return slice;
}

Table<float> expert_mlp(const MlpWeights& weights, std::int32_t expert, const Table<float>& rows,
                        const QuantScheme& intermediate, const Activation& activation,
                        std::optional<float> static_scale) {
  const std::int64_t first_inner = expert * weights.intermediate;
  const std::int64_t first_outer = expert * weights.hidden;
  Table<float> h(rows.rows, weights.intermediate);
  for (std::int64_t n = 0; n < rows.rows; ++n) {
    for (std::int64_t i = 0; i < weights.intermediate; ++i) {
      const float gate = dot(weights.gate.row(first_inner + i), rows.row(n));
      const float up = dot(weights.up.row(first_inner + i), rows.row(n));
      h(n, i) = activate(activation, bias_of(weights.gate_bias, expert, i, gate),
                         bias_of(weights.up_bias, expert, i, up));
    }
  }
  if (intermediate.is_quantized()) {
    h = dequantize(intermediate, quantize(intermediate, h, static_scale));
  } else {
    for (float& value : h.data) value = round_to(intermediate.dtype, value);
  }
  const DType returned = intermediate.is_quantized() ? DType::kBF16 : intermediate.dtype;
  Table<float> output(rows.rows, weights.hidden);
  for (std::int64_t n = 0; n < rows.rows; ++n) {
    for (std::int64_t i = 0; i < weights.hidden; ++i) {
      const float sum = dot(weights.down.row(first_outer + i), h.row(n));
      output(n, i) = round_to(returned, bias_of(weights.down_bias, expert, i, sum));
    }
  }
  return output;
}

Table<float> apply_experts(const MlpWeights& weights, std::int32_t first, const ExpertMajor& placed,
                           const Table<float>& rows, const QuantScheme& intermediate,
                           const Activation& activation) {
  Table<float> output(rows.rows, weights.hidden);
  for (std::size_t e = 0; e < placed.counts.size(); ++e) {
    Table<float> input(placed.counts[e], weights.hidden);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(rows.row(placed.first_row[e] + n), input.row(n).begin());
    }
    const Table<float> result =
        expert_mlp(weights, first + static_cast<std::int32_t>(e), input, intermediate, activation);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(result.row(n), output.row(placed.first_row[e] + n).begin());
    }
  }
  return output;
}

}  // namespace switchyard::reference
