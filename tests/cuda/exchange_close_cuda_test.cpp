// SPDX-License-Identifier: Apache-2.0
//
// close() between GPUs of threads.

#include "close_case.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

TEST(ExchangeCloseCudaTest, EndsForAllRanksAndKeepsRows) {
  REQUIRE_GPU();
  for (const bool waits : {true, false}) {
    CloseFlags flags{};
    run_ranks(2, [&](const Group& group) {
      const cuda::DeviceGuard guard(gpu_of(group.rank()).index);
      close_and_go_on(group, {}, waits, flags);
    });
  }
}

// A rank that closes after the group was aborted waits for nobody.
TEST(ExchangeCloseCudaTest, AnAbortedGroupClosesAtOnce) {
  REQUIRE_GPU();
  run_ranks(2, [&](const Group& group) {
    const cuda::DeviceGuard guard(gpu_of(group.rank()).index);
    ExchangeRank rank(group, fault_config());
    rank.pair();
    rank.finish();
    group.barrier();
    if (group.rank() == 1) return;  // its end waits, too, until the group is aborted
    group.abort("a test");
    rank.exchange().close();
    EXPECT_TRUE(rank.exchange().is_closed());
  });
}

}  // namespace
}  // namespace switchyard
