// SPDX-License-Identifier: Apache-2.0
//
// Runs one MoE layer with random weights over 1, 2 and 4 ranks: router, prepare, experts, finalize.
// With the sum contract per_expert all of them give the same bits; the program checks that.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <switchyard/group.h>
#include <switchyard/modular_kernel.h>
#include <switchyard/router.h>

namespace sy = switchyard;

namespace {

constexpr std::int64_t kTokens = 96;
constexpr std::int64_t kHidden = 128;
constexpr std::int64_t kIntermediate = 64;
constexpr std::int32_t kExperts = 8;
constexpr std::int32_t kTopk = 2;

sy::Tensor random_bf16(unsigned seed, float scale, std::initializer_list<std::int64_t> shape) {
  sy::Tensor tensor(sy::DType::kBF16, shape);
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  for (std::int64_t i = 0; i < tensor.view().num_elements(); ++i) {
    const float x = normal(bits);
    std::uint32_t word = 0;
    std::memcpy(&word, &x, sizeof(word));
    tensor.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(word >> 16);
  }
  return tensor;
}

// What a checkpoint would hold.
struct Layer {
  sy::Tensor router = random_bf16(1, 0.1f, {kExperts, kHidden});
  sy::Tensor gate = random_bf16(2, 0.1f, {kExperts, kIntermediate, kHidden});
  sy::Tensor up = random_bf16(3, 0.1f, {kExperts, kIntermediate, kHidden});
  sy::Tensor down = random_bf16(4, 0.1f, {kExperts, kHidden, kIntermediate});
};

// Rows [begin, end) of the first dimension.
sy::TensorView slice(const sy::Tensor& tensor, std::int64_t begin, std::int64_t end) {
  const sy::TensorView& view = tensor.view();
  const std::int64_t row = view.stride(0);
  const auto* data = view.as<std::uint16_t>() + begin * row;
  if (view.num_dims() == 2) return {data, view.dtype(), {end - begin, view.shape(1)}};
  return {data, view.dtype(), {end - begin, view.shape(1), view.shape(2)}};
}

// Runs this rank's share of the tokens through the layer. All threads write to `output` [T, H]
// bf16.
void run_rank(const sy::Group& group, const Layer& layer, const sy::Tensor& hidden,
              const sy::Tensor& output) {
  const std::int64_t num_tokens = kTokens / group.size();
  const std::int64_t num_experts = kExperts / group.size();
  const std::int64_t first_token = group.rank() * num_tokens;
  const std::int64_t first_expert = group.rank() * num_experts;

  sy::PrepareFinalizeConfig config;
  config.num_experts = kExperts;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = num_tokens;
  config.scheme = sy::schemes::kFp8Block;
  config.reduce = sy::Reduce::kPerExpert;
  sy::ExpertWeights weights;
  weights.gate = slice(layer.gate, first_expert, first_expert + num_experts);
  weights.up = slice(layer.up, first_expert, first_expert + num_experts);
  weights.down = slice(layer.down, first_expert, first_expert + num_experts);
  sy::ModularKernel kernel(sy::make_low_latency(group, config), sy::make_exact_experts(weights));

  const sy::Tensor logits(sy::DType::kF32, {num_tokens, kExperts});
  const sy::Tensor topk_ids(sy::DType::kI32, {num_tokens, kTopk});
  const sy::Tensor topk_weights(sy::DType::kF32, {num_tokens, kTopk});
  sy::RouterConfig router;
  router.num_experts = kExperts;
  router.num_topk = kTopk;
  router.norm_topk_prob = true;

  sy::PrepareArguments arguments;
  arguments.hidden = slice(hidden, first_token, first_token + num_tokens);
  sy::router_logits(arguments.hidden, layer.router, logits);
  sy::select_experts(router, logits, {}, topk_ids, topk_weights);
  arguments.topk_ids = topk_ids;
  arguments.topk_weights = topk_weights;
  kernel.apply(arguments, slice(output, first_token, first_token + num_tokens));
}

}  // namespace

int main() {
  const Layer layer;
  const sy::Tensor hidden = random_bf16(5, 1.0f, {kTokens, kHidden});
  std::vector<sy::Tensor> outputs;
  for (const int num_ranks : {1, 2, 4}) {
    outputs.emplace_back(sy::DType::kBF16, std::initializer_list<std::int64_t>{kTokens, kHidden});
    sy::run_local_ranks(
        num_ranks, [&](const sy::Group& group) { run_rank(group, layer, hidden, outputs.back()); });
    const auto* first = outputs.front().as<std::uint16_t>();
    const auto* last = outputs.back().as<std::uint16_t>();
    const bool is_same = std::equal(first, first + kTokens * kHidden, last);
    std::printf("%d rank%s: %s\n", num_ranks, num_ranks == 1 ? "" : "s",
                is_same ? "same bits as one rank" : "DIFFERENT");
    if (!is_same) return 1;
  }
  return 0;
}
