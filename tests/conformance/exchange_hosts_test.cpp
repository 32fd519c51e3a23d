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

// Rank 0's token names the four experts of the other host, two on each of its ranks.
TEST(ExchangeHostsTest, BytesBetweenHostsAreThoseOfDistinctHosts) {
  constexpr std::int64_t kRowBytes = 32 * 2;
  for (const Reduce reduce : {Reduce::kPerHost, Reduce::kPerRank, Reduce::kPerExpert}) {
    run_ranks_on_hosts({0, 0, 1, 1}, [&](const Group& group) {
      const ExchangeConfig config{.num_experts = 8,
                                  .num_topk = 4,
                                  .hidden = 32,
                                  .max_tokens_per_rank = 1,
                                  .reduce = reduce,
                                  .sends_weights = false};
      Exchange exchange(group, config);
      const ExchangeMemory pulled = exchange_memory(config, 4, group.rank());
      EXPECT_GT(exchange.memory().window_bytes, pulled.window_bytes);
      const std::int64_t num_tokens = group.rank() == 0 ? 1 : 0;
      const Tensor tokens(DType::kBF16, {num_tokens, 32});
      const Tensor ids(DType::kI32, {num_tokens, 4});
      for (int k = 0; k < 4 * num_tokens; ++k) ids.as<std::int32_t>()[k] = 4 + k;
      const WireBytes bytes = exchange.wire_bytes(exchange.dispatch(tokens, ids).handle);
      const std::int64_t id_bytes = 4 * 2;
      // Ids to rank 1 and to the forwarder, rank 2; the row once.
      EXPECT_EQ(bytes.dispatch, group.rank() == 0 ? kRowBytes + 2 * id_bytes : 0);
      const std::int64_t num_near = reduce == Reduce::kPerExpert ? 2 : 1;
      const std::int64_t num_passed = reduce == Reduce::kPerExpert ? 4
                                      : reduce == Reduce::kPerRank ? 2
                                                                   : 1;
      const std::int64_t rows = group.rank() == 3 ? num_near : group.rank() == 2 ? num_passed : 0;
      EXPECT_EQ(bytes.combine, rows * kRowBytes);
    });
  }
}

TEST(ExchangeHostsTest, MemoryIsWhatTheFormulaSays) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {1, 0, 0, 0}, {2, 1, 0}}) {
    for (const Layout layout : {Layout::kExpanded, Layout::kBatched, Layout::kAllGather}) {
      run_ranks_on_hosts(hosts, [&](const Group& group) {
        ExchangeConfig config{.num_experts = 5,
                              .num_topk = 3,
                              .hidden = 24,
                              .max_tokens_per_rank = 11,
                              .layout = layout,
                              .max_in_flight = 3};
        const ExchangeMemory stated = exchange_memory(config, hosts, group.rank());
        const ExchangeMemory taken = Exchange(group, config).memory();
        EXPECT_EQ(taken.window_bytes, stated.window_bytes) << name_of(layout);
        EXPECT_EQ(taken.receive_bytes, stated.receive_bytes) << name_of(layout);
        EXPECT_EQ(stated.window_bytes == 0, hosts.size() == 3);
      });
    }
  }
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
