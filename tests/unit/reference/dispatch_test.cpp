// SPDX-License-Identifier: Apache-2.0

#include <set>

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "conformance/random_batch.h"
#include "reference/reference.h"
#include "support/errors.h"

namespace switchyard::reference {
namespace {

using ::testing::ElementsAre;

// Two ranks, four experts: 0 and 1 on rank 0, 2 and 3 on rank 1. Token values are 10 * rank +
// token; token 1 of rank 1 names expert 1 twice.
Batch two_ranks() {
  Batch batch{4, {}};
  batch.ranks.push_back({Table<float>(2, 1, std::vector<float>{0, 1}),
                         Table<std::int32_t>(2, 2, std::vector<std::int32_t>{2, 3, 0, 2}),
                         Table<float>(2, 2, std::vector<float>{0.5f, 0.25f, 1.0f, 2.0f})});
  batch.ranks.push_back({Table<float>(2, 1, std::vector<float>{10, 11}),
                         Table<std::int32_t>(2, 2, std::vector<std::int32_t>{3, -1, 1, 1}),
                         Table<float>(2, 2, std::vector<float>{4.0f, 8.0f, 16.0f, 32.0f})});
  return batch;
}

TEST(ReferenceDispatchTest, BatchedByHand) {
  const Batch batch = two_ranks();
  const ExpertMajor placed = dispatch_batched(batch, 1, 3);
  EXPECT_THAT(placed.rows, ElementsAre(Position{0, 0, 0, 0, 0}, Position{0, 1, 1, 0, 1},
                                       Position{0, 0, 1, 1, 3}, Position{1, 0, 0, 1, 4}));
  EXPECT_THAT(placed.counts, ElementsAre(2, 2));
  EXPECT_THAT(placed.first_row, ElementsAre(0, 3));
  EXPECT_THAT(placed.segment_counts.data, ElementsAre(2, 0, 1, 1));
  EXPECT_THAT(placed.segment_first.data, ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(placed.num_rows, 6);
  EXPECT_THAT(receive(batch, placed.rows, placed.num_rows).data, ElementsAre(0, 1, 0, 0, 10, 0));
}

TEST(ReferenceDispatchTest, ExpandedByHand) {
  const ExpertMajor placed = dispatch_expanded(two_ranks(), 0, 4);
  // Expert 0 has one row and three rows of padding; the duplicate gives expert 1 two rows.
  EXPECT_THAT(placed.rows, ElementsAre(Position{0, 1, 0, 0, 0}, Position{1, 1, 0, 1, 4},
                                       Position{1, 1, 1, 1, 5}));
  EXPECT_THAT(placed.counts, ElementsAre(1, 2));
  EXPECT_THAT(placed.first_row, ElementsAre(0, 4));
  EXPECT_EQ(placed.num_rows, 8);
  EXPECT_EQ(dispatch_expanded(two_ranks(), 0, 1).num_rows, 3);
}

TEST(ReferenceDispatchTest, CompactByHand) {
  const RankMajor placed = dispatch_compact(two_ranks(), 1);
  EXPECT_THAT(placed.rows, ElementsAre(Position{0, 0, 1, -1, 0}, Position{0, 1, 1, -1, 1},
                                       Position{1, 0, 0, -1, 2}));
  EXPECT_THAT(placed.source_counts, ElementsAre(2, 1));
  EXPECT_THAT(placed.local_ids.data, ElementsAre(0, 1, -1, 0, 1, -1));
  EXPECT_THAT(placed.topk_ids.data, ElementsAre(2, 3, 0, 2, 3, -1));
  EXPECT_THAT(placed.topk_weights.data, ElementsAre(0.5f, 0.25f, 1.0f, 2.0f, 4.0f, 8.0f));
}

TEST(ReferenceDispatchTest, ByRankByHand) {
  const Batch batch = two_ranks();
  const RankMajor placed = dispatch_by_rank(batch, 0, 2);
  EXPECT_THAT(placed.rows, ElementsAre(Position{0, 1, 0, -1, 0}, Position{1, 1, 1, -1, 2}));
  EXPECT_EQ(placed.num_rows, 4);
  EXPECT_THAT(placed.topk_ids.data, ElementsAre(0, 2, -1, -1, 1, 1, -1, -1));
  EXPECT_THAT(placed.local_ids.data, ElementsAre(0, -1, -1, -1, 1, 1, -1, -1));
  EXPECT_THAT(receive(batch, placed.rows, placed.num_rows).data, ElementsAre(1, 0, 11, 0));
}

TEST(ReferenceDispatchTest, AllGatherByHand) {
  const RankMajor placed = dispatch_all_gather(two_ranks(), 1);
  EXPECT_THAT(placed.rows, ElementsAre(Position{0, 0, 1, -1, 0}, Position{0, 1, 1, -1, 1},
                                       Position{1, 0, 0, -1, 2}, Position{1, 1, -1, -1, 3}));
  EXPECT_THAT(placed.source_counts, ElementsAre(2, 2));
  EXPECT_THAT(placed.topk_ids.data, ElementsAre(2, 3, 0, 2, 3, -1, 1, 1));
  EXPECT_THAT(placed.local_ids.data, ElementsAre(0, 1, -1, 0, 1, -1, -1, -1));
}

TEST(ReferenceDispatchTest, OverflowKeepsTheLargestWeights) {
  // Expert 1 is chosen with 16 and 32, expert 2 with 0.5 and 2, expert 3 with 0.25 and 4.
  const Batch one = drop_overflow(two_ranks(), 1, true);
  EXPECT_THAT(one.ranks[0].topk_ids.data, ElementsAre(-1, -1, 0, 2));
  EXPECT_THAT(one.ranks[1].topk_ids.data, ElementsAre(3, -1, -1, 1));
  // With equal weights the earlier (rank, token, k) stays.
  const Batch tied = drop_overflow(two_ranks(), 1, false);
  EXPECT_THAT(tied.ranks[0].topk_ids.data, ElementsAre(2, 3, 0, -1));
  EXPECT_THAT(tied.ranks[1].topk_ids.data, ElementsAre(-1, -1, 1, -1));
  EXPECT_EQ(drop_overflow(two_ranks(), 2, true).ranks[1].topk_ids, two_ranks().ranks[1].topk_ids);
}

TEST(ReferenceDispatchTest, OverfullExpertIsNamed) {
  test::expect_invalid("local expert 1 receives 2 rows",
                       [] { dispatch_batched(two_ranks(), 0, 1); });
  EXPECT_THROW(dispatch_by_rank(two_ranks(), 1, 1), Error);
}

TEST(ReferenceDispatchTest, NothingToSend) {
  const conformance::BatchShape none{
      .num_experts = 7, .num_topk = 3, .hidden = 4, .none_share = 1.0};
  for (const std::int64_t num_tokens : {0, 5}) {
    const Batch batch = conformance::split(conformance::random_tokens(none, num_tokens, 1), 7, 3);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(dispatch_expanded(batch, rank, 8).rows.empty());
      EXPECT_EQ(dispatch_expanded(batch, rank, 8).num_rows, 0);
      EXPECT_EQ(dispatch_compact(batch, rank).num_rows, 0);
    }
  }
}

TEST(ReferenceDispatchTest, EverySlotLandsOnceForAnyRankCount) {
  const conformance::BatchShape shape{
      .num_experts = 13, .num_topk = 5, .hidden = 3, .none_share = 0.2, .has_duplicates = true};
  const RankInput input = conformance::random_tokens(shape, 29, 7);
  std::size_t num_slots = 0;
  for (const std::int32_t id : input.topk_ids.data) num_slots += id >= 0 ? 1 : 0;
  for (const int num_ranks : {1, 2, 3, 4, 7, 8, 17}) {
    const Batch batch = conformance::split(input, 13, num_ranks);
    std::set<std::tuple<int, std::int64_t, std::int32_t>> seen;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const ExpertMajor placed = dispatch_expanded(batch, rank, 4);
      const Table<float> rows = receive(batch, placed.rows, placed.num_rows);
      for (const Position& row : placed.rows) {
        const RankInput& source = batch.ranks[static_cast<std::size_t>(row.source)];
        EXPECT_EQ(source.topk_ids(row.token, row.slot),
                  first_expert(13, num_ranks, rank) + row.expert);
        EXPECT_THAT(rows.row(row.index), ::testing::ElementsAreArray(source.tokens.row(row.token)));
        EXPECT_TRUE(seen.emplace(row.source, row.token, row.slot).second);
      }
    }
    EXPECT_EQ(seen.size(), num_slots);
  }
}

TEST(ReferenceDispatchTest, QuantizedRowsCarryTheirScales) {
  const Batch batch = two_ranks();
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Token, schemes::kFp8Tensor}) {
    std::vector<QuantizedRows> sent;
    for (const RankInput& input : batch.ranks) sent.push_back(quantize(scheme, input.tokens));
    const ExpertMajor placed = dispatch_expanded(batch, 1, 1);
    const QuantizedRows rows = receive(sent, placed.rows, placed.num_rows);
    EXPECT_EQ(rows.scales.rows, 4);
    const Table<float> values = dequantize(scheme, rows);
    for (const Position& row : placed.rows) {
      const auto source = static_cast<std::size_t>(row.source);
      EXPECT_EQ(values(row.index, 0), dequantize(scheme, sent[source])(row.token, 0));
    }
  }
}

}  // namespace
}  // namespace switchyard::reference
