// SPDX-License-Identifier: Apache-2.0
//
// GPU waits that fail: a missing rank, an abort, a bad id or an exceeded capacity found by kernels.
// Ranks are threads; with fewer GPUs than ranks some share a GPU.

#include <unistd.h>

#include <limits>
#include <stdexcept>
#include <thread>

#include "core/clock.h"
#include "core/fail.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/observe.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::int64_t kLongMs = 100'000;  // timeout of groups; no test waits this long

// The cause, for a rank whose kernels found nothing.
Error wait_for_cause(const Exchange& exchange) {
  const Deadline deadline = Deadline::after_ms(20'000);
  while (!deadline.expired()) {
    try {
      exchange.check();
    } catch (const Error& error) {
      return error;
    }
    usleep(1000);
  }
  ADD_FAILURE() << "no cause came";
  return Error(Errc::kInternal, "no cause came");
}

// Every call throws the cause, and nothing is launched.
void expect_same_at_every_call(ExchangeRank& rank, const Dispatched& earlier, const Error& cause) {
  Exchange& exchange = rank.exchange();
  const auto expect_cause = [&](const std::function<void()>& call) {
    const Error error = error_of(call);
    EXPECT_EQ(error.code(), cause.code());
    EXPECT_STREQ(error.what(), cause.what());
  };
  const std::size_t launches = rank.num_launches([&] {
    expect_cause([&] { (void)rank.dispatch(); });
    expect_cause(
        [&] { (void)exchange.dispatch_send(rank.tokens(), rank.ids(), {}, rank.stream()); });
    expect_cause([&] { (void)exchange.dispatch_receive(earlier.handle, rank.stream()); });
    expect_cause([&] { rank.combine(earlier); });
    expect_cause(
        [&] { exchange.combine_send(earlier.handle, earlier.experts.rows, rank.stream()); });
    expect_cause([&] { exchange.combine_receive(earlier.handle, rank.output(), rank.stream()); });
    expect_cause([&] { exchange.check(); });
  });
  EXPECT_EQ(launches, 0u);
}

class FaultCudaTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }

  /// `body` gets each rank's exchange, which must be destroyed quickly whatever became of the
  /// group.
  static void run(int num_ranks, const ExchangeConfig& config, std::int64_t kernel_timeout_ms,
                  const std::function<void(const Group&, ExchangeRank&)>& body) {
    run_ranks(
        num_ranks,
        [&](const Group& group) {
          const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
          std::int64_t end_ns = 0;
          {
            ExchangeRank rank(group, config, {.timeout_ms = kernel_timeout_ms});
            body(group, rank);
            end_ns = now_ns();
          }
          EXPECT_LT(seconds_since(end_ns), 2.0) << "rank " << group.rank() << " was slow to end";
        },
        kLongMs);
  }
};

TEST_F(FaultCudaTest, RankThatNeverDispatchesIsNamedInTime) {
  run(3, fault_config(), 1500, [](const Group& group, ExchangeRank& rank) {
    rank.pair();
    rank.finish();
    if (group.rank() == 1) {
      const Error cause = wait_for_cause(rank.exchange());
      EXPECT_EQ(cause.code(), Errc::kTimeout);
      EXPECT_THAT(cause.what(), HasSubstr("from rank 1 within 1.5 s in dispatch receive"));
      return;
    }
    const std::int64_t start = now_ns();
    const Dispatched got = rank.dispatch();
    const Error cause = error_of([&] { rank.finish(); });
    EXPECT_GT(seconds_since(start), 1.3);
    EXPECT_LT(seconds_since(start), 2.5);
    EXPECT_EQ(cause.code(), Errc::kTimeout);
    EXPECT_THAT(cause.what(), HasSubstr("from rank 1 within 1.5 s in dispatch receive"));
    EXPECT_THAT(cause.what(), HasSubstr(fmt::format("(rank {} of 3", group.rank())));
    EXPECT_THAT(cause.what(), HasSubstr("call 2"));
    expect_same_at_every_call(rank, got, cause);
  });
}

