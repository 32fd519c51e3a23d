// SPDX-License-Identifier: Apache-2.0
//
// Ranks that exchange messages, as threads: no window exists.

#include <algorithm>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"
#include "switchyard/tensor.h"

#include "conformance/exchange_soak.h"
#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::conformance {
namespace {

void run_ranks(int num_ranks, const std::function<void(const Group&)>& body) {
  run_local_ranks(num_ranks, body,
                  {.engine = "local-messages", .timeout_ms = test::kRanksTimeoutMs});
}

TEST(ExchangeMessagesTest, EqualsTheOracleBitForBit) {
  for (const ExchangeCase& test : exchange_cases({1, 2, 3, 7})) {
    ASSERT_NO_THROW(
        run_ranks(test.num_ranks, [&](const Group& group) { check_exchange(group, test); }));
  }
}

TEST(ExchangeMessagesTest, TwoHandlesMayBeAlive) {
  for (const ExchangeCase& test : two_in_flight_cases(3)) {
    ASSERT_NO_THROW(run_ranks(3, [&](const Group& group) { check_two_in_flight(group, test); }));
  }
}

// Beyond 16 ranks routing goes to the ranks concerned. Every layout with every contract.
TEST(ExchangeMessagesTest, ManyRanksEqualTheOracle) {
  std::map<std::pair<Layout, Reduce>, int> tried;
  for (const ExchangeCase& listed : exchange_cases({2})) {
    if (++tried[{listed.layout, listed.reduce}] > 1) continue;
    ExchangeCase test = listed;
    test.num_ranks = 17;
    test.num_tokens = 40;
    if (test.shape.num_topk > 0) test.shape.num_experts = 25;
    ASSERT_NO_THROW(run_ranks(17, [&](const Group& group) { check_exchange(group, test); }))
        << test.describe();
  }
  EXPECT_EQ(tried.size(), 12u);
}

TEST(ExchangeMessagesTest, SubgroupsSideBySideEqualTheOracle) {
  const std::vector<ExchangeCase> cases = exchange_cases({2, 3});
  ASSERT_NO_THROW(run_ranks(5, [&](const Group& group) {
    const Group part = group.split(group.rank() < 3 ? 0 : 1, -group.rank());
    for (const ExchangeCase& test : cases) {
      if (test.num_ranks == part.size()) check_exchange(part, test);
    }
  }));
}

// Both ranks send expert 2, on rank 1, two tokens, and it has room for one. Messages have brought
// the rows before anybody knows; from a window they are not read.
TEST(ExchangeMessagesTest, RowsThatAreDroppedHaveCrossed) {
  constexpr std::int64_t kRowBytes = 8 * 2;
  constexpr std::int64_t kIdBytes = 2 * 2;
  for (const bool has_messages : {true, false}) {
    const auto check = [&](const Group& group) {
      Exchange exchange(group, {.num_experts = 4,
                                .num_topk = 1,
                                .hidden = 8,
                                .max_tokens_per_rank = 2,
                                .layout = Layout::kBatched,
                                .sends_weights = false,
                                .capacity = 1,
                                .overflow = Overflow::kDrop});
      const Tensor tokens(DType::kBF16, {2, 8});
      const Tensor ids(DType::kI32, {2, 1});
      std::fill_n(ids.as<std::int32_t>(), 2, 2);
      const Dispatched got = exchange.dispatch(tokens, ids);
      const std::int64_t num_rows = group.rank() == 1 ? 0 : has_messages ? 2 : 1;
      EXPECT_EQ(exchange.wire_bytes(got.handle).dispatch, num_rows * kRowBytes + kIdBytes);
      exchange.release(got.handle);
    };
    if (has_messages) {
      run_ranks(2, check);
    } else {
      run_local_ranks(2, check, {.timeout_ms = test::kRanksTimeoutMs});
    }
  }
}

TEST(ExchangeMessagesTest, RandomCasesAgreeWithTheOracle) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const ExchangeCase test = random_exchange_case(seed, {1, 2, 3, 4});
    ASSERT_NO_THROW(run_ranks(test.num_ranks, [&](const Group& group) {
      const SoakTally tally = soak_exchange(group, test, Device::cpu(), 30);
      EXPECT_GE(tally.pairs, 30);
    }));
  }
}

}  // namespace
}  // namespace switchyard::conformance
