// SPDX-License-Identifier: Apache-2.0
//
// A whole MoE layer as a measurement: prepare, experts in fixed order, finalize. Weights are a
// function of expert, matrix and place, so the oracle can make those of any expert by itself.

#include <cmath>
#include <cstring>

#include "switchyard/experts.h"
#include "switchyard/modular_kernel.h"

#include "core/clock.h"
#include "core/fail.h"
#include "core/random.h"
#include "measure/bench_batch.h"
#include "measure/bench_oracle.h"
#include "measure/cpu_target.h"
#include "plan/expert_ownership.h"
#include "quant/bf16.h"

namespace switchyard::measure {
namespace {

constexpr std::int64_t kCheckedTokens = 4;  // of each rank; the oracle is slow
constexpr std::uint64_t kGate = 0, kUp = 1, kDown = 2;

// Element i of a matrix of an expert, bf16: of magnitude up to 1 / sqrt(inputs).
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

// The expert by the oracle.
ExpertFunction reference_expert(const Workload& workload) {
  return [workload](std::int32_t expert, std::span<const float> in, std::span<float> out) {
    const std::int64_t hidden = workload.hidden;
    const std::int64_t inner = workload.intermediate;
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
  };
}

PrepareKind kind_of(Layout layout) {
  switch (layout) {
    case Layout::kBatched: return PrepareKind::kLowLatency;
    case Layout::kExpanded: return PrepareKind::kElasticPrefill;
    case Layout::kByRank: return PrepareKind::kAllToAllOneSided;
    default: return PrepareKind::kElasticDecode;
  }
}

PrepareFinalizeConfig config_of(const BenchShape& shape) {
  PrepareFinalizeConfig config;
  config.num_experts = shape.workload.num_experts;
  config.num_topk = shape.workload.num_topk;
  config.hidden = shape.workload.hidden;
  config.max_tokens_per_rank = shape.num_tokens;
  config.scheme = shape.scheme;
  config.reduce = shape.reduce;
  if (wants_tensor_scale(shape.scheme)) config.static_scale = tensor_scale_of(shape.scheme);
  return config;
}

class LayerRun {
 public:
  LayerRun(const Group& group, const BenchShape& shape)
      : group_(group),
        shape_(shape),
        batch_(shape, group.rank()),
        output_(DType::kBF16, {shape.num_tokens, shape.workload.hidden}) {
    const ExpertOwnership ownership{shape.workload.num_experts, group.size()};
    const std::int32_t first = ownership.first(group.rank());
    const std::int32_t count = ownership.count(group.rank());
    const std::int64_t hidden = shape.workload.hidden;
    const std::int64_t inner = shape.workload.intermediate;
    gate_ = make_matrices(first, count, kGate, inner, hidden);
    up_ = make_matrices(first, count, kUp, inner, hidden);
    down_ = make_matrices(first, count, kDown, hidden, inner);
    ExpertWeights weights;
    weights.gate = gate_;
    weights.up = up_;
    weights.down = down_;
    kernel_ = std::make_unique<ModularKernel>(
        make_prepare_finalize(kind_of(shape.layout), group, config_of(shape)),
        make_exact_experts(weights));
  }

  double time(std::int64_t iteration) {
    const PrepareArguments arguments = prepare(iteration);
    group_.barrier();
    const std::int64_t start = now_ns();
    for (int layer = 0; layer < shape_.num_layers; ++layer) kernel_->apply(arguments, output_);
    return static_cast<double>(now_ns() - start) * 1e-3;
  }

  std::int64_t count_wrong(std::int64_t iteration) {
    kernel_->apply(prepare(iteration), output_);
    const BenchOracle oracle(shape_, iteration, group_.rank(), reference_expert(shape_.workload));
    return oracle.count_wrong_output(output_, kCheckedTokens);
  }

 private:
  PrepareArguments prepare(std::int64_t iteration) {
    batch_.make(iteration);
    std::memset(output_.data(), 0xFF, output_.view().num_bytes());
    PrepareArguments arguments;
    arguments.hidden = batch_.tokens();
    arguments.topk_ids = batch_.topk_ids();
    arguments.topk_weights = batch_.topk_weights();
    return arguments;
  }

  Group group_;
  const BenchShape& shape_;
  BenchBatch batch_;
  Tensor output_;
  Tensor gate_;
  Tensor up_;
  Tensor down_;
  std::unique_ptr<ModularKernel> kernel_;
};

}  // namespace

ShapeResult measure_cpu_layer(const Group& group, const BenchShape& shape,
                              const std::function<void()>& tick) {
  LayerRun run(group, shape);
  return measure_calls(run, shape, tick);
}

}  // namespace switchyard::measure
