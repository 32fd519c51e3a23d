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

}  // namespace
}  // namespace switchyard::conformance
