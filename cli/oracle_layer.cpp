// SPDX-License-Identifier: Apache-2.0

#include "oracle_layer.h"

#include <algorithm>
#include <cmath>

#include "conformance/exchange_values.h"
#include "quant/scalar.h"
#include "reference/batched.h"

namespace switchyard::cli {
namespace {

using reference::Batch;
using reference::ExpertMajor;
using reference::MlpWeights;
using reference::Table;

// Matrix `n` of [L, rows, cols] in mxfp4.
Table<float> mxfp4_of(const TensorView& stacked, const TensorView& scales, std::int64_t n) {
  constexpr std::int64_t kBlock = weight_blocks::kMxfp4.inputs;
  Table<float> table(stacked.shape(1), stacked.shape(2));
  for (std::int64_t r = 0; r < table.rows; ++r) {
    for (std::int64_t c = 0; c < table.cols; ++c) {
      const std::int64_t at = (n * table.rows + r) * table.cols + c;
      const int byte = stacked.as<std::uint8_t>()[at / 2];
      const int code = at % 2 == 0 ? byte % 16 : byte / 16;
      const int exponent = scales.as<std::uint8_t>()[at / kBlock] - 127;
      table(r, c) = std::ldexp(
          reference::value_of_code(DType::kE2M1, static_cast<std::uint8_t>(code)), exponent);
    }
  }
  return table;
}

// Matrix `n` of [L, rows, cols], by the scales of its blocks where it has some.
Table<float> weight_of(const TensorView& stacked, const TensorView& scales, std::int64_t n) {
  const std::int64_t rows = stacked.shape(1);
  const std::int64_t cols = stacked.shape(2);
  const std::int64_t first = n * rows * cols;
  if (stacked.dtype() == DType::kE2M1) return mxfp4_of(stacked, scales, n);
  if (stacked.dtype() == DType::kE4M3) {
    const std::uint8_t* codes = stacked.as<std::uint8_t>() + first;
    const std::int64_t blocks = scales.shape(1) * scales.shape(2);
    const float* scale = scales.as<float>() + n * blocks;
    return reference::dequantize_weight(
        {rows, cols, std::vector<std::uint8_t>(codes, codes + rows * cols)},
        {scales.shape(1), scales.shape(2), std::vector<float>(scale, scale + blocks)});
  }
  Table<float> table(rows, cols);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] =
        scalar::load(stacked.data(), stacked.dtype(), first + static_cast<std::int64_t>(i));
  }
  return table;
}

Table<float> bias_of(const TensorView& biases, std::int64_t n) {
  if (!biases.has_value()) return {};
  const float* bias = biases.as<float>() + n * biases.shape(1);
  return {1, biases.shape(1), std::vector<float>(bias, bias + biases.shape(1))};
}

MlpWeights mlp_of(const ExpertWeights& weights, std::int64_t n) {
  return {1,
          weights.gate.shape(2),
          weights.gate.shape(1),
          weight_of(weights.gate, weights.gate_scale, n),
          weight_of(weights.up, weights.up_scale, n),
          weight_of(weights.down, weights.down_scale, n),
          bias_of(weights.gate_bias, n),
          bias_of(weights.up_bias, n),
          bias_of(weights.down_bias, n)};
}

// As it is sent where the one weight of a token is applied to it.
Batch weighed(Batch batch, DType dtype) {
  for (reference::RankInput& input : batch.ranks) {
    for (std::int64_t t = 0; t < input.tokens.rows; ++t) {
      for (float& x : input.tokens.row(t)) {
        x = reference::weigh_input(dtype, x, input.topk_weights(t, 0));
      }
      input.topk_weights(t, 0) = 1.0f;
    }
  }
  return batch;
}

}  // namespace

Table<float> table_of(const TensorView& matrix) {
  Table<float> table(matrix.shape(0), matrix.shape(1));
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = scalar::load(matrix.data(), matrix.dtype(), static_cast<std::int64_t>(i));
  }
  return table;
}

Table<float> as_experts_read(const QuantScheme& scheme, const Table<float>& rows,
                             std::optional<float> scale) {
  if (!scheme.is_quantized() || rows.rows == 0) return rows;
  Table<float> read = reference::dequantize(scheme, reference::quantize(scheme, rows, scale));
  return scheme.is_simulated() ? conformance::rounded(DType::kBF16, std::move(read)) : read;
}

OracleLayer::OracleLayer(const RunConfig& config, const ModelConfig& model,
                         const Checkpoint& checkpoint, int layer,
                         const std::vector<std::int32_t>& wanted)
    : config_(config), model_(model), weights_(load_moe_layer(checkpoint, model, layer, wanted)) {
  for (const std::int32_t expert : wanted) {
    index_.emplace(expert, static_cast<std::int64_t>(index_.size()));
  }
}

