// SPDX-License-Identifier: Apache-2.0
//
// The ring of micro-batches: whose turn it is, who runs which hook, and how errors end it.

#include "switchyard/micro_batches.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "core/interrupt.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Events = std::vector<std::string>;

std::string event(const std::string& what) {
  return what + "@" + std::to_string(dbo_current_micro_batch());
}

TEST(MicroBatchesTest, TheTurnGoesRoundInARing) {
  run_ranks(1, [](const Group& group) {
    Events events;  // no lock: only one runs at a time, and ThreadSanitizer checks that
    run_micro_batches(group, 3, [&](int m) {
      EXPECT_TRUE(dbo_enabled());
      EXPECT_EQ(dbo_current_micro_batch(), m);
      for (const char* what : {"a", "b"}) {
        events.push_back(event(what));
        dbo_yield();
      }
    });
    EXPECT_THAT(events, ElementsAre("a@0", "a@1", "a@2", "b@0", "b@1", "b@2"));
    EXPECT_FALSE(dbo_enabled());
  });
}

TEST(MicroBatchesTest, OnlyOneRunsAtATime) {
  run_ranks(2, [](const Group& group) {
    std::atomic<int> num_running = 0;
    run_micro_batches(group, 4, [&](int m) {
      for (int turn = 0; turn < 20 * (m + 1); ++turn) {
        EXPECT_EQ(num_running.fetch_add(1), 0);
        std::this_thread::yield();
        num_running.fetch_sub(1);
        dbo_yield();
      }
    });
  });
}

TEST(MicroBatchesTest, TheNextOneRunsTheHook) {
  run_ranks(1, [](const Group& group) {
    Events events;
    run_micro_batches(group, 3, [&](int m) {
      dbo_register_recv_hook([&, m] { events.push_back(event("hook " + std::to_string(m))); });
      dbo_yield();
      events.push_back(event("run"));
      dbo_maybe_run_recv_hook();
      dbo_maybe_run_recv_hook();  // the hook has run already
    });
    EXPECT_THAT(events, ElementsAre("run@0", "hook 2@0", "run@1", "hook 0@1", "run@2", "hook 1@2"));
  });
}

TEST(MicroBatchesTest, AHookThatIsLeftRunsWhenTheBodyReturns) {
  run_ranks(1, [](const Group& group) {
    Events events;
    run_micro_batches(group, 2, [&](int m) {
      if (m == 1) return events.push_back(event("end"));
      dbo_register_recv_hook([&] { events.push_back(event("first")); });
      dbo_register_recv_hook([&] { events.push_back(event("second")); });
      dbo_yield();
      dbo_register_recv_hook([&] { events.push_back(event("nobody is left")); });
      dbo_yield();
    });
    EXPECT_THAT(events, ElementsAre("end@1", "first@1", "second@1", "nobody is left@0"));
  });
}

TEST(MicroBatchesTest, OutsideAHookRunsAtOnce) {
  int num_calls = 0;
  dbo_register_recv_hook([&] { ++num_calls; });
  dbo_yield();
  dbo_maybe_run_recv_hook();
  EXPECT_EQ(num_calls, 1);
  run_ranks(1, [&](const Group& group) {
    run_micro_batches(group, 1, [&](int m) {
      EXPECT_FALSE(dbo_enabled());
      dbo_register_recv_hook([&] { num_calls += 10 + m; });
    });
  });
  EXPECT_EQ(num_calls, 11);
}

// Records its destruction.
struct Witness {
  Events& events;
  const char* what;
  ~Witness() { events.push_back(event(what)); }
};

TEST(MicroBatchesTest, TheFirstErrorEndsTheOthersOneAfterTheOther) {
  run_ranks(1, [](const Group& group) {
    Events events;
    std::string seen;
    const auto run = [&] {
      run_micro_batches(group, 3, [&](int m) {
        const Witness witness{events, "unwound"};
        dbo_register_recv_hook([&] { events.push_back(event("dropped")); });
        if (m == 1) throw std::out_of_range("no such row");
        try {
          dbo_yield();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kAborted);
          seen = error.what();
          throw;
        }
      });
    };
    EXPECT_THROW(run(), std::out_of_range);
    EXPECT_EQ(seen,
              "run_micro_batches: micro-batch 0 was ended, because micro-batch 1 ended with: "
              "no such row");
    // Micro-batch 2 had not started.
    EXPECT_THAT(events, ElementsAre("unwound@1", "unwound@0"));
    EXPECT_FALSE(dbo_enabled());
    EXPECT_THAT(error_of([&] { group.barrier(); }).what(),
                HasSubstr("its micro-batch 1 ended with: no such row"));
  });
}

