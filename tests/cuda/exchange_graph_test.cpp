// SPDX-License-Identifier: Apache-2.0
//
// Calls of an exchange between GPUs without the host between them: replays of a CUDA graph, and
// calls back to back.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "exchange_rank.h"
#include "gpu_arena.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::run_ranks;

constexpr Layout kLayouts[] = {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                               Layout::kByRank, Layout::kAllGather};

// Everything besides the rows is stream-ordered too.
TEST(ExchangeGraphTest, ReplaysGiveTheSame) {
  REQUIRE_GPU();
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    ExchangeConfig config = test::fault_config(layout);
    config.capacity = 3;  // of 4 rows that choose each expert
    config.overflow = Overflow::kDrop;
    config.combine_scheme = schemes::kFp8Block;
    run_ranks(1, [&](const Group& group) {
      const cuda::DeviceGuard guard(0);
      test::ExchangeRank rank(group, config, {.keeps_routing = true});
      rank.pair();
      rank.finish();
      const auto output = [&] {
        const test::Downloaded bytes(rank.output(), rank.stream());
        return std::vector<std::byte>(bytes.bytes().begin(), bytes.bytes().end());
      };
      const std::vector<std::byte> want = output();
      rank.capture(group);
      for (int i = 0; i < 3; ++i) {
        cuda::check_cuda(cudaMemset(rank.output().data(), 0x5A, want.size()), "poison");
        cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "poison");
        rank.replay();
        rank.finish();
        EXPECT_EQ(output(), want);
      }
    });
  }
}

// Back-to-back calls without host synchronization: weights never arrive later than the sums.
TEST(ExchangeWeightsTest, NoneIsLate) {
  constexpr int kCalls = 150;
  // On one GPU this can hang after other tests; see Heaps in docs/gpu.md.
  if (test::num_gpus() < 2) {
    GTEST_SKIP() << "needs two GPUs: threads that share one may keep each other from launching";
  }
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    SCOPED_TRACE(name_of(layout));
    const bool comes_early = layout != Layout::kExpanded;
    ExchangeConfig config = test::fault_config(layout);
    config.hidden = 16;  // makes rows about as fast as weights
    run_ranks(std::clamp(test::num_gpus(), 2, 4), [&](const Group& group) {
      const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
      test::ReturnedWeights weights(test::gpu_of(group.rank()), config, kCalls);
      test::ExchangeRank rank(group, config, {.programmatic_launch = comes_early});
      for (int call = 0; call < kCalls; ++call) weights.combine(rank, rank.dispatch(), call);
      rank.finish();
      group.barrier();
      EXPECT_EQ(weights.bits(), weights.all_of(0x3F800000u));
      group.barrier();
    });
  }
}

// Each replay sends the weights that the rows have at that time.
TEST(ExchangeGraphTest, ReplaysReturnWeights) {
  REQUIRE_GPU();
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    run_ranks(std::min(2, test::num_gpus()), [&](const Group& group) {
      const cuda::DeviceGuard guard(group.rank());
      test::ReturnedWeights weights(test::gpu_of(group.rank()), test::fault_config(layout));
      test::ExchangeRank rank(group, test::fault_config(layout));
      const auto call = [&] { weights.combine(rank, rank.dispatch()); };
      call();
      rank.finish();
      group.barrier();  // a capture allocates
      rank.capture(group, call);
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t bits = 0x3F000000u + static_cast<std::uint32_t>(i);
        weights.set(bits);
        group.barrier();
        rank.replay();
        rank.finish();
        EXPECT_EQ(weights.bits(), weights.all_of(bits));
        group.barrier();
      }
    });
  }
}

}  // namespace
}  // namespace switchyard
