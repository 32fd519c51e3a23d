// SPDX-License-Identifier: Apache-2.0
//
// experts.cpp: the expert MLP in its one order of additions.

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

}  // namespace

Table<float> expert_mlp(const MlpWeights& weights, std::int32_t expert, const Table<float>& rows,
                        const QuantScheme& intermediate) {
  const std::int64_t first_inner = expert * weights.intermediate;
  const std::int64_t first_outer = expert * weights.hidden;
  Table<float> activation(rows.rows, weights.intermediate);
  for (std::int64_t n = 0; n < rows.rows; ++n) {
    for (std::int64_t i = 0; i < weights.intermediate; ++i) {
      const float gate = dot(weights.gate.row(first_inner + i), rows.row(n));
      const float up = dot(weights.up.row(first_inner + i), rows.row(n));
      activation(n, i) = silu(gate) * up;
    }
  }
  if (intermediate.is_quantized()) {
    activation = dequantize(intermediate, quantize(intermediate, activation));
  } else {
    for (float& value : activation.data) value = round_to(DType::kBF16, value);
  }
  Table<float> output(rows.rows, weights.hidden);
  for (std::int64_t n = 0; n < rows.rows; ++n) {
    for (std::int64_t h = 0; h < weights.hidden; ++h) {
      output(n, h) =
          round_to(DType::kBF16, dot(weights.down.row(first_outer + h), activation.row(n)));
    }
  }
  return output;
}

Table<float> apply_experts(const MlpWeights& weights, std::int32_t first, const ExpertMajor& placed,
                           const Table<float>& rows, const QuantScheme& intermediate) {
  Table<float> output(rows.rows, weights.hidden);
  for (std::size_t e = 0; e < placed.counts.size(); ++e) {
    Table<float> input(placed.counts[e], weights.hidden);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(rows.row(placed.first_row[e] + n), input.row(n).begin());
    }
    const Table<float> result =
        expert_mlp(weights, first + static_cast<std::int32_t>(e), input, intermediate);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(result.row(n), output.row(placed.first_row[e] + n).begin());
    }
  }
  return output;
}

}  // namespace switchyard::reference
