// SPDX-License-Identifier: Apache-2.0

#include "reference/batched.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"

namespace switchyard::reference {
namespace {

bool wants(const RankInput& input, std::int64_t t, std::int32_t expert) {
  const auto ids = input.topk_ids.row(t);
  return std::find(ids.begin(), ids.end(), expert) != ids.end();
}

std::vector<std::int64_t> tokens_of(const RankInput& input, std::int32_t expert) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t t = 0; t < input.num_tokens(); ++t) {
    if (wants(input, t, expert)) tokens.push_back(t);
  }
  return tokens;
}

float weight_of(const RankInput& input, std::int64_t t, std::int32_t expert) {
  float weight = 0.0f;
  for (std::int64_t k = 0; k < input.topk_ids.cols; ++k) {
    if (input.topk_ids(t, k) == expert) weight += input.topk_weights(t, k);
  }
  return weight;
}

}  // namespace

float weigh_input(DType dtype, float x, float weight) {
  return round_to(dtype, x * round_to(dtype, weight));
}

PreparedBatch prepare_batched(const RankInput& input, std::int32_t num_experts,
                              std::int32_t num_local_experts, std::int32_t rank,
                              std::int64_t capacity, const QuantScheme& scheme,
                              std::optional<float> static_scale, bool weighs_input) {
  const std::int64_t hidden = input.tokens.cols;
  require(!weighs_input || input.topk_ids.cols == 1, Errc::kInvalidArgument,
          "prepare_batched: weighs_input with {} choices, must be 1", input.topk_ids.cols);
  PreparedBatch batch;
  batch.rows = Table<float>(num_local_experts * capacity, hidden);
  batch.counts.assign(static_cast<std::size_t>(num_experts), 0);
  for (std::int32_t e = 0; e < num_local_experts; ++e) {
    const std::vector<std::int64_t> tokens = tokens_of(input, rank * num_local_experts + e);
    const auto count = static_cast<std::int64_t>(tokens.size());
    require(count <= capacity, Errc::kInvalidArgument,
            "prepare_batched: expert {} has {} tokens, capacity is {}", e, count, capacity);
    batch.counts[static_cast<std::size_t>(e)] = static_cast<std::int32_t>(count);
    Table<float> rows(count, hidden);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t t = tokens[static_cast<std::size_t>(n)];
      for (std::int64_t h = 0; h < hidden; ++h) {
        const float x = input.tokens(t, h);
        rows(n, h) = weighs_input ? weigh_input(DType::kBF16, x, input.topk_weights(t, 0)) : x;
        batch.rows(e * capacity + n, h) = rows(n, h);
      }
    }
    if (scheme.is_quantized()) batch.quantized.push_back(quantize(scheme, rows, static_scale));
  }
  return batch;
}

Table<float> finalize_batched(const RankInput& input, std::int32_t num_local_experts,
                              std::int32_t rank, const Table<float>& outputs, DType output,
                              bool weighs_input) {
  Table<float> sum(input.num_tokens(), outputs.cols);
  const std::int64_t capacity = num_local_experts == 0 ? 0 : outputs.rows / num_local_experts;
  for (std::int32_t e = 0; e < num_local_experts; ++e) {
    const std::int32_t expert = rank * num_local_experts + e;
    std::int64_t row = e * capacity;
    for (const std::int64_t t : tokens_of(input, expert)) {
      const float weight = weighs_input ? 1.0f : weight_of(input, t, expert);
      for (std::int64_t h = 0; h < sum.cols; ++h) {
        sum(t, h) = std::fma(weight, outputs(row, h), sum(t, h));
      }
      ++row;
    }
  }
  for (float& value : sum.data) value = round_to(output, value);
  return sum;
}

}  // namespace switchyard::reference
