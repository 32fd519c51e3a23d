// SPDX-License-Identifier: Apache-2.0

#include "measure/layer_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "switchyard/micro_batches.h"

#include "core/bytes.h"
#include "core/random.h"
#include "plan/expert_ownership.h"
#include "quant/bf16.h"

namespace switchyard::measure {
namespace {

// Of the largest element of a token: bf16 between the two products, and another order of sums.
constexpr float kTensorCoreTolerance = 1.0f / 64;

constexpr std::uint64_t kGate = 0, kUp = 1, kDown = 2;

// Returns element i of one of an expert's matrices, bf16 of magnitude at most 1 / sqrt(inputs).
std::uint16_t weight_of(std::int32_t expert, std::uint64_t matrix, std::int64_t inputs,
                        std::uint64_t i) {
  const std::uint64_t stream = 3 * static_cast<std::uint64_t>(expert) + matrix;
  const double x = 2 * random_uniform(stream, i) - 1;
  return bf16_from_f32(static_cast<float>(x / std::sqrt(static_cast<double>(inputs))));
}

Tensor make_matrices(std::int32_t first, std::int32_t count, std::uint64_t matrix,
                     std::int64_t outputs, std::int64_t inputs) {
  Tensor tensor(DType::kBF16, {count, outputs, inputs});
  auto* at = tensor.as<std::uint16_t>();
  for (std::int32_t e = first; e < first + count; ++e) {
    for (std::int64_t i = 0; i < outputs * inputs; ++i) {
      *at++ = weight_of(e, matrix, inputs, static_cast<std::uint64_t>(i));
    }
  }
  return tensor;
}

reference::Table<float> reference_matrix(std::int32_t expert, std::uint64_t matrix,
                                         std::int64_t outputs, std::int64_t inputs) {
  reference::Table<float> table(outputs, inputs);
  for (std::size_t i = 0; i < table.data.size(); ++i) {
    table.data[i] = f32_from_bf16(weight_of(expert, matrix, inputs, i));
  }
  return table;
}

// What one expert returns for one row.
void reference_mlp(std::int32_t expert, std::int64_t inner, std::span<const float> in,
                   std::span<float> out) {
  const auto hidden = static_cast<std::int64_t>(in.size());
  reference::MlpWeights weights;
  weights.num_experts = 1;
  weights.hidden = hidden;
  weights.intermediate = inner;
  weights.gate = reference_matrix(expert, kGate, inner, hidden);
  weights.up = reference_matrix(expert, kUp, inner, hidden);
  weights.down = reference_matrix(expert, kDown, hidden, inner);
  const reference::Table<float> row(1, hidden, {in.begin(), in.end()});
  const auto result = reference::expert_mlp(weights, 0, row, schemes::kNone);
  std::copy(result.data.begin(), result.data.end(), out.begin());
}

std::int64_t shared_width(const BenchShape& shape) {
  return checked_mul<std::int64_t>(shape.num_shared_experts, shape.workload.intermediate);
}

}  // namespace

LayerWeights::LayerWeights(std::int32_t first, std::int32_t count, std::int64_t hidden,
                           std::int64_t intermediate)
    : gate_(make_matrices(first, count, kGate, intermediate, hidden)),
      up_(make_matrices(first, count, kUp, intermediate, hidden)),
      down_(make_matrices(first, count, kDown, hidden, intermediate)) {}

LayerWeights routed_weights(const Workload& workload, int rank, int num_ranks) {
  const ExpertOwnership ownership{workload.num_experts, num_ranks};
  return {ownership.first(rank), ownership.count(rank), workload.hidden, workload.intermediate};
}

// Behind the routed experts.
LayerWeights shared_weights(const BenchShape& shape) {
  return {shape.workload.num_experts, 1, shape.workload.hidden, shared_width(shape)};
}

ExpertWeights LayerWeights::view() const {
  ExpertWeights weights;
  weights.gate = gate_;
  weights.up = up_;
  weights.down = down_;
  return weights;
}

ExpertFunction reference_expert(const Workload& workload) {
  return [workload](std::int32_t expert, std::span<const float> in, std::span<float> out) {
    reference_mlp(expert, workload.intermediate, in, out);
  };
}

SharedFunction reference_shared(const BenchShape& shape) {
  if (shape.num_shared_experts == 0) return {};
  return [expert = shape.workload.num_experts, width = shared_width(shape)](
             std::span<const float> in, std::span<float> out) {
    reference_mlp(expert, width, in, out);
  };
}

PrepareKind layer_kind(Layout layout) {
  switch (layout) {
    case Layout::kBatched: return PrepareKind::kLowLatency;
    case Layout::kExpanded: return PrepareKind::kElasticPrefill;
    case Layout::kByRank: return PrepareKind::kAllToAllOneSided;
    default: return PrepareKind::kElasticDecode;
  }
}

PrepareFinalizeConfig layer_config(const BenchShape& shape) {
  PrepareFinalizeConfig config;
  config.num_experts = shape.workload.num_experts;
  config.num_topk = shape.workload.num_topk;
  config.hidden = shape.workload.hidden;
  config.max_tokens_per_rank = shape.max_tokens_per_rank();
  config.scheme = shape.scheme;
  config.combine_scheme = shape.returned;
  config.reduce = shape.reduce;
  if (shape.num_micro_batches > 1) config.num_micro_batches = shape.num_micro_batches;
  if (wants_tensor_scale(shape.scheme)) config.static_scale = tensor_scale_of(shape.scheme);
  return config;
}

float layer_tolerance(const BenchShape& shape) {
  return shape.experts == "exact" ? 0.0f : kTensorCoreTolerance;
}

std::unique_ptr<ModularKernel> make_layer(const Group& group, const BenchShape& shape,
                                          const ExchangeOptions& options) {
  const LayerWeights weights = routed_weights(shape.workload, group.rank(), group.size());
  SharedExpert shared;
  if (shape.num_shared_experts > 0) {
    shared.experts = make_experts(shape.experts, shared_weights(shape).view(), {}, options.device);
  }
  return std::make_unique<ModularKernel>(
      make_prepare_finalize(layer_kind(shape.layout), group, layer_config(shape), options),
      make_experts(shape.experts, weights.view(), {}, options.device), std::move(shared));
}

void apply_layer(ModularKernel& layer, const BenchShape& shape, const PrepareArguments& arguments,
                 const TensorView& output, Stream stream) {
  if (shape.num_micro_batches == 1) {
    layer.apply(arguments, output, stream);
  } else {
    apply_overlapped(layer, arguments, output, shape.num_micro_batches, stream);
  }
}

}  // namespace switchyard::measure