// A dynamic scale of a whole tensor is that of all rows that arrived.
std::optional<float> OracleLayer::input_scale(const Table<float>& arrived) const {
  const QuantScheme& scheme = config_.prepare.scheme;
  const bool is_dynamic = scheme.group == ScaleGroup::kTensor && !config_.prepare.static_scale;
  if (!is_dynamic || arrived.rows == 0) return config_.prepare.static_scale;
  return reference::quantize(scheme, arrived).scales(0, 0);
}

// What the experts of one rank return, at the places of `placed`.
Table<float> OracleLayer::results_of(const Batch& batch, int rank,
                                     const ExpertMajor& placed) const {
  const Table<float> arrived = reference::receive(batch, placed.rows, placed.num_rows);
  Table<float> everything(0, batch.hidden());
  for (const reference::RankInput& input : batch.ranks) {
    everything.rows += input.tokens.rows;
    everything.data.insert(everything.data.end(), input.tokens.data.begin(),
                           input.tokens.data.end());
  }
  const bool sees_all =
      config_.kind == PrepareKind::kAllGather || config_.kind == PrepareKind::kLocal;
  const QuantScheme& scheme = config_.prepare.scheme;
  const Table<float> rows =
      as_experts_read(scheme, arrived, input_scale(sees_all ? everything : arrived));
  Table<float> results(rows.rows, rows.cols);
  for (std::size_t e = 0; e < placed.counts.size(); ++e) {
    if (placed.counts[e] == 0) continue;
    Table<float> input(placed.counts[e], rows.cols);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(rows.row(placed.first_row[e] + n), input.row(n).begin());
    }
    const std::int32_t expert = batch.first_expert(rank) + static_cast<std::int32_t>(e);
    const Table<float> output = reference::expert_mlp(
        mlp_of(weights_.experts.view(), index_.at(expert)), 0, input, config_.intermediate(),
        model_.activation, config_.intermediate_scale);
    for (std::int64_t n = 0; n < input.rows; ++n) {
      std::ranges::copy(output.row(n), results.row(placed.first_row[e] + n).begin());
    }
  }
  return results;
}

std::vector<Table<float>> OracleLayer::combined(const Batch& batch,
                                                const std::vector<ExpertMajor>& placed,
                                                const std::vector<Table<float>>& results,
                                                const std::vector<int>& hosts) const {
  const Reduce reduce = config_.reduce();
  std::vector<Table<float>> partials;
  for (int r = 0; reduce != Reduce::kPerExpert && r < batch.num_ranks(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    partials.push_back(
        reference::reduce_on_rank(batch, r, placed[i], results[i], true, config_.dtype()));
  }
  const auto order = config_.kind == PrepareKind::kAllGather
                         ? reference::PartialOrder::kRank
                         : reference::PartialOrder::kHighestSlot;
  std::vector<Table<float>> outputs;
  for (int r = 0; r < batch.num_ranks(); ++r) {
    outputs.push_back(
        reduce == Reduce::kPerExpert
            ? reference::combine_per_expert(batch, r, placed, results, config_.dtype())
        : reduce == Reduce::kPerHost
            ? reference::sum_hosts(batch, r, partials, hosts, {config_.dtype()}, {},
                                   config_.dtype())
            : reference::sum_partials(batch, r, partials, {}, config_.dtype(), order));
  }
  return outputs;
}

void OracleLayer::add_shared(const Table<float>& tokens, Table<float>& output) const {
  if (!weights_.shared.has_value()) return;
  reference::Layer layer;
  layer.dispatch = {config_.dtype()};
  layer.shared = mlp_of(weights_.shared.view(), 0);
  const TensorView gate = weights_.shared_gate.view();
  if (gate.has_value()) layer.shared_gate = table_of(gate).data;
  const Table<float> shared = reference::shared_rows(layer, tokens);
  for (std::size_t i = 0; i < output.data.size(); ++i) {
    output.data[i] = reference::round_to(config_.dtype(), output.data[i] + shared.data[i]);
  }
}

std::vector<Table<float>> OracleLayer::apply(const Batch& given,
                                             const std::vector<int>& hosts) const {
  const Batch batch = model_.weighs_input ? weighed(given, config_.row_dtype()) : given;
  std::vector<ExpertMajor> placed;
  std::vector<Table<float>> results;
  for (int r = 0; r < batch.num_ranks(); ++r) {
    placed.push_back(reference::dispatch_expanded(batch, r, 1));
    results.push_back(results_of(batch, r, placed.back()));
  }
  std::vector<Table<float>> outputs = combined(batch, placed, results, hosts);
  for (std::size_t r = 0; r < outputs.size(); ++r) add_shared(given.ranks[r].tokens, outputs[r]);
  return outputs;
}

}  // namespace switchyard::cli
