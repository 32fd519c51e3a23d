// SPDX-License-Identifier: Apache-2.0

#include "switchyard/token_counts.h"

#include <limits>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using ::testing::ElementsAre;
using Counts = std::vector<std::int64_t>;
constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

TEST(TokenCountsTest, SequenceParallelRanksShareRoundedUp) {
  EXPECT_THAT(compute_sp_num_tokens(Counts{5, 0, 4}, 2), ElementsAre(3, 3, 0, 0, 2, 2));
  EXPECT_THAT(compute_sp_num_tokens(Counts{7, 1}, 1), ElementsAre(7, 1));
  EXPECT_THAT(compute_sp_num_tokens(Counts{1}, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(compute_sp_num_tokens(Counts{kMax}, 2), ElementsAre(kMax / 2 + 1, kMax / 2 + 1));
}

TEST(TokenCountsTest, ChunksWalkInStepWithDummyTokens) {
  const Counts counts{10, 3, 0};
  EXPECT_THAT(compute_chunked_local_num_tokens(counts, 1, 4, 0), ElementsAre(4, 3, 1));
  EXPECT_THAT(compute_chunked_local_num_tokens(counts, 1, 4, 1), ElementsAre(4, 1, 1));
  EXPECT_THAT(compute_chunked_local_num_tokens(counts, 1, 4, 2), ElementsAre(2, 1, 1));
  EXPECT_THAT(compute_chunked_local_num_tokens(counts, 1, 4, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(compute_chunked_local_num_tokens(counts, 2, 4, 1), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(compute_chunked_local_num_tokens(Counts{kMax}, 1, kMax, 1), ElementsAre(1));
}

TEST(TokenCountsTest, PrefixSumsAreInclusive) {
  const TokenCounts counts({5, 0, 4});
  EXPECT_THAT(counts.cu_tokens_across_sp(1), ElementsAre(5, 5, 9));
  EXPECT_THAT(counts.cu_tokens_across_sp(2), ElementsAre(3, 6, 6, 6, 8, 10));
  EXPECT_EQ(counts.max_tokens_across_dp(), 5);
}

TEST(TokenCountsTest, LocalSizesAreThoseOfTheInnermostScope) {
  TokenCounts counts({10, 3});
  const auto outside = [&] { (void)counts.local_sizes(); };
  expect_invalid("no scope has set them", outside);
  {
    const auto whole = counts.sp_local_sizes(1);
    EXPECT_THAT(counts.local_sizes(), ElementsAre(10, 3));
    {
      const auto chunk = counts.chunked_sizes(1, 4, 2);
      EXPECT_THAT(counts.local_sizes(), ElementsAre(2, 1));
    }
    EXPECT_THAT(counts.local_sizes(), ElementsAre(10, 3));
  }
  expect_invalid("no scope has set them", outside);
}

TEST(TokenCountsTest, RefusesImpossibleCounts) {
  expect_invalid("rank 1 has -1 tokens", [] { (void)compute_sp_num_tokens(Counts{1, -1}, 1); });
  expect_invalid("sp_size is 0", [] { (void)compute_sp_num_tokens(Counts{1}, 0); });
  expect_invalid("ranks, must be at most 16777216",
                 [] { (void)compute_sp_num_tokens(Counts{1}, std::int64_t{1} << 40); });
  expect_invalid("overflows 64 bits", [] { (void)compute_sp_num_tokens(Counts{1, 2}, kMax); });
  expect_invalid("max_chunk is 0",
                 [] { (void)compute_chunked_local_num_tokens(Counts{1}, 1, 0, 0); });
  expect_invalid("overflows 64 bits",
                 [] { (void)compute_chunked_local_num_tokens(Counts{1}, 1, kMax, 2); });
  expect_invalid("overflows 64 bits", [] { (void)TokenCounts({kMax, 1}).cu_tokens_across_sp(1); });
  expect_invalid("0 data-parallel ranks", [] { TokenCounts counts({}); });
}

}  // namespace
}  // namespace switchyard