TEST(MicroBatchesTest, AHookThatThrowsIsAnErrorOfWhoRunsIt) {
  run_ranks(1, [](const Group& group) {
    const Error error = error_of([&] {
      run_micro_batches(group, 2, [&](int m) {
        if (m == 0) {
          dbo_register_recv_hook([] { throw Error(Errc::kCapacityExceeded, "too many rows"); });
          dbo_yield();
          ADD_FAILURE() << "went on";
        }
      });
    });
    EXPECT_EQ(error.code(), Errc::kCapacityExceeded);
    EXPECT_THAT(error_of([&] { group.barrier(); }).what(), HasSubstr("its micro-batch 1"));
  });
}

TEST(MicroBatchesTest, PeersLearnOfAnError) {
  run_ranks(2, [](const Group& group) {
    const Error error = error_of([&] {
      run_micro_batches(group, 2, [&](int m) {
        if (group.rank() == 1 && m == 1) throw Error(Errc::kOutOfMemory, "no memory for rows");
        dbo_yield();
        if (group.rank() == 0) group.barrier();
      });
    });
    EXPECT_EQ(error.code(), group.rank() == 1 ? Errc::kOutOfMemory : Errc::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("no memory for rows"));
  });
}

TEST(MicroBatchesTest, ATurnHasADeadline) {
  constexpr std::int64_t kTimeoutMs = 50;
  const auto body = [](const Group& group) {
    expect_error(Errc::kTimeout, "micro-batch 0 has not yielded for 0.1 s, twice", [&] {
      run_micro_batches(group, 2, [](int m) {
        if (m == 0) std::this_thread::sleep_for(std::chrono::milliseconds(12 * kTimeoutMs));
      });
    });
  };
  run_ranks(1, body, kTimeoutMs);
}

// A micro-batch whose wait timed out unwinds only on its turn: bodies never run concurrently.
TEST(MicroBatchesTest, AfterALateTurnStillOneRunsAtATime) {
  constexpr std::int64_t kTimeoutMs = 50;
  run_ranks(
      1,
      [](const Group& group) {
        bool is_running = false;  // no lock: ThreadSanitizer detects concurrent bodies
        bool was_alone = false;
        const Error error = error_of([&] {
          run_micro_batches(group, 2, [&](int m) {
            if (m == 1) {
              const Error late = error_of([] { dbo_yield(); });
              EXPECT_EQ(late.code(), Errc::kAborted);
              was_alone = !is_running;
              throw late;
            }
            dbo_yield();  // lets micro-batch 1 start
            is_running = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(6 * kTimeoutMs));
            is_running = false;
          });
        });
        EXPECT_EQ(error.code(), Errc::kTimeout);
        EXPECT_TRUE(was_alone);
      },
      kTimeoutMs);
}

TEST(MicroBatchesTest, WrongCallsAreRefused) {
  run_ranks(1, [](const Group& group) {
    for (const int count : {-1, 0, 65}) {
      expect_invalid("num_micro_batches is " + std::to_string(count) + ", must be from 1",
                     [&] { run_micro_batches(group, count, [](int) {}); });
    }
    run_micro_batches(group, 2, [&](int m) {
      expect_invalid("called inside micro-batch " + std::to_string(m),
                     [&] { run_micro_batches(group, 2, [](int) {}); });
    });
  });
}

// Interrupts are heard by the thread that called, whichever micro-batch waits for a peer.
class InterruptTest : public testing::TestWithParam<bool> {
 protected:
  InterruptTest() {
    caller = std::this_thread::get_id();
    set_interrupt_check([] { return std::this_thread::get_id() == caller; });
  }
  ~InterruptTest() override { set_interrupt_check(nullptr); }

  static inline std::thread::id caller;
};

TEST_P(InterruptTest, EndsTheCall) {
  const auto engines = make_local_engines(2, kRanksTimeoutMs);
  const Group group(engines[0]);  // rank 1 never comes
  const std::int64_t start = now_ns();
  const Error error = error_of([&] {
    run_micro_batches(group, 2, [&](int m) {
      if (m == 1) return group.barrier();
      if (GetParam()) dbo_yield();
    });
  });
  EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("interrupted"));
  EXPECT_LT(now_ns() - start, 10'000'000'000);  // of 30 s
}

INSTANTIATE_TEST_SUITE_P(WaitingForTheTurnOrTheEnd, InterruptTest, testing::Bool());

}  // namespace
}  // namespace switchyard
