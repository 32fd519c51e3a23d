// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include <gmock/gmock.h>

#include "conformance/random_batch.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

struct Placed {
  std::vector<ExpertMajor> layouts;
  std::vector<Table<float>> outputs;
};

// Expert e returns a value that depends on the row and on e only.
Placed place(const Batch& batch, std::int64_t alignment) {
  Placed placed;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    placed.layouts.push_back(dispatch_expanded(batch, rank, alignment));
    const ExpertMajor& layout = placed.layouts.back();
    Table<float> rows = receive(batch, layout.rows, layout.num_rows);
    for (const Position& row : layout.rows) {
      const std::int32_t expert =
          first_expert(batch.num_experts, batch.num_ranks(), rank) + row.expert;
      for (float& value : rows.row(row.index)) {
        value = round_to(DType::kBF16, value * (1.0f + 0.25f * static_cast<float>(expert)));
      }
    }
    placed.outputs.push_back(std::move(rows));
  }
  return placed;
}

Table<float> concatenate(const std::vector<Table<float>>& parts) {
  Table<float> all(0, parts.front().cols);
  for (const Table<float>& part : parts) {
    all.data.insert(all.data.end(), part.data.begin(), part.data.end());
    all.rows += part.rows;
  }
  return all;
}

Table<float> per_expert(const Batch& batch, DType output = DType::kBF16) {
  const Placed placed = place(batch, 4);
  std::vector<Table<float>> parts;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    parts.push_back(combine_per_expert(batch, rank, placed.layouts, placed.outputs, output));
  }
  return concatenate(parts);
}

std::vector<Table<float>> partials(const Batch& batch, const Placed& placed, bool is_weighted) {
  std::vector<Table<float>> parts;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    parts.push_back(reduce_on_rank(batch, rank, placed.layouts[r], placed.outputs[r], is_weighted));
  }
  return parts;
}

Table<float> per_rank(const Batch& batch, DType output = DType::kBF16) {
  const std::vector<Table<float>> parts = partials(batch, place(batch, 4), true);
  std::vector<Table<float>> sums;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    sums.push_back(sum_partials(batch, rank, parts, {}, output));
  }
  return concatenate(sums);
}

// One token on rank 0 of `num_ranks`, H = 1; expert e returned value[e].
struct OneToken {
  Batch batch;
  Placed placed;

  OneToken(int num_ranks, std::vector<std::int32_t> ids, std::vector<float> weights,
           const std::vector<float>& value) {
    const auto num_topk = static_cast<std::int64_t>(ids.size());
    batch.num_experts = static_cast<std::int32_t>(value.size());
    batch.ranks.push_back({Table<float>(1, 1), Table<std::int32_t>(1, num_topk, std::move(ids)),
                           Table<float>(1, num_topk, std::move(weights))});
    for (int rank = 1; rank < num_ranks; ++rank) {
      batch.ranks.push_back(
          {Table<float>(0, 1), Table<std::int32_t>(0, num_topk), Table<float>(0, num_topk)});
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      placed.layouts.push_back(dispatch_expanded(batch, rank, 1));
      Table<float> rows(placed.layouts.back().num_rows, 1);
      const auto first = first_expert(batch.num_experts, num_ranks, rank);
      for (const Position& row : placed.layouts.back().rows) {
        rows(row.index, 0) = value[static_cast<std::size_t>(first + row.expert)];
      }
      placed.outputs.push_back(rows);
    }
  }

  float per_expert(std::span<const Table<float>> bias = {}) const {
    return combine_per_expert(batch, 0, placed.layouts, placed.outputs, DType::kF32, bias)(0, 0);
  }
  float per_rank(bool is_weighted, std::span<const Table<float>> bias = {},
                 PartialOrder order = PartialOrder::kHighestSlot) const {
    return sum_partials(batch, 0, partials(batch, placed, is_weighted), bias, DType::kF32, order)(
        0, 0);
  }
};

TEST(ReferenceCombineTest, PerExpertIsOneChainInTheOrderOfSlots) {
  // 2^24 + 1 ties to 2^24, so the 1 survives only when it comes last.
  const std::vector<float> value{0x1p24f, 1.0f, -0x1p24f};
  EXPECT_EQ(OneToken(1, {0, 1, 2}, {1, 1, 1}, value).per_expert(), 0.0f);
  EXPECT_EQ(OneToken(1, {0, 2, 1}, {1, 1, 1}, value).per_expert(), 1.0f);
  EXPECT_EQ(OneToken(3, {0, 1, 2}, {1, 1, 1}, value).per_expert(), 0.0f);
}

