// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::conformance {
using test::run_ranks;

namespace {

TEST(ExchangeLocalTest, EqualsTheOracleBitForBit) {
  for (const ExchangeCase& test : exchange_cases({1, 2, 3, 7})) {
    ASSERT_NO_THROW(
        run_ranks(test.num_ranks, [&](const Group& group) { check_exchange(group, test); }));
  }
}

TEST(ExchangeLocalTest, TwoHandlesMayBeAlive) {
  for (const ExchangeCase& test : two_in_flight_cases(3)) {
    ASSERT_NO_THROW(run_ranks(3, [&](const Group& group) { check_two_in_flight(group, test); }));
  }
}

// Five ranks: three and two exchange side by side, numbered backwards.
TEST(ExchangeLocalTest, SubgroupsSideBySideEqualTheOracle) {
  const std::vector<ExchangeCase> cases = exchange_cases({2, 3});
  ASSERT_NO_THROW(run_ranks(5, [&](const Group& group) {
    const Group part = group.split(group.rank() < 3 ? 0 : 1, -group.rank());
    for (const ExchangeCase& test : cases) {
      if (test.num_ranks == part.size()) check_exchange(part, test);
    }
  }));
}

}  // namespace
}  // namespace switchyard::conformance
