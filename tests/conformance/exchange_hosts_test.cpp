// SPDX-License-Identifier: Apache-2.0
//
// Ranks of several hosts, as threads: windows within a host, messages between hosts.

#include <gtest/gtest.h>

#include "conformance/exchange_soak.h"
#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::conformance {
using test::run_ranks_on_hosts;

namespace {

// Equal hosts, 3 + 1, ranks dealt out in turn, and numbers of hosts that do not ascend.
const std::vector<std::vector<int>> kHosts{
    {0, 0, 1, 1}, {0, 0, 0, 1}, {1, 1, 0}, {0, 1, 0, 1, 0, 1, 1}, {5, 2, 2, 9, 9, 5, 9}};

TEST(ExchangeHostsTest, EqualsTheOracleBitForBit) {
  for (const std::vector<int>& hosts : kHosts) {
    const auto num_ranks = static_cast<int>(hosts.size());
    for (const ExchangeCase& test : exchange_cases({num_ranks})) {
      ASSERT_NO_THROW(run_ranks_on_hosts(hosts, [&](const Group& group) {
        check_exchange(group, test);
      })) << ::testing::PrintToString(hosts);
    }
  }
}

TEST(ExchangeHostsTest, TwoHandlesMayBeAlive) {
  for (const std::vector<int>& hosts : kHosts) {
    for (const ExchangeCase& test : two_in_flight_cases(static_cast<int>(hosts.size()))) {
      ASSERT_NO_THROW(
          run_ranks_on_hosts(hosts, [&](const Group& group) { check_two_in_flight(group, test); }));
    }
  }
}

// Windows have a part for each source of another host.
TEST(ExchangeHostsTest, RowsLieInTheWindowsOfForwarders) {
  ExchangeCase test;
  test.num_ranks = 4;
  test.shape = {.num_experts = 8, .num_topk = 4, .hidden = 64};
  run_ranks_on_hosts({0, 0, 1, 1}, [&](const Group& group) {
    const ExchangeConfig config = test.config();
    const Exchange exchange(group, config);
    EXPECT_GT(exchange.memory().window_bytes,
              exchange_memory(config, 4, group.rank()).window_bytes);
  });
}

TEST(ExchangeHostsTest, RandomCasesAgreeWithTheOracle) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<int>& hosts = kHosts[seed % 3];
    const ExchangeCase test = random_exchange_case(seed, {static_cast<int>(hosts.size())});
    ASSERT_NO_THROW(run_ranks_on_hosts(hosts, [&](const Group& group) {
      const SoakTally tally = soak_exchange(group, test, Device::cpu(), 30);
      EXPECT_GE(tally.pairs, 30);
    }));
  }
}

}  // namespace
}  // namespace switchyard::conformance
