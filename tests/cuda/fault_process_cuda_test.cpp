// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes and exchange between GPUs while one of them is killed, stopped or exits.
// The test itself never uses CUDA, because it forks the ranks. With fewer GPUs than ranks some
// share a GPU.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <signal.h>
#include <stdexcept>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "core/fail.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "run_in_child.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr int kNumRanks = 3;
constexpr int kVictim = 1;
constexpr std::int64_t kStopTimeoutMs = 2000;
const test::ProcessOptions kSlow{.timeout_ms = 60'000, .deadline_ms = 110'000};

// Runs pairs endlessly, a few of them enqueued at a time.
void exchange_on(const Group& group, ExchangeRank& rank, bool replays, std::atomic<int>& num_busy) {
  if (replays) rank.capture(group);
  for (int round = 0;; ++round) {
    for (int i = 0; i < 4; ++i) {
      if (replays) {
        rank.replay();
      } else {
        rank.pair();
      }
    }
    rank.finish();
    if (round == 4) ++num_busy;
  }
}

struct Case {
  const char* heap;
  bool replays;
};

class FaultProcessTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    REQUIRE_GPU_IN_CHILD();
    const std::string why = test::why_not(GetParam().heap);
    if (!why.empty()) GTEST_SKIP() << GetParam().heap << ": " << why;
  }

  // Sends `signal` to the victim while all exchange. Returns how the others ended; `seconds`: until
  // the last one had.
  std::vector<RankOutcome> strike(int signal, const ExchangeOptions& options,
                                  const ExchangeConfig& config = fault_config()) {
    RankProcesses ranks(
        kNumRanks,
        [&](const Group& group) {
          const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
          ExchangeRank rank(group, config, options);
          exchange_on(group, rank, GetParam().replays, *num_busy_);
        },
        kSlow);
    wait_until(*num_busy_, kNumRanks);
    usleep(20'000);
    const std::int64_t start = now_ns();
    ranks.send_signal(kVictim, signal);
    std::vector<RankOutcome> outcomes;
    for (int rank = 0; rank < kNumRanks; ++rank) {
      if (rank != kVictim) outcomes.push_back(ranks.wait_for(rank));
    }
    seconds_ = seconds_since(start);
    return outcomes;
  }

  static void expect_errors(const std::vector<RankOutcome>& outcomes, Errc code,
                            const std::string& phrase) {
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.error) << "signal " << outcome.signal << ": " << outcome.output;
      EXPECT_EQ(outcome.error->code(), code) << outcome.error->what();
      EXPECT_THAT(outcome.error->what(), HasSubstr(phrase));
    }
  }

  test::Shared<std::atomic<int>> num_busy_;
  double seconds_ = 0.0;
};

// The time includes the exit of the processes: destroying contexts takes about a second.
TEST_P(FaultProcessTest, KilledRankIsLostForAll) {
  const auto outcomes = strike(SIGKILL, {.heap = GetParam().heap});
  expect_errors(outcomes, Errc::kPeerLost, "rank 1 was lost (its process is gone)");
  EXPECT_LT(seconds_, 10.0);
}

TEST_P(FaultProcessTest, StoppedRankIsNamedWithinTheTimeout) {
  const auto outcomes = strike(SIGSTOP, {.timeout_ms = kStopTimeoutMs, .heap = GetParam().heap});
  expect_errors(outcomes, Errc::kTimeout, "from rank 1 within 2.0 s");
  EXPECT_LT(seconds_, 12.0);
}

INSTANTIATE_TEST_SUITE_P(All, FaultProcessTest,
                         ::testing::Values(Case{"vmm", false}, Case{"vmm", true},
                                           Case{"ipc", false}, Case{"ipc", true}),
                         [](const auto& param) {
                           return std::string(param.param.heap) +
                                  (param.param.replays ? "_graph" : "_calls");
                         });

class LeaveTest : public ::testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU_IN_CHILD(); }
};

// Measures how long the error takes, without the exit of processes.
TEST_F(LeaveTest, SurvivorsKnowWithinASecond) {
  test::Shared<std::atomic<int>> num_busy;
  test::Shared<std::atomic<std::int64_t>> killed_ns;
  RankProcesses ranks(
      kNumRanks,
      [&](const Group& group) {
        const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
        ExchangeRank rank(group, fault_config());
        try {
          exchange_on(group, rank, false, *num_busy);
        } catch (const Error&) {
          const double seconds = seconds_since(*killed_ns);
          const std::int64_t end_ns = now_ns();
          EXPECT_LT(seconds, rank.exchange().is_shared_gpu() ? 5.0 : 1.0);
          EXPECT_THROW(rank.exchange().check(), Error);
          EXPECT_LT(seconds_since(end_ns), 0.1);
        }
      },
      kSlow);
  wait_until(*num_busy, kNumRanks);
  *killed_ns = now_ns();
  ranks.send_signal(kVictim, SIGKILL);
  const auto outcomes = ranks.wait();
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << outcomes[rank].output;
  }
}

TEST_F(LeaveTest, RankThatEndsWithAnErrorOfItsOwnIsLost) {
  RankProcesses ranks(
      2,
      [](const Group& group) {
        const cuda::DeviceGuard guard(group.rank() % test::num_gpus());
        ExchangeRank rank(group, fault_config());
        rank.pair();
        rank.finish();
        if (group.rank() == 1) throw std::runtime_error("the user's own");
        rank.pair();
        rank.finish();
      },
      kSlow);
  const auto outcomes = ranks.wait();
  ASSERT_TRUE(outcomes[0].error) << outcomes[0].output;
  EXPECT_EQ(outcomes[0].error->code(), Errc::kPeerLost);
  EXPECT_THAT(outcomes[0].error->what(), HasSubstr("rank 1 was lost"));
  ASSERT_TRUE(outcomes[1].error) << outcomes[1].output;
  EXPECT_STREQ(outcomes[1].error->what(), "the user's own");
}

class NothingLeftTest : public FaultProcessTest {};

TEST_P(NothingLeftTest, NoProcessAndNoMemoryOnAnyGpu) {
  ExchangeConfig large = fault_config();
  large.hidden = 7168;
  large.max_tokens_per_rank = 512;
  constexpr std::int64_t kNoise = std::int64_t{48} << 20;
  const std::int64_t before = test::free_bytes_of_all_gpus();
  const auto outcomes = strike(SIGKILL, {.heap = GetParam().heap}, large);
  expect_errors(outcomes, Errc::kPeerLost, "rank 1 was lost");
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  const Deadline deadline = Deadline::after_ms(20'000);
  std::int64_t after = 0;
  do {
    after = test::free_bytes_of_all_gpus();
  } while (after + kNoise < before && !deadline.expired());
  EXPECT_GE(after + kNoise, before);
}

INSTANTIATE_TEST_SUITE_P(All, NothingLeftTest,
                         ::testing::Values(Case{"vmm", true}, Case{"ipc", false}),
                         [](const auto& param) { return std::string(param.param.heap); });

}  // namespace
}  // namespace switchyard
