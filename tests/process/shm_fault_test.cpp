// SPDX-License-Identifier: Apache-2.0
//
// Engine "shm" when a process dies, stops, leaves or never starts; no launcher is involved.

#include <unistd.h>

#include <atomic>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "engine/engine.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr auto kNever = [] { return false; };

TEST(ShmFaultTest, JobThatIsStoppedAsAWholeGoesOn) {
  test::Shared<std::atomic<int>> num_ready;
  test::Shared<std::atomic<int>> goes_on;
  RankProcesses ranks(2,
                      [&](const Group& group) {
                        ++*num_ready;
                        if (group.rank() == 1) wait_until(*goes_on, 1);
                        group.barrier();  // rank 0 waits here all the time
                      },
                      {.timeout_ms = 3000});
  wait_until(*num_ready, 2);
  for (const int rank : {0, 1}) ranks.send_signal(rank, SIGSTOP);
  usleep(4'000'000);
  for (const int rank : {0, 1}) ranks.send_signal(rank, SIGCONT);
  ++*goes_on;
  for (const RankOutcome& outcome : ranks.wait()) EXPECT_EQ(outcome.exit_code, 0) << what(outcome);
}

TEST(ShmFaultTest, KilledPeerIsNamedOnAllRanksAtOnce) {
  test::Shared<std::atomic<int>> num_waiting;
  RankProcesses ranks(4, [&](const Group& group) {
    ++*num_waiting;
    group.control().enter(Phase::kDispatchReceive, 17);
    group.control().wait({Phase::kDispatchReceive, 17, (group.rank() + 1) % 4}, kNever);
  });
  wait_until(*num_waiting, 4);
  const std::int64_t start = now_ns();
  ranks.send_signal(2, SIGKILL);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const std::size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(code(outcomes[rank]), Errc::kPeerLost);
    EXPECT_EQ(what(outcomes[rank]), "dispatch: rank 2 was lost (its process is gone) while rank " +
                                        std::to_string(rank) +
                                        " waited in dispatch receive, call 17");
  }
}

TEST(ShmFaultTest, KilledPeerIsNamedInABarrierAndInAWindow) {
  for (const bool in_window : {false, true}) {
    test::Shared<std::atomic<int>> num_ready;
    RankProcesses ranks(3, [&](const Group& group) {
      ++*num_ready;
      if (group.rank() == 0) group.control().wait({Phase::kIdle, 0, 1}, kNever);
      if (in_window) (void)group.engine().windows().make_window(4096);
      group.barrier();
    });
    wait_until(*num_ready, 3);
    ranks.send_signal(0, SIGKILL);
    const std::vector<RankOutcome> outcomes = ranks.wait();
    for (const std::size_t rank : {1u, 2u}) {
      EXPECT_EQ(code(outcomes[rank]), Errc::kPeerLost);
      EXPECT_THAT(what(outcomes[rank]), HasSubstr("rank 0 was lost (its process is gone)"));
    }
  }
}

TEST(ShmFaultTest, StoppedPeerIsATimeoutThatNamesIt) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(3,
                      [&](const Group& group) {
                        group.control().enter(Phase::kCombineSend, 5);
                        ++*num_ready;
                        while (*num_ready < 4) usleep(1000);
                        group.control().wait({Phase::kCombineReceive, 6, 1}, kNever);
                      },
                      {.timeout_ms = 500, .deadline_ms = 30'000});
  wait_until(*num_ready, 3);
  ranks.send_signal(1, SIGSTOP);
  const std::int64_t start = now_ns();
  ++*num_ready;
  for (const int rank : {0, 2}) {
    const RankOutcome outcome = ranks.wait_for(rank);
    EXPECT_EQ(code(outcome), Errc::kTimeout);
    EXPECT_THAT(what(outcome), HasSubstr("no answer from rank 1 within 0.5 s"));
    EXPECT_THAT(what(outcome), HasSubstr("last reached combine send, call 5"));
  }
  EXPECT_GE(seconds_since(start), 0.5);
  EXPECT_LT(seconds_since(start), 3.0);
  ranks.send_signal(1, SIGCONT);
  const RankOutcome late = ranks.wait_for(1);  // the stopped rank learns of it, too
  EXPECT_EQ(code(late), Errc::kTimeout);
}

TEST(ShmFaultTest, PeerThatLeftIsLostAtOnce) {
  const std::int64_t start = now_ns();
  RankProcesses ranks(2, [](const Group& group) {
    if (group.rank() == 0) group.control().wait({Phase::kCombineReceive, 3, 1}, kNever);
  });
  const std::vector<RankOutcome> outcomes = ranks.wait();
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(outcomes[1].exit_code, 0);
  EXPECT_EQ(code(outcomes[0]), Errc::kPeerLost);
  EXPECT_THAT(what(outcomes[0]), HasSubstr("rank 1 was lost (it left the group)"));
}

TEST(ShmFaultTest, PeerThatLeftIsNotMissedByOthers) {
  test::Shared<std::atomic<int>> flag;
  test::run_processes(3, [&](const Group& group) {
    if (group.rank() == 2) return;  // no rank waits for this one
    if (group.rank() == 1) {
      usleep(400'000);
      flag->store(1, std::memory_order_release);
      group.engine().windows().notify(0);
      return;
    }
    group.control().wait({Phase::kDispatchReceive, 1, 1},
                         [&] { return flag->load(std::memory_order_acquire) == 1; });
  });
}

TEST(ShmFaultTest, AbortReachesAllRanks) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(3, [&](const Group& group) {
    ++*num_ready;
    while (*num_ready < 3) usleep(1000);
    if (group.rank() == 1) group.abort("user said stop");
    group.control().wait({Phase::kDispatchReceive, 1, 0}, kNever);
  });
  wait_until(*num_ready, 3);
  const std::int64_t start = now_ns();
  for (const RankOutcome& outcome : ranks.wait()) {
    EXPECT_EQ(code(outcome), Errc::kAborted);
    EXPECT_THAT(what(outcome), HasSubstr("aborted by rank 1: user said stop"));
  }
  EXPECT_LT(seconds_since(start), 5.0);
}

TEST(ShmFaultTest, RanksThatNeverStartAreNamed) {
  RankProcesses ranks(4, [](const Group&) {},
                      {.timeout_ms = 700, .deadline_ms = 30'000, .num_missing = 2});
  const std::vector<RankOutcome> outcomes = ranks.wait();
  for (const std::size_t rank : {0u, 1u}) {
    EXPECT_EQ(code(outcomes[rank]), Errc::kTimeout);
    EXPECT_EQ(what(outcomes[rank]), "group: no sign of ranks 2-3 within 0.7 s (rank " +
                                        std::to_string(rank) + " of 4); did they start?");
  }
}

}  // namespace
}  // namespace switchyard
