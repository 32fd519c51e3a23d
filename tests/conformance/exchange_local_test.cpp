// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::test {
namespace {

TEST(ExchangeLocalTest, EqualsTheOracleBitForBit) {
  for (const ExchangeCase& test : exchange_cases({1, 2, 3, 7})) {
    ASSERT_NO_THROW(
        run_ranks(test.num_ranks, [&](const Group& group) { check_exchange(group, test); }));
  }
}

TEST(ExchangeLocalTest, TwoHandlesMayBeAlive) {
  ExchangeCase test;
  test.num_ranks = 3;
  test.shape = {.num_experts = 9, .num_topk = 4, .hidden = 72, .none_share = 0.2};
  for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
    test.reduce = reduce;
    ASSERT_NO_THROW(run_ranks(3, [&](const Group& group) { check_two_in_flight(group, test); }));
  }
}

}  // namespace
}  // namespace switchyard::test
