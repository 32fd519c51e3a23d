// SPDX-License-Identifier: Apache-2.0
//
// The known answer is the example of DeepSeek's EPLB: two layers of 12 experts in 4 groups, 16
// copies on 2 hosts of 4 ranks.

#include <algorithm>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/eplb.h"

#include "core/random.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using ::testing::ElementsAre;
using Load = std::vector<std::int64_t>;
using Map = std::vector<std::int32_t>;

const Load kFirstLayer{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
const Load kSecondLayer{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
constexpr BalanceConfig kPublished{16, 8, 2, 4};

TEST(BalanceExpertsTest, PublishedExample) {
  EXPECT_THAT(balance_experts(kFirstLayer, kPublished),
              ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(balance_experts(kSecondLayer, kPublished),
              ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

// One copy per rank keeps the order in which copies are made: every expert, then the heaviest.
TEST(BalanceExpertsTest, OneCopyPerRankIsNotMoved) {
  EXPECT_THAT(balance_experts(Load{1, 9, 4}, {5, 5, 1, 1}), ElementsAre(0, 1, 2, 1, 1));
}

TEST(BalanceExpertsTest, TheFirstOfEqualsWins) {
  // Experts 0 and 1 are copied. Placed in order: 2 and 3, 0 and 1 together on the rank that is
  // lightest until it is full, their copies on the others.
  EXPECT_THAT(balance_experts(Load{3, 3, 3, 3}, {6, 3, 1, 1}), ElementsAre(2, 0, 3, 1, 0, 1));
  EXPECT_THAT(balance_experts(Load{0, 0}, {4, 2, 1, 1}), ElementsAre(0, 1, 0, 0));
}

TEST(BalanceExpertsTest, GroupsThatDoNotDivideAmongHostsGoAnywhere) {
  const BalanceConfig uneven{16, 8, 2, 3};
  const BalanceConfig global{16, 8, 1, 1};
  EXPECT_EQ(balance_experts(kFirstLayer, uneven), balance_experts(kFirstLayer, global));
}

Load random_load(std::uint64_t seed, std::size_t num_experts) {
  Load load;
  for (std::size_t e = 0; e < num_experts; ++e) {
    const std::uint64_t bits = random_bits(seed, e);
    load.push_back(static_cast<std::int64_t>(bits % 1000 / (1 + (bits >> 32) % 20)));
  }
  return load;
}

// Every expert has a copy, every rank its share of copies, and a host only the experts of its
// groups.
TEST(BalanceExpertsTest, PlacementsAreCompleteAndHostsKeepTheirGroups) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Load load = random_load(seed, 24);
    const BalanceConfig config{32, 8, 4, 8};
    const Map map = balance_experts(load, config);
    ASSERT_EQ(map.size(), 32u);
    const LogicalMaps maps = compute_logical_maps(map, 24);  // throws where a copy is missing
    std::vector<int> host_of_group(8, -1);
    for (std::size_t p = 0; p < map.size(); ++p) {
      const int host = static_cast<int>(p / 8);
      int& known = host_of_group[static_cast<std::size_t>(map[p] / 3)];
      ASSERT_TRUE(known == -1 || known == host) << "seed " << seed;
      known = host;
    }
    EXPECT_EQ(*std::max_element(maps.replica_counts.begin(), maps.replica_counts.end()),
              maps.max_replicas);
  }
}

TEST(BalanceExpertsTest, BalancedIsBetterThanTheInitialPlacement) {
  double before = 0;
  double after = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Load load = random_load(seed, 64);
    before += load_balance(load, initial_physical_to_logical(64, 16), 8);
    after += load_balance(load, balance_experts(load, {80, 8, 1, 1}), 8);
  }
  EXPECT_LT(before / 50, 0.8);
  EXPECT_GT(after / 50, 0.95);
}

TEST(LoadBalanceTest, IsMeanOverLargest) {
  EXPECT_DOUBLE_EQ(load_balance(Load{3, 1}, Map{0, 1}, 2), 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(load_balance(Load{3, 1}, Map{0, 1, 0, -1}, 2), 2.0 / 2.5);
  EXPECT_DOUBLE_EQ(load_balance(Load{4, 0}, Map{0, 0}, 2), 1.0);
  EXPECT_DOUBLE_EQ(load_balance(Load{0, 0}, Map{0, 1}, 2), 1.0);
  EXPECT_DOUBLE_EQ(load_balance(Load{8, 0, 0, 0}, Map{0, 1, 2, 3}, 4), 0.25);
}

TEST(BalanceExpertsTest, ErrorsNameTheValues) {
  const Load load{1, 2, 3, 4};
  const auto expect = [&](const char* phrase, const BalanceConfig& config) {
    expect_invalid(phrase, [&] { (void)balance_experts(load, config); });
  };
  expect("num_physical is 3, must be from 4 (the logical experts) to 65535", {3, 1, 1, 1});
  expect("num_physical is 6, must be a multiple of num_ranks (4)", {6, 4, 1, 1});
  expect("num_ranks is 4, must be a multiple of num_hosts (3)", {8, 4, 3, 1});
  expect("the number of logical experts is 4, must be a multiple of num_groups (3)", {8, 4, 1, 3});
  expect("num_ranks is 0, num_hosts 1, num_groups 1, must be at least 1 each", {8, 0, 1, 1});
  expect_invalid("the load has 0 logical experts", [] { (void)balance_experts({}, {}); });
  expect_invalid("the load of logical expert 1 is -2", [] {
    (void)balance_experts(Load{1, -2}, {2, 1, 1, 1});
  });
  const Load huge(2, std::numeric_limits<std::int64_t>::max());
  expect_invalid("experts 0 to 1 sum to more than 2^63 - 1", [&] {
    (void)balance_experts(huge, {2, 1, 1, 1});
  });
  expect_invalid("num_ranks is 3, must be a divisor of 4", [&] {
    (void)load_balance(load, Map{0, 1, 2, 3}, 3);
  });
  expect_invalid("logical expert 3 has 4 rows and 0 copies", [&] {
    (void)load_balance(load, Map{0, 1, 2, -1}, 2);
  });
  expect_invalid("physical expert 3 is logical expert 4", [&] {
    (void)load_balance(load, Map{0, 1, 2, 4}, 2);
  });
}

}  // namespace
}  // namespace switchyard
