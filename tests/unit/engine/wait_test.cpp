// SPDX-License-Identifier: Apache-2.0
//
// An engine's waits: no notification is missed, every wait ends, and errors have the right text.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "core/interrupt.h"
#include "engine/engine.h"
#include "support/observe.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr auto kNever = [] { return false; };

// More ranks than test machines have cores, so every wait sleeps at once.
TEST(WaitTest, RingOfManyRanksMissesNoBell) {
  constexpr int kRanks = 16;
  std::atomic<int> token = 0;
  run_ranks(kRanks, [&](const Group& group) {
    Control& control = group.control();
    for (int lap = 0; lap < 200; ++lap) {
      const int mine = lap * kRanks + group.rank();
      control.wait({Phase::kCombineReceive, 1, (group.rank() + kRanks - 1) % kRanks},
                   [&] { return token.load(std::memory_order_acquire) == mine; });
      token.store(mine + 1, std::memory_order_release);
      group.engine().windows().notify((group.rank() + 1) % kRanks);
    }
  });
  EXPECT_EQ(token, 200 * kRanks);
}

TEST(WaitTest, DeadlineNamesPeerPhaseAndCall) {
  std::atomic<bool> is_done = false;
  const std::int64_t start = now_ns();
  const Error error = error_of([&] {
    run_ranks(
        3,
        [&](const Group& group) {
          Control& control = group.control();
          if (group.rank() == 0) control.wait({Phase::kCombineReceive, 1841, 1}, kNever);
          control.enter(Phase::kDispatchSend, 1840);
          while (!is_done && seconds_since(start) < 0.6) std::this_thread::yield();
        },
        300);
  });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_STREQ(error.what(),
               "combine: no answer from rank 1 within 0.3 s (rank 0 of 3, call 1841); it last "
               "reached dispatch send, call 1840");
  EXPECT_GE(seconds_since(start), 0.3);
}

// The check is the process's: it holds for the one thread that is to be interrupted.
TEST(WaitTest, ProgramInterruptsItsOwnRank) {
  static thread_local bool is_wanted = false;
  static std::atomic<int> num_checks = 0;
  num_checks = 0;
  set_interrupt_check([] { return is_wanted && ++num_checks == 2; });
  const std::int64_t start = now_ns();
  const Error error = error_of([&] {
    run_ranks(2, [&](const Group& group) {
      is_wanted = group.rank() == 1;
      group.control().wait({Phase::kCombineReceive, 5, 1 - group.rank()}, kNever);
    });
  });
  set_interrupt_check(nullptr);
  EXPECT_EQ(error.code(), Errc::kAborted);
  EXPECT_THAT(error.what(), HasSubstr("the group was aborted by rank 1: it was interrupted"));
  EXPECT_EQ(num_checks, 2);
  EXPECT_LT(seconds_since(start), 5.0);
}

