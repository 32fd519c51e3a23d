// SPDX-License-Identifier: Apache-2.0
//
// From token-major rows to experts that need expert-major rows, and back: the result equals the
// oracle's layer on one rank bit for bit.

#include <vector>

#include <gtest/gtest.h>

#include "switchyard/experts.h"
#include "switchyard/permute.h"

#include "expert_problem.h"
#include "quant/bf16.h"
#include "support/random_batch.h"

namespace switchyard {
namespace {

using reference::Table;

constexpr std::int32_t kExperts = 6;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kIntermediate = 64;
constexpr std::int64_t kTokens = 21;

Table<float> wide(const test::Weight& weight, std::int64_t rows, std::int64_t cols) {
  return {rows, cols, weight.wide};
}

struct PermutedLayer {
  test::Weight gate{DType::kBF16, kExperts, kIntermediate, kHidden, 1};
  test::Weight up{DType::kBF16, kExperts, kIntermediate, kHidden, 3};
  test::Weight down{DType::kBF16, kExperts, kHidden, kIntermediate, 5};
  reference::RankInput input = test::random_tokens({.num_experts = kExperts,
                                                    .num_topk = 3,
                                                    .hidden = kHidden,
                                                    .none_share = 0.2,
                                                    .has_duplicates = true},
                                                   kTokens, 47);
  TensorView ids = TensorView::of(input.topk_ids.data.data(), {kTokens, 3});
  TensorView topk_weights = TensorView::of(input.topk_weights.data.data(), {kTokens, 3});

  std::vector<std::uint16_t> run(const Permuted& permuted, const QuantScheme& scheme) const {
    const auto experts = make_exact_experts({gate.values, up.values, down.values, {}, {}, {}});
    const std::int64_t num_rows = permuted.plan.num_rows();
    const Tensor output(DType::kBF16, {num_rows, kHidden});
    std::vector<std::byte> workspace(experts->workspace_bytes(num_rows));
    experts->apply(permuted.expert_rows(scheme), output, workspace);
    const Tensor sum(DType::kBF16, {kTokens, kHidden});
    unpermute_and_reduce(output, permuted.plan, topk_weights, sum);
    return {sum.as<std::uint16_t>(), sum.as<std::uint16_t>() + sum.view().num_elements()};
  }

  std::vector<std::uint16_t> oracle(const QuantScheme& scheme) const {
    const reference::Batch batch{kExperts, {input}};
    const reference::MlpWeights weights{kExperts,
                                        kHidden,
                                        kIntermediate,
                                        wide(gate, kExperts * kIntermediate, kHidden),
                                        wide(up, kExperts * kIntermediate, kHidden),
                                        wide(down, kExperts * kHidden, kIntermediate)};
    const std::vector<reference::ExpertMajor> placed = {reference::dispatch_expanded(batch, 0, 8)};
    Table<float> rows = reference::receive(batch, placed[0].rows, placed[0].num_rows);
    if (scheme.is_quantized()) {
      const std::vector<reference::QuantizedRows> sent = {
          reference::quantize(scheme, input.tokens)};
      rows = reference::dequantize(scheme,
                                   reference::receive(sent, placed[0].rows, placed[0].num_rows));
    }
    const std::vector<Table<float>> outputs = {
        reference::apply_experts(weights, 0, placed[0], rows, schemes::kNone)};
    std::vector<std::uint16_t> sum;
    for (const float x :
         reference::combine_per_expert(batch, 0, placed, outputs, DType::kBF16).data) {
      sum.push_back(bf16_from_f32(x));
    }
    return sum;
  }
};

TEST(PermuteExpertsTest, Bf16LayerEqualsTheOracle) {
  const PermutedLayer layer;
  Tensor x(DType::kBF16, {kTokens, kHidden});
  for (std::size_t i = 0; i < layer.input.tokens.data.size(); ++i) {
    x.as<std::uint16_t>()[i] = bf16_from_f32(layer.input.tokens.data[i]);
  }
  const Permuted permuted = permute(x, {}, layer.ids, kExperts, {.alignment = 16});
  EXPECT_EQ(layer.run(permuted, schemes::kNone), layer.oracle(schemes::kNone));
}

TEST(PermuteExpertsTest, QuantizedLayerEqualsTheOracleInEveryScaleLayout) {
  const PermutedLayer layer;
  const TensorView tokens = TensorView::of(layer.input.tokens.data.data(), {kTokens, kHidden});
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Token}) {
    const std::vector<std::uint16_t> want = layer.oracle(scheme);
    const Tensor q(DType::kE4M3, {kTokens, kHidden});
    const Tensor scales(DType::kF32, {kTokens, num_scales(scheme, kHidden)});
    quantize(tokens, scheme, q, scales);
    for (const ScaleLayout layout : {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajorAligned}) {
      const Permuted permuted =
          permute(q, scales, layer.ids, kExperts, {.alignment = 16}, {.scale_layout = layout});
      EXPECT_EQ(layer.run(permuted, scheme), want) << name_of(scheme);
    }
  }
}

}  // namespace
}  // namespace switchyard
