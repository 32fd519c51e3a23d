// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include <gmock/gmock.h>

#include "conformance/random_batch.h"
#include "quant/exp.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

MlpWeights random_weights(std::int32_t num_experts, std::int64_t hidden, std::int64_t intermediate,
                          std::uint64_t seed) {
  const std::int64_t inner = num_experts * intermediate;
  return {num_experts,
          hidden,
          intermediate,
          conformance::random_table(inner, hidden, seed, 0.1f),
          conformance::random_table(inner, hidden, seed + 1, 0.1f),
          conformance::random_table(num_experts * hidden, intermediate, seed + 2, 0.1f)};
}

TEST(ReferenceExpertTest, SiluKnownAnswers) {
  EXPECT_EQ(silu(0.0f), 0.0f);
  EXPECT_NEAR(silu(1.0f), 0.7310586, 1e-6);
  EXPECT_NEAR(silu(-2.0f), -0.2384058, 1e-6);
  EXPECT_EQ(silu(100.0f), 100.0f);
  EXPECT_NEAR(silu(-100.0f), 0.0, 1e-37);
}

TEST(ReferenceExpertTest, MlpByHand) {
  // H = 2, I = 1. Expert 1: gate (100, 0), up (0, 3), down (2, -1): x = (1, 2) gives h = 100 * 6.
  MlpWeights weights{2, 2, 1, {4, 2}, {4, 2}, {4, 1}};
  weights.gate = Table<float>(2, 2, std::vector<float>{9, 9, 100, 0});
  weights.up = Table<float>(2, 2, std::vector<float>{9, 9, 0, 3});
  weights.down = Table<float>(4, 1, std::vector<float>{9, 9, 2, -1});
  const Table<float> x(1, 2, std::vector<float>{1, 2});
  // The activation, 600, is a bf16 value.
  EXPECT_THAT(expert_mlp(weights, 1, x, {}).data, ElementsAre(1200, -600));
  // As e4m3 with scale 600 / 448 it is 448 * scale = 600 again.
  EXPECT_THAT(expert_mlp(weights, 1, x, schemes::kFp8Token).data, ElementsAre(1200, -600));
}

TEST(ReferenceExpertTest, ActivationIsRoundedOnce) {
  // silu(257) * 1 is 257, a bf16 tie that rounds to 256; silu(256) * -1 cancels it.
  MlpWeights weights{1, 1, 2, {}, {}, {}};
  weights.gate = Table<float>(2, 1, std::vector<float>{257, 256});
  weights.up = Table<float>(2, 1, std::vector<float>{1, -1});
  weights.down = Table<float>(1, 2, 1.0f);
  EXPECT_EQ(expert_mlp(weights, 0, Table<float>(1, 1, 1.0f), {})(0, 0), 0.0f);
}

TEST(ReferenceExpertTest, AgreesWithDoublePrecision) {
  const MlpWeights weights = random_weights(3, 31, 17, 1);
  const Table<float> x = conformance::random_table(5, 31, 9);
  const Table<float> y = expert_mlp(weights, 2, x, {});
  for (std::int64_t n = 0; n < 5; ++n) {
    for (std::int64_t h = 0; h < 31; ++h) {
      double want = 0.0;
      for (std::int64_t i = 0; i < 17; ++i) {
        double gate = 0.0;
        double up = 0.0;
        for (std::int64_t j = 0; j < 31; ++j) {
          gate += static_cast<double>(weights.gate(34 + i, j)) * static_cast<double>(x(n, j));
          up += static_cast<double>(weights.up(34 + i, j)) * static_cast<double>(x(n, j));
        }
        want += static_cast<double>(weights.down(62 + h, i)) * gate / (1.0 + std::exp(-gate)) * up;
      }
      // Activation and output are rounded to 8 bits.
      EXPECT_NEAR(y(n, h), want, std::abs(want) * 0.01 + 2e-3);
    }
  }
}

TEST(ReferenceExpertTest, RowsDoNotDependOnEachOtherButForTensorScales) {
  const MlpWeights weights = random_weights(1, 16, 140, 4);
  const Table<float> x = conformance::random_table(3, 16, 5);
  for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kFp8Token}) {
    const Table<float> together = expert_mlp(weights, 0, x, scheme);
    for (std::int64_t n = 0; n < 3; ++n) {
      Table<float> row(1, 16);
      std::ranges::copy(x.row(n), row.row(0).begin());
      const Table<float> alone = expert_mlp(weights, 0, row, scheme);
      EXPECT_THAT(together.row(n), ::testing::ElementsAreArray(alone.row(0)));
    }
  }
}

TEST(ReferenceExpertTest, BufferRowsGoToTheirExpertAndPaddingStaysZero) {
  const conformance::BatchShape shape{.num_experts = 5, .num_topk = 2, .hidden = 12};
  const Batch batch = conformance::split(conformance::random_tokens(shape, 9, 3), 5, 2);
  const MlpWeights weights = random_weights(5, 12, 6, 8);
  const ExpertMajor placed = dispatch_expanded(batch, 1, 8);
  const Table<float> rows = receive(batch, placed.rows, placed.num_rows);
  const Table<float> output = apply_experts(weights, 3, placed, rows, {});
  std::vector<bool> is_row(static_cast<std::size_t>(placed.num_rows), false);
  for (const Position& row : placed.rows) {
    is_row[static_cast<std::size_t>(row.index)] = true;
    Table<float> x(1, 12);
    std::ranges::copy(rows.row(row.index), x.row(0).begin());
    const Table<float> want = expert_mlp(weights, 3 + row.expert, x, {});
    EXPECT_THAT(output.row(row.index), ::testing::ElementsAreArray(want.row(0)));
  }
  for (std::int64_t n = 0; n < placed.num_rows; ++n) {
    if (!is_row[static_cast<std::size_t>(n)]) {
      EXPECT_THAT(output.row(n), ::testing::Each(0.0f));
    }
  }
}

}  // namespace
}  // namespace switchyard::reference
