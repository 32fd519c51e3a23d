// SPDX-License-Identifier: Apache-2.0
//
// The whole layer against the oracle, bit for bit.

#include "switchyard/modular_kernel.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/expert_ownership.h"
#include "reference/reference.h"
#include "support/random_batch.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using reference::Table;
using test::error_of;
using test::run_ranks;
using ::testing::HasSubstr;

std::vector<std::uint16_t> bf16_bits(const Table<float>& table) {
  std::vector<std::uint16_t> bits(table.data.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(table.data[i]) >> 16);
  }
  return bits;
}

// Matrices [first, first + num) of the oracle's stacked weights, as a tensor [num, rows, cols].
Tensor stacked(const Table<float>& table, std::int64_t first, std::int64_t num, std::int64_t rows) {
  Tensor tensor(DType::kBF16, {num, rows, table.cols});
  const std::vector<std::uint16_t> bits = bf16_bits(table);
  std::memcpy(tensor.data(), bits.data() + first * rows * table.cols, tensor.view().num_bytes());
  return tensor;
}

struct RankWeights {
  Tensor gate, up, down;
  RankWeights(const reference::MlpWeights& w, std::int64_t first, std::int64_t num)
      : gate(stacked(w.gate, first, num, w.intermediate)),
        up(stacked(w.up, first, num, w.intermediate)),
        down(stacked(w.down, first, num, w.hidden)) {}
  ExpertWeights view() const { return {gate, up, down, {}, {}, {}}; }
};

reference::MlpWeights random_mlp(std::int32_t num_experts, std::int64_t hidden,
                                 std::int64_t intermediate, std::uint64_t seed) {
  return {num_experts,
          hidden,
          intermediate,
          test::random_table(num_experts * intermediate, hidden, seed, 0.1f),
          test::random_table(num_experts * intermediate, hidden, seed + 1, 0.1f),
          test::random_table(num_experts * hidden, intermediate, seed + 2, 0.1f)};
}

struct LayerCase {
  int num_ranks = 2;
  PrepareKind kind = PrepareKind::kLowLatency;
  QuantScheme scheme;
  Reduce reduce = Reduce::kPerExpert;
  bool has_shared_gate = false;
  std::int32_t num_experts = 7;

  bool is_local() const { return kind == PrepareKind::kLocal; }
};

reference::Layer random_layer(const LayerCase& test) {
  constexpr std::int64_t kHidden = 136;
  reference::Layer layer;
  layer.router.num_experts = test.num_experts;
  layer.router.num_topk = 3;
  layer.router.norm_topk_prob = true;
  layer.router_gate = test::random_table(test.num_experts, kHidden, 11, 0.2f);
  layer.experts = random_mlp(test.num_experts, kHidden, 72, 20);
  layer.shared = random_mlp(1, kHidden, 40, 30);
  if (test.has_shared_gate) {
    const Table<float> gate = test::random_table(1, kHidden, 41, 0.1f);
    layer.shared_gate = gate.data;
  }
  layer.dispatch = test.scheme;
  layer.intermediate = test.scheme;
  return layer;
}

