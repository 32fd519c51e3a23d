// SPDX-License-Identifier: Apache-2.0
//
// Sizes beyond the last-level cache; kept apart because thread sanitizers make them slow.

#include <gtest/gtest.h>

#include "conformance/exchange_suite.h"
#include "support/ranks.h"

namespace switchyard::conformance {
using test::run_ranks;

namespace {

TEST(ExchangeLargeTest, RowsTakeTheStreamingPath) {
  ExchangeCase test;
  test.shape = {.num_experts = 4, .num_topk = 2, .hidden = 4096};
  test.num_tokens = 3000;  // 49 MB of placed rows, more than caches hold
  test.is_long = false;
  ASSERT_NO_THROW(run_ranks(2, [&](const Group& group) { check_exchange(group, test); }));
  test.reduce = Reduce::kPerRank;
  ASSERT_NO_THROW(run_ranks(2, [&](const Group& group) { check_exchange(group, test); }));
}

}  // namespace
}  // namespace switchyard::conformance
