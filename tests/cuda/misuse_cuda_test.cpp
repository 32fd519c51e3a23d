// SPDX-License-Identifier: Apache-2.0
//
// Mistakes that only kernels can see: ranks that pass different options to one dispatch, and a
// captured combine that is replayed without its dispatch. Ranks are threads.

#include <unistd.h>

#include "core/clock.h"
#include "core/fail.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::CudaGraph;
using test::error_of;
using test::ExchangeRank;
using test::fault_config;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ExchangeOptions kPatient{.timeout_ms = 20'000};

class MisuseTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }

  // Waits until check() throws: the kernels of a rank may have found nothing.
  static Error cause_of(ExchangeRank& rank) {
    const Deadline deadline = Deadline::after_ms(10'000);
    while (!deadline.expired()) {
      try {
        rank.exchange().check();
      } catch (const Error& error) {
        return error;
      }
      usleep(1000);
    }
    return Error(Errc::kInternal, "check() found nothing");
  }

  static void expect_difference(const DispatchOptions& of_rank_1, const char* phrase) {
    run_ranks(2, [&](const Group& group) {
      const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
      ExchangeRank rank(group, fault_config(), kPatient);
      rank.pair();
      rank.finish();
      group.barrier();
      const std::int64_t start = now_ns();
      const DispatchOptions options = group.rank() == 1 ? of_rank_1 : DispatchOptions{};
      (void)rank.exchange().dispatch(rank.tokens(), rank.ids(), {}, rank.stream(), options);
      const Error cause = cause_of(rank);
      EXPECT_EQ(cause.code(), Errc::kInvalidArgument);
      EXPECT_THAT(cause.what(), AllOf(HasSubstr(phrase), HasSubstr("must pass the same")));
      EXPECT_LT(now_ns() - start, 5'000'000'000);
      cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
    });
  }
};

TEST_F(MisuseTest, OneRankSendsRoutingOnly) {
  expect_difference({.routing_only = true}, "routing_only true");
}

TEST_F(MisuseTest, OneRankPassesAnotherMaximumOfTokens) {
  ExchangeConfig config = fault_config();
  run_ranks(2, [&](const Group& group) {
    const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
    ExchangeRank rank(group, config, kPatient);
    DispatchOptions options;
    options.max_tokens = group.rank() == 1 ? config.max_tokens_per_rank - 1 : 0;
    const TensorView tokens = rank.tokens();
    const TensorView few(tokens.data(), tokens.dtype(), {1, config.hidden}, rank.device());
    const TensorView ids(rank.ids().data(), rank.ids().dtype(), {1, config.num_topk},
                         rank.device());
    (void)rank.exchange().dispatch(few, ids, {}, rank.stream(), options);
    const Error cause = cause_of(rank);
    EXPECT_EQ(cause.code(), Errc::kInvalidArgument);
    EXPECT_THAT(cause.what(), AllOf(HasSubstr("max_tokens 15"), HasSubstr("max_tokens 16")));
    cuda::check_cuda(cudaStreamSynchronize(rank.stream().get()), "kernels");
  });
}

TEST_F(MisuseTest, CombineIsReplayedWithoutItsDispatch) {
  run_ranks(2, [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
    ExchangeRank rank(group, fault_config(), kPatient);
    const Dispatched got = rank.dispatch();
    rank.finish();
    const cudaStream_t stream = rank.stream().get();
    const CudaGraph combine(stream, [&] { rank.combine(got); });
    group.barrier();
    combine.replay(stream);
    rank.finish();  // the first one is right
    combine.replay(stream);
    const Error cause = cause_of(rank);
    EXPECT_THAT(cause.what(), HasSubstr("without its dispatch"));
    cuda::check_cuda(cudaStreamSynchronize(stream), "kernels");
  });
}

}  // namespace
}  // namespace switchyard
