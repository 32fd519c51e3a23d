// SPDX-License-Identifier: Apache-2.0
//
// layer.cpp: routing, dispatch, experts, combine and shared expert, with and without ranks.

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "quant/exp.h"
#include "reference/batched.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

/// What a rank sends.
RankInput route(const Layer& layer, const Table<float>& hidden) {
  Routing routing =
      select_experts(layer.router, router_logits(hidden, layer.router_gate), layer.router_bias);
  RankInput input{hidden, std::move(routing.topk_ids), std::move(routing.topk_weights)};
  for (std::int64_t t = 0; layer.weighs_input && t < hidden.rows; ++t) {
    for (float& value : input.tokens.row(t)) {
      value = weigh_input(layer.dtype(), value, input.topk_weights(t, 0));
    }
    input.topk_weights(t, 0) = 1.0f;
  }
  return input;
}

// The rows that the experts of one rank receive. Rows and blocks have their own scales, so
// quantizing on arrival is equivalent to quantizing before sending.
Table<float> delivered(const Layer& layer, const Batch& batch, const ExpertMajor& placed) {
  const Table<float> rows = receive(batch, placed.rows, placed.num_rows);
  if (!layer.dispatch.is_quantized()) return rows;
  return dequantize(layer.dispatch, quantize(layer.dispatch, rows, layer.static_scale));
}

std::vector<Table<float>> combine(const Batch& batch, std::span<const ExpertMajor> placed,
                                  std::span<const Table<float>> rows, Reduce reduce, DType dtype) {
  const std::vector<int> one_host(batch.ranks.size(), 0);
  std::vector<Table<float>> partials;
  for (int rank = 0; reduce != Reduce::kPerExpert && rank < batch.num_ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    partials.push_back(reduce_on_rank(batch, rank, placed[r], rows[r], true, dtype));
  }
  std::vector<Table<float>> outputs;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    outputs.push_back(reduce == Reduce::kPerRank ? sum_partials(batch, rank, partials, {}, dtype)
                      : reduce == Reduce::kPerHost
                          ? sum_hosts(batch, rank, partials, one_host, {dtype}, {}, dtype)
                          : combine_per_expert(batch, rank, placed, rows, dtype));
  }
  return outputs;
}

void add_shared(const Layer& layer, const Table<float>& hidden, Table<float>& output) {
  if (!layer.shared) return;
  const Table<float> shared = shared_rows(layer, hidden);
  for (std::size_t i = 0; i < output.data.size(); ++i) {
    output.data[i] = round_to(layer.dtype(), 0.0f + output.data[i] + shared.data[i]);
  }
}

}  // namespace

Table<float> shared_rows(const Layer& layer, const Table<float>& hidden) {
  Table<float> rows = expert_mlp(*layer.shared, 0, hidden, {layer.dtype()});
  if (layer.shared_gate.empty()) return rows;
  const Table<float> gate(1, hidden.cols, layer.shared_gate);
  const Table<float> logits = router_logits(hidden, gate);
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    const float factor = sigmoid(logits(t, 0));
    for (float& value : rows.row(t)) value = round_to(layer.dtype(), std::fma(factor, value, 0.0f));
  }
  return rows;
}

std::vector<Table<float>> run_layer(const Layer& layer, std::span<const Table<float>> hidden,
                                    Reduce reduce) {
  Batch batch{layer.router.num_experts, {}};
  for (const Table<float>& tokens : hidden) batch.ranks.push_back(route(layer, tokens));
  std::vector<ExpertMajor> placed;
  std::vector<Table<float>> rows;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    placed.push_back(dispatch_expanded(batch, rank, 1));
    rows.push_back(apply_experts(layer.experts, batch.first_expert(rank), placed.back(),
                                 delivered(layer, batch, placed.back()), layer.intermediate,
                                 layer.activation));
  }
  std::vector<Table<float>> outputs = combine(batch, placed, rows, reduce, layer.dtype());
  for (std::size_t r = 0; r < outputs.size(); ++r) add_shared(layer, hidden[r], outputs[r]);
  return outputs;
}

Table<float> run_layer(const Layer& layer, const Table<float>& hidden) {
  const RankInput routing = route(layer, hidden);
  const Table<float> tokens =
      layer.dispatch.is_quantized()
          ? dequantize(layer.dispatch, quantize(layer.dispatch, routing.tokens, layer.static_scale))
          : routing.tokens;
  // Row t * K + k is the output for token t of the expert in slot k.
  const std::int64_t num_topk = routing.topk_ids.cols;
  Table<float> rows(hidden.rows * num_topk, hidden.cols);
  for (std::int32_t e = 0; e < layer.router.num_experts; ++e) {
    std::vector<std::int64_t> wanted;
    Table<float> input(0, hidden.cols);
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      if (routing.topk_ids(i / num_topk, i % num_topk) != e) continue;
      wanted.push_back(i);
      const auto token = tokens.row(i / num_topk);
      input.data.insert(input.data.end(), token.begin(), token.end());
      ++input.rows;
    }
    const Table<float> result =
        expert_mlp(layer.experts, e, input, layer.intermediate, layer.activation);
    for (std::int64_t n = 0; n < result.rows; ++n) {
      std::ranges::copy(result.row(n), rows.row(wanted[static_cast<std::size_t>(n)]).begin());
    }
  }
  Table<float> output(hidden.rows, hidden.cols);
  for (std::int64_t t = 0; t < hidden.rows; ++t) {
    for (std::int64_t h = 0; h < hidden.cols; ++h) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < num_topk; ++k) {
        sum = std::fma(routing.topk_weights(t, k), rows(t * num_topk + k, h), sum);
      }
      output(t, h) = round_to(layer.dtype(), sum);
    }
  }
  add_shared(layer, hidden, output);
  return output;
}

}  // namespace switchyard::reference