// What one rank's ModularKernel returns for its tokens.
std::vector<std::uint16_t> run_kernel(const Group& group, const LayerCase& test,
                                      const reference::Layer& layer, const Table<float>& hidden,
                                      std::int64_t max_tokens) {
  const ExpertOwnership ownership{test.num_experts, test.is_local() ? 1 : group.size()};
  const int rank = test.is_local() ? 0 : group.rank();
  PrepareFinalizeConfig config;
  config.num_experts = test.num_experts;
  config.num_topk = layer.router.num_topk;
  config.hidden = hidden.cols;
  config.max_tokens_per_rank = max_tokens;
  config.scheme = test.scheme;
  config.reduce = test.reduce;

  const RankWeights weights(layer.experts, ownership.first(rank), ownership.count(rank));
  const RankWeights shared_weights(*layer.shared, 0, 1);
  Tensor shared_gate;
  SharedExpert shared{make_exact_experts(shared_weights.view()), {}};
  if (test.has_shared_gate) {
    shared_gate = Tensor(DType::kF32, {hidden.cols});
    std::memcpy(shared_gate.data(), layer.shared_gate.data(), layer.shared_gate.size() * 4);
    shared.gate = shared_gate;
  }
  ModularKernel kernel(make_prepare_finalize(test.kind, group, config),
                       make_exact_experts(weights.view(), {test.scheme}), std::move(shared));

  const reference::Routing routing = reference::select_experts(
      layer.router, reference::router_logits(hidden, layer.router_gate), {});
  const std::vector<std::uint16_t> bits = bf16_bits(hidden);
  const Tensor output(DType::kBF16, {hidden.rows, hidden.cols});
  for (int repeat = 0; repeat < 2; ++repeat) {
    kernel.apply(
        {.hidden = TensorView(bits.data(), DType::kBF16, {hidden.rows, hidden.cols}),
         .topk_ids = TensorView::of(routing.topk_ids.data.data(), {hidden.rows, 3}),
         .topk_weights = TensorView::of(routing.topk_weights.data.data(), {hidden.rows, 3})},
        output);
  }
  return {output.as<std::uint16_t>(), output.as<std::uint16_t>() + output.view().num_elements()};
}

void check_layer(const LayerCase& test) {
  const reference::Layer layer = random_layer(test);
  std::vector<Table<float>> hidden;
  std::int64_t max_tokens = 0;
  for (int r = 0; r < test.num_ranks; ++r) {
    const std::int64_t num_tokens = r == 1 ? 0 : 9 - r;  // rank 1 has no tokens
    hidden.push_back(test::random_table(num_tokens, 136, 50 + static_cast<std::uint64_t>(r)));
    max_tokens = std::max(max_tokens, num_tokens);
  }
  std::vector<Table<float>> want;
  if (test.is_local()) {
    for (const Table<float>& tokens : hidden) {
      want.push_back(reference::run_layer(layer, std::span(&tokens, 1), Reduce::kPerExpert)[0]);
    }
  } else {
    want = reference::run_layer(layer, hidden, test.reduce);
  }
  run_ranks(test.num_ranks, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group.rank());
    EXPECT_EQ(run_kernel(group, test, layer, hidden[r], max_tokens), bf16_bits(want[r]))
        << "P " << test.num_ranks << " rank " << r << " " << name_of(test.scheme) << " "
        << name_of(test.reduce) << " " << name_of(test.kind);
  });
}

TEST(ModularKernelTest, LowLatencyEqualsTheOracle) {
  for (const int num_ranks : {1, 2, 3, 7}) {
    for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kFp8BlockDeepEp,
                                      schemes::kFp8Token, schemes::kFp8Tensor}) {
      for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
        check_layer({num_ranks, PrepareKind::kLowLatency, scheme, reduce, num_ranks == 3, 7});
      }
    }
  }
}

TEST(ModularKernelTest, LocalEqualsTheOracleOfOneRank) {
  for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kFp8Tensor}) {
    for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
      check_layer({2, PrepareKind::kLocal, scheme, reduce, true, 5});
    }
  }
}

TEST(ModularKernelTest, RanksWithoutExpertsTakePart) {
  check_layer({5, PrepareKind::kLowLatency, schemes::kNone, Reduce::kPerExpert, false, 3});
  check_layer({5, PrepareKind::kLowLatency, schemes::kFp8Block, Reduce::kPerRank, false, 3});
}