TEST_F(FaultCudaTest, RankThatNeverCombinesIsNamed) {
  run(2, fault_config(Layout::kBatched), 1500, [](const Group& group, ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    rank.finish();
    if (group.rank() == 1) {
      EXPECT_EQ(wait_for_cause(rank.exchange()).code(), Errc::kTimeout);
      return;
    }
    rank.combine(got);
    expect_error(Errc::kTimeout, "from rank 1 within 1.5 s in combine receive",
                 [&] { rank.finish(); });
  });
}

TEST_F(FaultCudaTest, AbortFromAnotherThreadEndsKernelsAtOnce) {
  run(2, fault_config(), 0, [](const Group& group, ExchangeRank& rank) {
    if (group.rank() == 0) {
      std::int64_t aborted_ns = 0;
      std::jthread other([&] {
        usleep(200'000);
        aborted_ns = now_ns();
        group.abort("enough");
      });
      (void)rank.dispatch();
      cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
      const std::int64_t ended_ns = now_ns();
      other.join();
      EXPECT_GT(ended_ns, aborted_ns);
      EXPECT_LT(static_cast<double>(ended_ns - aborted_ns) * 1e-9, 0.25);
    }
    const Error cause = wait_for_cause(rank.exchange());
    EXPECT_EQ(cause.code(), Errc::kAborted);
    EXPECT_THAT(cause.what(), HasSubstr("the group was aborted by rank 0: enough"));
  });
}

// Replays that are already enqueued end too, each as soon as it starts.
TEST_F(FaultCudaTest, AbortEndsReplaysThatAreQueued) {
  run(2, fault_config(), 0, [](const Group& group, ExchangeRank& rank) {
    rank.capture(group);
    for (int i = 0; i < (group.rank() == 0 ? 40 : 20); ++i) rank.replay();
    if (group.rank() == 1) {
      rank.finish();
      usleep(100'000);
      group.abort("enough");
    }
    EXPECT_THAT(wait_for_cause(rank.exchange()).what(), HasSubstr("by rank 1: enough"));
    const std::int64_t start = now_ns();
    cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
    EXPECT_LT(seconds_since(start), 1.0);
  });
}

TEST_F(FaultCudaTest, RankThatThrowsEndsTheKernelsThatWaitForIt) {
  const std::int64_t start = now_ns();
  try {
    run(2, fault_config(), 0, [](const Group& group, ExchangeRank& rank) {
      if (group.rank() == 1) throw std::runtime_error("the user's own");
      (void)rank.dispatch();
      rank.finish();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the user's own");
  }
  EXPECT_LT(seconds_since(start), 30.0);
}

struct BadId {
  Layout layout;
  std::int64_t id;
  const char* phrase;
  bool is_i32 = false;
};

// Rank 1 has the bad id at [5, 1]; rank 0 learns of it.
TEST_F(FaultCudaTest, BadIdIsNamedByTokenAndChoice) {
  constexpr std::int64_t kFirstOfToken = 10 % 8;
  constexpr std::int64_t kMin = std::numeric_limits<std::int32_t>::min();
  for (const BadId& bad : {
           BadId{Layout::kExpanded, 99,
                 "topk_ids[5, 1] is 99, must be -1 or an expert from 0 to 7"},
           BadId{Layout::kCompact, 8, "topk_ids[5, 1] is 8, must be -1 or an expert from 0 to 7"},
           BadId{Layout::kBatched, -2, "topk_ids[5, 1] is out of range, must be"},
           BadId{Layout::kExpanded, std::int64_t{1} << 40, "topk_ids[5, 1] is out of range, must"},
           BadId{Layout::kBatched, kFirstOfToken, "which is twice in its token"},
           BadId{Layout::kBatched, 99, "topk_ids[5, 1] is 99, must be -1 or an expert", true},
           BadId{Layout::kCompact, -2, "topk_ids[5, 1] is -2, must be -1 or an expert", true},
           BadId{Layout::kExpanded, kMin, "topk_ids[5, 1] is -2147483648, must be", true},
           BadId{Layout::kCompact, kMin, "topk_ids[5, 1] is -2147483648, must be", true},
       }) {
    run(2, fault_config(bad.layout), 0, [&](const Group& group, ExchangeRank& rank) {
      const bool is_bad_rank = group.rank() == 1;
      if (is_bad_rank) {
        rank.set_ids([&](std::int64_t token, std::int64_t k) {
          return token == 5 && k == 1 ? bad.id : (2 * token + k) % 8;
        });
        if (bad.is_i32) rank.narrow_ids();
      }
      group.barrier();
      const Dispatched got = rank.dispatch();
      cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
      const Error cause = wait_for_cause(rank.exchange());
      EXPECT_EQ(cause.code(), is_bad_rank ? Errc::kInvalidArgument : Errc::kAborted);
      EXPECT_THAT(cause.what(), HasSubstr("topk_ids[5, "));
      EXPECT_THAT(cause.what(), HasSubstr(bad.phrase));
      expect_same_at_every_call(rank, got, cause);
    });
  }
}

TEST_F(FaultCudaTest, ExceededCapacityIsEveryRanksError) {
  ExchangeConfig config = fault_config(Layout::kBatched);
  config.capacity = 5;
  run(2, config, 0, [](const Group& group, ExchangeRank& rank) {
    rank.set_ids([](std::int64_t, std::int64_t k) { return k == 0 ? 6 : -1; });
    group.barrier();
    (void)rank.dispatch();
    cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
    const Error cause = wait_for_cause(rank.exchange());
    EXPECT_EQ(cause.code(), Errc::kCapacityExceeded);
    EXPECT_THAT(cause.what(),
                HasSubstr("local expert 2 of rank 1 was sent 32 rows, its capacity is 5"));
  });
}

TEST_F(FaultCudaTest, RankWithoutRowWeightsIsNamed) {
  for (const Layout layout : {Layout::kExpanded, Layout::kByRank, Layout::kAllGather}) {
    SCOPED_TRACE(name_of(layout));
    run(2, fault_config(layout), 0, [&](const Group& group, ExchangeRank& rank) {
      test::ReturnedWeights weights(rank.device(), fault_config(layout));
      group.barrier();
      const Dispatched got = rank.dispatch();
      rank.finish();
      if (group.rank() == 0) {
        weights.combine(rank, got);
      } else {
        rank.combine(got);
      }
      cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
      const Error cause = wait_for_cause(rank.exchange());
      EXPECT_EQ(cause.code(), group.rank() == 0 ? Errc::kInvalidArgument : Errc::kAborted);
      EXPECT_THAT(cause.what(), HasSubstr("returned_weights is requested, but rank 1 passed no "
                                          "row_weights to combine_send"));
      expect_same_at_every_call(rank, got, cause);
    });
  }
}

TEST_F(FaultCudaTest, RankWithoutRowsNeedsNoRowWeights) {
  run(2, fault_config(), 0, [](const Group& group, ExchangeRank& rank) {
    test::ReturnedWeights weights(rank.device(), fault_config());
    rank.set_ids([](std::int64_t, std::int64_t k) { return k; });  // rank 0's experts
    group.barrier();
    const Dispatched got = rank.dispatch();
    rank.finish();
    CombineOptions options = weights.options(got);
    if (group.rank() == 1) options.row_weights = {};
    rank.exchange().combine_send(got.handle, got.experts.rows, rank.stream(), options);
    rank.exchange().combine_receive(got.handle, rank.output(), rank.stream(), options);
    rank.finish();
    EXPECT_EQ(weights.bits(), weights.all_of(0x3F800000u));
  });
}

// Uses the group's timeout, which is multiplied for ranks that share a GPU.
TEST_F(FaultCudaTest, DeadlineOfTheGroupHoldsForKernels) {
  if (test::num_gpus() < 2) GTEST_SKIP() << "one GPU: 20 times the timeout";
  run_ranks(
      2,
      [](const Group& group) {
        const cuda::DeviceGuard guard(group.rank());
        ExchangeRank rank(group, fault_config());
        EXPECT_FALSE(rank.exchange().is_shared_gpu());
        if (group.rank() == 1) {
          EXPECT_EQ(wait_for_cause(rank.exchange()).code(), Errc::kTimeout);
          return;
        }
        const std::int64_t start = now_ns();
        (void)rank.dispatch();
        EXPECT_EQ(error_of([&] { rank.finish(); }).code(), Errc::kTimeout);
        EXPECT_LT(seconds_since(start), 9.0);
      },
      8000);
}

}  // namespace
}  // namespace switchyard
