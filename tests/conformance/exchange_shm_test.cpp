// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "conformance/exchange_suite.h"
#include "support/processes.h"

namespace switchyard::test {
namespace {

// One group of processes for each number of ranks runs all its cases.
TEST(ExchangeShmTest, EqualsTheOracleBitForBit) {
  for (const int num_ranks : {2, 3, 7}) {
    run_processes(num_ranks, [&](const Group& group) {
      for (const ExchangeCase& test : exchange_cases({num_ranks})) check_exchange(group, test);
    });
  }
}

TEST(ExchangeShmTest, TwoHandlesMayBeAlive) {
  ExchangeCase test;
  test.num_ranks = 3;
  test.shape = {.num_experts = 9, .num_topk = 4, .hidden = 72, .none_share = 0.2};
  run_processes(3, [&](const Group& group) { check_two_in_flight(group, test); });
}

}  // namespace
}  // namespace switchyard::test
