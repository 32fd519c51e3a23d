// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "conformance/exchange_suite.h"
#include "support/processes.h"

namespace switchyard::conformance {
using test::run_processes;

namespace {

// One group of processes per number of ranks runs all cases of that number.
TEST(ExchangeShmTest, EqualsTheOracleBitForBit) {
  const std::vector<int> rank_counts{2, 3, 7};
  const std::vector<ExchangeCase> cases = exchange_cases(rank_counts);
  for (const int num_ranks : rank_counts) {
    run_processes(num_ranks, [&](const Group& group) {
      for (const ExchangeCase& test : cases) {
        if (test.num_ranks == num_ranks) check_exchange(group, test);
      }
    });
  }
}

TEST(ExchangeShmTest, TwoHandlesMayBeAlive) {
  run_processes(3, [&](const Group& group) {
    for (const ExchangeCase& test : two_in_flight_cases(3)) check_two_in_flight(group, test);
  });
}

// Five ranks: three and two exchange side by side, numbered backwards.
TEST(ExchangeShmTest, SubgroupsSideBySideEqualTheOracle) {
  const std::vector<ExchangeCase> cases = exchange_cases({2, 3});
  run_processes(5, [&](const Group& group) {
    const Group part = group.split(group.rank() < 3 ? 0 : 1, -group.rank());
    for (const ExchangeCase& test : cases) {
      if (test.num_ranks == part.size()) check_exchange(part, test);
    }
  });
}

}  // namespace
}  // namespace switchyard::conformance