TEST(ReferenceCombineTest, PerExpertMultipliesInsideTheFma) {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24; a rounded product would lose it.
  const float x = 1.0f + 0x1p-12f;
  const OneToken token(1, {0, 1}, {-1.0f, x}, {1.0f + 0x1p-11f, x});
  EXPECT_EQ(token.per_expert(), 0x1p-24f);
}

TEST(ReferenceCombineTest, PerRankSumsOnTheRankFirst) {
  // Experts 0 and 1 on rank 0, 2 and 3 on rank 1: (2^24 - 2^24) + 1.
  const OneToken token(2, {0, 2, 1}, {1, 1, 1}, {0x1p24f, -0x1p24f, 1.0f, 0.0f});
  EXPECT_EQ(token.per_expert(), 0.0f);
  EXPECT_EQ(token.per_rank(true), 1.0f);
  EXPECT_EQ(token.per_rank(false), 1.0f);
}

TEST(ReferenceCombineTest, PerRankRoundsToTheWireOnce) {
  // 1 + 2^-8 is a bf16 tie and rounds to 1; as two rows of two ranks it survives in f32.
  EXPECT_EQ(OneToken(1, {0, 1}, {1, 1}, {1.0f, 0x1p-8f}).per_rank(true), 1.0f);
  EXPECT_EQ(OneToken(2, {0, 1}, {1, 1}, {1.0f, 0x1p-8f}).per_rank(true), 1.0f + 0x1p-8f);
}

// Rank r holds expert r; ranks 0 and 2 are on host 0, rank 1 on host 1.
TEST(ReferenceCombineTest, PerHostAddsRanksThenHostsAscending) {
  const std::vector<int> hosts{0, 1, 0};
  const auto per_host = [&](const std::vector<float>& value, std::vector<std::int32_t> ids,
                            DType wire) {
    const OneToken token(3, std::move(ids), {1, 1, 1}, value);
    const std::vector<Table<float>> parts = partials(token.batch, token.placed, true);
    return sum_hosts(token.batch, 0, parts, hosts, {wire}, {}, DType::kF32)(0, 0);
  };
  // (2^24 - 2^24) + 1, whatever the order of choices; per_rank in their order loses the 1.
  EXPECT_EQ(per_host({0x1p24f, 1.0f, -0x1p24f}, {0, 1, 2}, DType::kF32), 1.0f);
  EXPECT_EQ(per_host({0x1p24f, 1.0f, -0x1p24f}, {2, 1, 0}, DType::kF32), 1.0f);
  EXPECT_EQ(OneToken(3, {0, 1, 2}, {1, 1, 1}, {0x1p24f, 1.0f, -0x1p24f}).per_rank(true), 0.0f);
  // 1 + 2^-8 is a bf16 tie: the host's sum rounds to 1 on the wire, and 2^-8 of host 1 stays.
  EXPECT_EQ(per_host({1.0f, 0x1p-8f, 0x1p-8f}, {0, 1, 2}, DType::kBF16), 1.0f + 0x1p-8f);
  EXPECT_EQ(per_host({1.0f, 0x1p-8f, 0x1p-8f}, {0, 1, 2}, DType::kF32), 1.0f + 0x1p-7f);
}

TEST(ReferenceCombineTest, PartialRowsFollowTheHighestSlot) {
  // Rank 0 holds choices 0 and 3, rank 1 choice 1, rank 2 choice 2: the order is rank 1, rank 2,
  // rank 0. 1 - 2^24 is exact, and adding 2^24 gives 1. In rank order 2^24 + 1 would tie to 2^24.
  const OneToken token(3, {0, 2, 4, 1}, {1, 1, 1, 1}, {0x1p24f, 0.0f, 1.0f, 0.0f, -0x1p24f, 0.0f});
  EXPECT_EQ(token.per_rank(true), 1.0f);
  EXPECT_EQ(token.per_rank(true, {}, PartialOrder::kRank), 0.0f);
}

TEST(ReferenceCombineTest, BiasComesBeforeTheRowsInTheOrderGiven) {
  const OneToken token(1, {0}, {2.0f}, {-0x1p23f});
  const std::vector<Table<float>> bias{Table<float>(1, 1, 0x1p24f), Table<float>(1, 1, 1.0f)};
  EXPECT_EQ(token.per_rank(true, bias), 0.0f);
  EXPECT_EQ(token.per_expert(bias), 0.0f);
  const std::vector<Table<float>> swapped{bias[1], Table<float>(1, 1, 3.0f)};
  EXPECT_EQ(token.per_rank(true, swapped), 4.0f - 0x1p24f);
  EXPECT_EQ(token.per_expert(swapped), 4.0f - 0x1p24f);
  // Without weights the row is added unchanged.
  EXPECT_EQ(token.per_rank(false, swapped), 4.0f - 0x1p23f);
}

