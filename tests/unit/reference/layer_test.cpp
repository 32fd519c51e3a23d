// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "conformance/random_batch.h"
#include "reference/reference.h"
#include "support/tiny_moe.h"

namespace switchyard::reference {
namespace {

Layer random_layer(std::int32_t num_experts, std::int32_t num_topk, std::int64_t hidden,
                   std::int64_t intermediate) {
  Layer layer;
  layer.router.num_experts = num_experts;
  layer.router.num_topk = num_topk;
  layer.router.norm_topk_prob = true;
  layer.router_gate = conformance::random_table(num_experts, hidden, 100);
  const auto mlp = [&](std::int32_t experts, std::uint64_t seed) {
    return MlpWeights{experts,
                      hidden,
                      intermediate,
                      conformance::random_table(experts * intermediate, hidden, seed, 0.2f),
                      conformance::random_table(experts * intermediate, hidden, seed + 1, 0.2f),
                      conformance::random_table(experts * hidden, intermediate, seed + 2, 0.2f)};
  };
  layer.experts = mlp(num_experts, 200);
  layer.shared = mlp(1, 300);
  layer.shared_gate = conformance::random_table(1, hidden, 400).data;
  return layer;
}

Table<float> rows_of(const Table<float>& table, std::int64_t begin, std::int64_t end) {
  Table<float> part(end - begin, table.cols);
  for (std::int64_t t = begin; t < end; ++t) {
    std::ranges::copy(table.row(t), part.row(t - begin).begin());
  }
  return part;
}

Table<float> run_split(const Layer& layer, const Table<float>& hidden, int num_ranks,
                       Reduce reduce) {
  std::vector<Table<float>> parts;
  for (int rank = 0; rank < num_ranks; ++rank) {
    parts.push_back(rows_of(hidden, conformance::split_point(hidden.rows, num_ranks, rank),
                            conformance::split_point(hidden.rows, num_ranks, rank + 1)));
  }
  Table<float> all(0, hidden.cols);
  for (const Table<float>& part : run_layer(layer, parts, reduce)) {
    all.data.insert(all.data.end(), part.data.begin(), part.data.end());
    all.rows += part.rows;
  }
  return all;
}

double relative_error(const Table<float>& got, const Table<float>& want) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    error += std::pow(static_cast<double>(got.data[i]) - static_cast<double>(want.data[i]), 2);
    norm += std::pow(static_cast<double>(want.data[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(ReferenceLayerTest, PerExpertIsTheLayerWithoutRanks) {
  const Table<float> hidden = conformance::random_table(19, 24, 1);
  Layer layer = random_layer(7, 3, 24, 10);
  QuantScheme packed = schemes::kFp8BlockDeepEp;
  packed.scale_format = ScaleFormat::kE8M0Packed;
  for (const QuantScheme& scheme :
       {schemes::kNone, schemes::kFp8Block, packed, schemes::kFp8Token, schemes::kFp8Tensor}) {
    layer.dispatch = scheme;
    layer.intermediate = scheme;
    // A dynamic per-tensor scale would depend on how tokens are split.
    layer.static_scale = 0.01f;
    const Table<float> want = run_layer(layer, hidden);
    for (const int num_ranks : {1, 2, 3, 4, 7, 8}) {
      ASSERT_EQ(conformance::bits_of_table(run_split(layer, hidden, num_ranks, Reduce::kPerExpert)),
                conformance::bits_of_table(want))
          << num_ranks << " ranks";
    }
  }
}

TEST(ReferenceLayerTest, PerRankIsClose) {
  const Table<float> hidden = conformance::random_table(19, 24, 2);
  const Layer layer = random_layer(9, 4, 24, 10);
  const Table<float> want = run_layer(layer, hidden);
  for (const int num_ranks : {1, 3, 8}) {
    EXPECT_LT(relative_error(run_split(layer, hidden, num_ranks, Reduce::kPerRank), want), 0x1p-7);
  }
}

TEST(ReferenceLayerTest, NoTokensAnywhere) {
  const Layer layer = random_layer(4, 2, 8, 4);
  const Table<float> output = run_split(layer, Table<float>(0, 8), 3, Reduce::kPerRank);
  EXPECT_EQ(output.rows, 0);
}

TEST(ReferenceLayerTest, SharedRowIsScaledByTheSigmoidOfItsGate) {
  Layer layer = random_layer(4, 2, 8, 4);
  const Table<float> hidden = conformance::random_table(3, 8, 6);
  layer.shared_gate.assign(8, 0.0f);
  const Table<float> half = shared_rows(layer, hidden);
  layer.shared_gate.clear();
  const Table<float> whole = shared_rows(layer, hidden);
  for (std::size_t i = 0; i < half.data.size(); ++i) {
    EXPECT_EQ(half.data[i], 0.5f * whole.data[i]);
  }
}

TEST(ReferenceLayerTest, TinyMoeMatchesItsDoublePrecisionOutput) {
  const auto file = test::open_tiny_moe("activations.safetensors");
  const Table<float> hidden = rows_of(test::load_table(*file, "hidden_states"), 0, 128);
  Layer layer = test::load_tiny_moe();
  Table<float> want = test::load_table(*file, "routed_output");
  const Table<float> shared = test::load_table(*file, "shared_output");
  for (std::size_t i = 0; i < want.data.size(); ++i) want.data[i] += shared.data[i];
  want = rows_of(want, 0, 128);
  EXPECT_LE(relative_error(run_layer(layer, hidden), want), 5e-3);
  EXPECT_LE(relative_error(run_split(layer, hidden, 4, Reduce::kPerRank), want), 5e-3);
  // fp8 in dispatch costs accuracy, but must not cost more than that format's step.
  layer.dispatch = schemes::kFp8Block;
  const double fp8_error = relative_error(run_layer(layer, hidden), want);
  EXPECT_GT(fp8_error, 5e-3);
  EXPECT_LE(fp8_error, 5e-2);
}

TEST(ReferenceLayerTest, TinyMoeRouting) {
  const auto file = test::open_tiny_moe("activations.safetensors");
  const Layer layer = test::load_tiny_moe();
  const Table<float> hidden = test::load_table(*file, "hidden_states");
  const Routing routing =
      select_experts(layer.router, router_logits(hidden, layer.router_gate), {});
  const Table<float> weights = test::load_table(*file, "topk_weights");
  const Table<std::int32_t> ids = test::load_ids(*file, "topk_ids");
  for (std::size_t i = 0; i < ids.data.size(); ++i) {
    ASSERT_EQ(routing.topk_ids.data[i], ids.data[i]) << "slot " << i;
    ASSERT_NEAR(routing.topk_weights.data[i], weights.data[i], 1e-3) << "slot " << i;
  }
}

}  // namespace
}  // namespace switchyard::reference