// Partial sums of all ranks are added in the order of the oracle's layer. all_gather's own order is
// the same for two ranks, and its dynamic per-tensor scale covers every token.
TEST(ModularKernelTest, EveryClassEqualsTheOracle) {
  for (const PrepareKind kind :
       {PrepareKind::kElasticDecode, PrepareKind::kElasticPrefill, PrepareKind::kAllGather,
        PrepareKind::kAllToAll, PrepareKind::kAllToAllOneSided}) {
    const bool is_all_gather = kind == PrepareKind::kAllGather;
    for (const int num_ranks : {2, 9}) {
      if (is_all_gather && num_ranks > 2) continue;
      for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kFp8Token,
                                        schemes::kFp8Tensor, schemes::kInt8Token}) {
        if (is_all_gather && scheme == schemes::kFp8Tensor) continue;
        check_layer({num_ranks, kind, scheme, Reduce::kPerRank, num_ranks == 2, 7});
      }
    }
  }
}

PrepareFinalizeConfig small_config(std::int32_t num_topk) {
  PrepareFinalizeConfig config;
  config.num_experts = 2;
  config.num_topk = num_topk;
  config.hidden = 4;
  config.max_tokens_per_rank = 2;
  return config;
}

TEST(PrepareFinalizeTest, WeightOnTheInputNeedsOneChoice) {
  const auto two = make_local(small_config(2));
  const Tensor hidden(DType::kBF16, {2, 4});
  const Tensor ids(DType::kI32, {2, 2});
  const Tensor weights(DType::kF32, {2, 2});
  const Error error = error_of([&] { two->prepare({hidden, ids, weights, true}); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("with 2 experts a token, must be 1"));
}

// Weight 3 on the input, 1 afterwards: rows reach the expert multiplied, and the sum is unweighted.
TEST(PrepareFinalizeTest, WeightOnTheInputIsAppliedOnce) {
  const auto one = make_local(small_config(1));
  const Tensor hidden(DType::kBF16, {1, 4});
  for (int h = 0; h < 4; ++h) hidden.as<std::uint16_t>()[h] = 0x3F80;  // 1.0
  const Tensor ids(DType::kI32, {1, 1});
  const Tensor weights(DType::kF32, {1, 1});
  weights.as<float>()[0] = 3.0f;
  const Prepared prepared = one->prepare({hidden, ids, weights, true});
  EXPECT_EQ(prepared.experts.rows.as<std::uint16_t>()[0], 0x4040);  // 3.0
  const Tensor output(DType::kF32, {1, 4});
  one->finalize({output, prepared.experts.rows});
  EXPECT_EQ(output.as<float>()[0], 3.0f);
  EXPECT_EQ(hidden.as<std::uint16_t>()[0], 0x3F80);
}

TEST(PrepareFinalizeTest, SaysWhatItIs) {
  run_ranks(2, [](const Group& group) {
    const auto low_latency = make_low_latency(group, small_config(1));
    EXPECT_EQ(low_latency->name(), "low_latency");
    EXPECT_EQ(low_latency->activation_format(), ActivationFormat::kBatched);
    EXPECT_EQ(low_latency->num_dispatchers(), 2);
    EXPECT_EQ(low_latency->max_num_tokens_per_rank(), 2);
    EXPECT_EQ(low_latency->max_buffer_rows(), 4);  // one expert, two tokens per rank
    EXPECT_TRUE(low_latency->output_is_reduced());
    EXPECT_TRUE(low_latency->supports_async());
    EXPECT_EQ(low_latency->topk_indices_dtype(), std::nullopt);
  });
  EXPECT_EQ(make_local(small_config(1))->activation_format(), ActivationFormat::kStandard);
}

TEST(PrepareFinalizeTest, AMicroBatchIsPreparedOnce) {
  const auto one = make_local(small_config(1));
  const Tensor hidden(DType::kBF16, {1, 4});
  const Tensor ids(DType::kI32, {1, 1});
  const Tensor weights(DType::kF32, {1, 1});
  const Prepared prepared = one->prepare({hidden, ids, weights});
  const Error error = error_of([&] { one->prepare({hidden, ids, weights}); });
  EXPECT_THAT(error.what(), HasSubstr("micro_batch 0 was prepared and not finalized"));
  one->finalize({hidden, prepared.experts.rows});
  one->prepare({hidden, ids, weights});
}

}  // namespace
}  // namespace switchyard