TEST(WaitTest, TimeoutOfOneReachesTheOthersAtOnce) {
  std::atomic<int> num_told = 0;
  const std::int64_t start = now_ns();
  const Error error = error_of([&] {
    run_ranks(
        4,
        [&](const Group& group) {
          Control& control = group.control();
          control.enter(Phase::kDispatchReceive, 7);
          if (group.rank() == 1) {  // stuck, but not in a wait
            while (num_told < 2 && seconds_since(start) < 20) std::this_thread::yield();
            const Error late = error_of([&] {
              control.check_alive({Phase::kDispatchSend, 8, -1});
            });
            EXPECT_EQ(late.code(), Errc::kTimeout);
            return;
          }
          // Ranks 2 and 3 start later, so rank 0 is the first to give up.
          if (group.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
          const Error seen = error_of([&] {
            control.wait({Phase::kDispatchReceive, 7, 1}, kNever);
          });
          EXPECT_EQ(seen.code(), Errc::kTimeout);
          EXPECT_THAT(seen.what(), HasSubstr("no answer from rank 1 within 0.8 s"));
          if (group.rank() != 0) {
            EXPECT_THAT(seen.what(), HasSubstr("stopped in dispatch receive, call 7"));
            ++num_told;
          }
          throw seen;
        },
        800);
  });
  EXPECT_THAT(error.what(), HasSubstr("(rank 0 of 4, call 7)"));
}

TEST(WaitTest, AbortFromAnotherThreadWakesSleepers) {
  std::atomic<std::int64_t> aborted_at = 0;
  std::atomic<int> num_woken = 0;
  run_ranks(3, [&](const Group& group) {
    std::jthread friend_thread;
    if (group.rank() == 2) {
      friend_thread = std::jthread([&group, &aborted_at] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        aborted_at = now_ns();
        group.abort("enough");
      });
    }
    const Error error = error_of([&] {
      group.control().wait({Phase::kDispatchReceive, 5, 0}, kNever);
    });
    EXPECT_LT(seconds_since(aborted_at), 5.0);
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("dispatch: the group was aborted by rank 2: enough"));
    ++num_woken;
    group.control().enter(Phase::kIdle, 0);
    while (num_woken < 3) std::this_thread::yield();  // nobody leaves before all were woken
  });
  EXPECT_EQ(num_woken, 3);
}

TEST(WaitTest, FirstAbortIsKept) {
  run_ranks(1, [](const Group& group) {
    EXPECT_FALSE(group.control().is_aborted());
    EXPECT_TRUE(group.control().abort(Errc::kAborted, 0, "first"));
    EXPECT_TRUE(group.control().is_aborted());
    EXPECT_FALSE(group.control().abort(Errc::kTimeout, 0, "second"));
    EXPECT_THAT(error_of([&] { group.barrier(); }).what(), HasSubstr("first"));
  });
}

TEST(WaitTest, LongReasonIsCutNotOverrun) {
  run_ranks(2, [](const Group& group) {
    if (group.rank() == 0) group.abort(std::string(5000, 'x'));
    const Error error = error_of([&] {
      group.barrier();
      group.barrier();
    });
    EXPECT_THAT(error.what(), HasSubstr(std::string(200, 'x')));
    EXPECT_LT(std::string(error.what()).size(), 400u);
  });
}

TEST(WaitTest, LookForLostPeersAbortsOnlyWhenOneIsMissing) {
  run_ranks(2, [](const Group& group) {
    group.control().look_for_lost_peers();
    EXPECT_FALSE(group.control().is_aborted());
    group.barrier();
    if (group.rank() == 1) return;
    while (!group.control().is_aborted()) group.control().look_for_lost_peers();
    expect_error(Errc::kPeerLost, "rank 1 was lost (it left the group)", [&] { group.barrier(); });
  });
}

TEST(WaitTest, PeerThatLeftIsLost) {
  const std::int64_t start = now_ns();
  const Error error = error_of([] {
    run_ranks(2, [](const Group& group) {
      if (group.rank() == 0) group.control().wait({Phase::kDispatchReceive, 17, 1}, kNever);
    });
  });
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_STREQ(error.what(),
               "dispatch: rank 1 was lost (it left the group) while rank 0 waited in dispatch "
               "receive, call 17");
}

TEST(WaitTest, LastWordOfAPeerThatLeftCounts) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<bool> is_said = false;
    run_ranks(2, [&](const Group& group) {
      if (group.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(repeat % 5));
        group.control().wait({Phase::kDispatchReceive, 1, 1},
                             [&] { return is_said.load(std::memory_order_acquire); });
      } else {
        is_said.store(true, std::memory_order_release);  // leaves without notifying
      }
    });
  }
}

TEST(WaitTest, RankThatComesToABarrierTooLateLearnsOfTheTimeout) {
  const Error error = error_of([] {
    run_ranks(
        2,
        [](const Group& group) {
          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
          group.barrier();
        },
        200);
  });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("barrier: no answer from rank 1 within 0.2 s"));
  EXPECT_THAT(error.what(), HasSubstr("it is idle"));
}

}  // namespace
}  // namespace switchyard