TEST(ReferenceCombineTest, UnusedSlotsAndDuplicates) {
  EXPECT_EQ(OneToken(2, {-1, -1}, {1, 1}, {5.0f, 6.0f}).per_expert(), 0.0f);
  EXPECT_EQ(OneToken(2, {-1, -1}, {1, 1}, {5.0f, 6.0f}).per_rank(true), 0.0f);
  EXPECT_EQ(OneToken(2, {1, 1}, {0.5f, 2.0f}, {5.0f, 6.0f}).per_expert(), 15.0f);
  EXPECT_EQ(OneToken(2, {1, 1}, {0.5f, 2.0f}, {5.0f, 6.0f}).per_rank(true), 15.0f);
}

TEST(ReferenceCombineTest, PerExpertHasTheSameBitsForEveryRankCount) {
  const conformance::BatchShape shapes[] = {
      {.num_experts = 16, .num_topk = 4, .hidden = 24},
      {.num_experts = 13, .num_topk = 6, .hidden = 7, .none_share = 0.3},
      {.num_experts = 5, .num_topk = 8, .hidden = 9, .none_share = 0.1, .has_duplicates = true},
      {.num_experts = 9, .num_topk = 3, .hidden = 5, .has_duplicates = true, .only_expert = 8},
      {.num_experts = 6, .num_topk = 2, .hidden = 4, .none_share = 1.0}};
  for (const conformance::BatchShape& shape : shapes) {
    const RankInput input = conformance::random_tokens(shape, 37, 11);
    for (const DType output : {DType::kBF16, DType::kF16, DType::kF32}) {
      const Table<float> one = per_expert(conformance::split(input, shape.num_experts, 1), output);
      for (const int num_ranks : {2, 3, 4, 7, 8}) {
        const Table<float> many =
            per_expert(conformance::split(input, shape.num_experts, num_ranks), output);
        ASSERT_EQ(conformance::bits_of_table(many), conformance::bits_of_table(one))
            << num_ranks << " ranks";
      }
    }
  }
}

TEST(ReferenceCombineTest, ReduceScatterByHand) {
  Batch batch{0, {}};
  for (const std::int64_t num_tokens : {1, 0, 2}) {
    batch.ranks.push_back({Table<float>(num_tokens, 1), Table<std::int32_t>(num_tokens, 0),
                           Table<float>(num_tokens, 0)});
  }
  // 2^24 + 1 is not a float, so the order of ranks matters.
  const std::vector<Table<float>> rows{Table<float>(3, 1, std::vector<float>{1, 0x1p24f, 1}),
                                       Table<float>(3, 1, std::vector<float>{2, 1, 1}),
                                       Table<float>(3, 1, std::vector<float>{3, 1, 0x1p24f})};
  EXPECT_THAT(reduce_scatter(batch, 0, rows, {}, DType::kF32).data, ::testing::ElementsAre(6));
  EXPECT_THAT(reduce_scatter(batch, 1, rows, {}, DType::kF32).data, ::testing::ElementsAre());
  EXPECT_THAT(reduce_scatter(batch, 2, rows, {}, DType::kF32).data,
              ::testing::ElementsAre(0x1p24f, 0x1p24f + 2));
}

TEST(ReferenceCombineTest, PerRankStaysCloseToPerExpert) {
  const conformance::BatchShape shape{.num_experts = 16, .num_topk = 6, .hidden = 32};
  const Batch batch = conformance::split(conformance::random_tokens(shape, 23, 5), 16, 4);
  const Table<float> exact = per_expert(batch, DType::kF32);
  const Table<float> fast = per_rank(batch, DType::kF32);
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < exact.data.size(); ++i) {
    error += std::pow(static_cast<double>(exact.data[i]) - static_cast<double>(fast.data[i]), 2);
    norm += std::pow(static_cast<double>(exact.data[i]), 2);
  }
  // Each partial sum is rounded once to 8 bits, so results differ, but by less than 2^-8 of their
  // magnitude.
  EXPECT_GT(error, 0.0);
  EXPECT_LT(std::sqrt(error / norm), 0x1p-8);
}

}  // namespace
}  // namespace switchyard::reference
