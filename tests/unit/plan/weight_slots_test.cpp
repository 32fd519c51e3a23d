// SPDX-License-Identifier: Apache-2.0
//
// Records of returned weights do not overlap; they alternate between two sets.

#include "plan/weight_slots.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

TEST(WeightSlotsTest, RecordsLieApart) {
  for (const int num_ranks : {1, 3, 64}) {
    for (const int num_topk : {1, 5, 32}) {
      constexpr std::int64_t kTokens = 7;
      const WeightSlots slots = make_weight_slots(kTokens, num_ranks, num_topk);
      std::vector<std::size_t> all;
      for (const std::uint64_t call : {4u, 5u}) {
        for (int r = 0; r < num_ranks; ++r) all.push_back(slots.flag(call, r));
        for (std::int64_t t = 0; t < kTokens; ++t) {
          for (int k = 0; k < num_topk; ++k) all.push_back(slots.choice(call, t, k));
        }
      }
      EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](std::size_t at) { return at % 8 == 0; }));
      std::sort(all.begin(), all.end());
      EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
      EXPECT_LE(all.back() + 8, slots.total_bytes);
    }
  }
}

TEST(WeightSlotsTest, ACallHasTheSetOfTheOneBeforeTheLast) {
  const WeightSlots slots = make_weight_slots(3, 2, 4);
  EXPECT_EQ(slots.flag(8, 1), slots.flag(6, 1));
  EXPECT_EQ(slots.choice(7, 2, 3), slots.choice(5, 2, 3));
  EXPECT_NE(slots.choice(7, 2, 3), slots.choice(6, 2, 3));
}

TEST(WeightSlotsTest, SizesThatOverflowAreRefused) {
  test::expect_invalid("overflows", [] { make_weight_slots(std::int64_t{1} << 61, 2, 8); });
}

}  // namespace
}  // namespace switchyard
