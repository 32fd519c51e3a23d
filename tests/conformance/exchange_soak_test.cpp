// SPDX-License-Identifier: Apache-2.0
//
// Many pairs on one exchange: random cases agree with the oracle, and a wrong bit late in the run
// is found. exchange_soak runs the same for as long as one likes.

#include "conformance/exchange_soak.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace switchyard::conformance {
namespace {

using test::run_ranks;
using ::testing::HasSubstr;

TEST(ExchangeSoakTest, RandomCasesAgreeWithTheOracle) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const ExchangeCase test = random_exchange_case(seed, {1, 2, 3, 4});
    ASSERT_NO_THROW(run_ranks(test.num_ranks, [&](const Group& group) {
      const SoakTally tally = soak_exchange(group, test, Device::cpu(), 30);
      EXPECT_GE(tally.pairs, 30);
      EXPECT_EQ(tally.skipped, "");
    }));
  }
}

TEST(ExchangeSoakTest, RandomCasesDifferAndArePossible) {
  std::set<std::string> seen;
  std::set<int> ranks;
  std::set<Layout> layouts;
  int num_two_in_flight = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const ExchangeCase test = random_exchange_case(seed, {1, 2, 3, 7});
    ASSERT_NO_THROW((void)exchange_memory(test.config(), test.num_ranks, 0)) << test.describe();
    seen.insert(test.describe());
    ranks.insert(test.num_ranks);
    layouts.insert(test.layout);
    num_two_in_flight += test.max_in_flight == 2 ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 2000u);
  EXPECT_EQ(ranks.size(), 4u);
  EXPECT_EQ(layouts.size(), 5u);
  EXPECT_GT(num_two_in_flight, 500);
}

TEST(ExchangeSoakTest, AWrongBitIsFoundInALatePair) {
  ExchangeCase test;
  test.shape = {.num_experts = 4, .num_topk = 2, .hidden = 130};
  for (const bool in_output : {false, true}) {
    std::string found;
    try {
      run_ranks(2, [&](const Group& group) {
        int num_calls = 0;
        const auto flip = [&](const TensorView& view) {
          if (group.rank() == 1 && ++num_calls >= 60 && view.num_bytes() > 0) {
            view.as<std::byte>()[0] ^= std::byte{1};
          }
        };
        Tamper tamper;
        if (in_output) {
          tamper.combined = [&](const TensorView& output, const TensorView&) { flip(output); };
        } else {
          tamper.received = [&](Received& got) { flip(got.rows.experts.rows); };
        }
        (void)soak_exchange(group, test, Device::cpu(), 100, tamper);
      });
    } catch (const std::exception& error) {
      found = error.what();
    }
    EXPECT_THAT(found, HasSubstr(in_output ? "has other bits than" : "row 0 differs"));
    EXPECT_THAT(found, HasSubstr("P 2 E "));
  }
}

}  // namespace
}  // namespace switchyard::conformance
