// SPDX-License-Identifier: Apache-2.0

#include "conformance/pairwise.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "conformance/check_case.h"

namespace switchyard::conformance {
namespace {

bool has_pair(const std::vector<Levels>& found, std::size_t a, std::size_t x, std::size_t b,
              std::size_t y) {
  return std::ranges::any_of(found, [&](const Levels& l) { return l[a] == x && l[b] == y; });
}

TEST(PairwiseTest, EveryPairOccursInFarFewerThanAllCombinations) {
  const Levels num_levels{4, 3, 5, 2, 3, 4};
  const std::vector<Levels> found = cover_pairs(num_levels);
  for (std::size_t a = 0; a < num_levels.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      for (std::size_t x = 0; x < num_levels[a]; ++x) {
        for (std::size_t y = 0; y < num_levels[b]; ++y) EXPECT_TRUE(has_pair(found, a, x, b, y));
      }
    }
  }
  EXPECT_LT(found.size(), 40u);  // of 1440 combinations
  EXPECT_EQ(found, cover_pairs(num_levels));
}

// The last value of factor 0 requires the last value of factor 1: one combination in 400 has both.
TEST(PairwiseTest, ConstraintsHoldAndRarePairsAreFound) {
  const Levels num_levels{20, 20, 3};
  const std::vector<Levels> found = cover_pairs(num_levels, [](Levels& l) {
    if (l[0] == 19 && l[1] != 19) l[0] = 0;
  });
  for (const Levels& l : found) EXPECT_FALSE(l[0] == 19 && l[1] != 19);
  for (std::size_t z = 0; z < 3; ++z) EXPECT_TRUE(has_pair(found, 0, 19, 2, z)) << z;
  EXPECT_TRUE(has_pair(found, 0, 19, 1, 19));
}

TEST(PairwiseTest, NoFactorsAndNoPairs) {
  EXPECT_TRUE(cover_pairs({}).empty());
  EXPECT_TRUE(cover_pairs({3}).empty());
}

// Names are what --filter matches and what people write down.
TEST(AllCasesTest, NamesAreUniqueAndBeginWithTheirGroup) {
  std::set<std::string> names;
  for (const CheckCase& test : all_cases()) {
    EXPECT_TRUE(names.insert(test.name).second) << test.name;
    EXPECT_EQ(test.name.rfind(test.group + "/", 0), 0u) << test.name;
    EXPECT_EQ(test.engine.empty(), test.num_ranks == 0) << test.name;
    const bool names_gpus = test.name.find("/cuda/") != std::string::npos ||
                            test.name.find("/cuda/") != std::string::npos;
    EXPECT_EQ(test.device, names_gpus ? "cuda" : "cpu") << test.name;
  }
  EXPECT_GT(names.size(), 800u);
}

}  // namespace
}  // namespace switchyard::conformance
