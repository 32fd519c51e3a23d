// SPDX-License-Identifier: Apache-2.0
//
// Subgroups of processes: when all goes well, and when a rank dies or aborts.

#include <unistd.h>

#include <atomic>
#include <optional>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "engine/engine.h"
#include "support/few_descriptors.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr auto kNever = [] { return false; };

TEST(ShmSplitTest, SubgroupsHaveTheirOwnWindowsAndStore) {
  for (const int size : {1, 2, 3, 7}) {
    run_processes(size, [&](const Group& group) {
      const Group part = group.split(group.rank() % 2, -group.rank());
      EXPECT_STREQ(part.engine_name(), "shm");
      EXPECT_EQ(part.host_rank(), part.rank());
      EXPECT_EQ(part.host_size(), part.size());
      const auto own = part.engine().windows().make_window(4096);
      const auto all = group.engine().windows().make_window(8192);
      own->base(0)[part.rank()] = static_cast<std::byte>(1 + group.rank());
      group.barrier();
      for (int rank = 0; rank < part.size(); ++rank) {  // the highest rank comes first
        const int member = 2 * (part.size() - 1 - rank) + group.rank() % 2;
        EXPECT_EQ(own->base(0)[rank], static_cast<std::byte>(1 + member));
      }
      EXPECT_EQ(all->base(0)[0], std::byte{0});
      group.barrier();
    });
  }
}

// Rank 0 serves the parent's store, but has no part in the subgroup, and goes.
TEST(ShmSplitTest, SubgroupDoesNotNeedTheRanksThatHaveNoPartInIt) {
  run_processes(3, [](const Group& group) {
    const Group part = group.split(group.rank() == 0 ? -1 : 0);
    EXPECT_EQ(part.is_empty(), group.rank() == 0);
    if (part.is_empty()) return;
    usleep(300'000);
    for (int round = 0; round < 3; ++round) {
      (void)part.engine().windows().make_window(4096);
      EXPECT_EQ(part.split(part.rank()).size(), 1);
    }
    EXPECT_EQ(part.error(), std::nullopt);
  });
}

TEST(ShmSplitTest, AbortOfASubgroupIsItsOwn) {
  run_processes(4, [](const Group& group) {
    const Group pair = group.split(group.rank() / 2);
    if (group.rank() == 3) pair.abort("only here");
    if (group.rank() >= 2) {
      EXPECT_THAT(error_of([&] { pair.control().wait({}, kNever); }).what(),
                  HasSubstr("aborted by rank 1: only here"));
    } else {
      for (int round = 0; round < 100; ++round) pair.barrier();
    }
    group.barrier();
    EXPECT_EQ(group.error(), std::nullopt);
  });
}

// Ranks 0 to 3 wait in two pairs; rank 2 dies. Its pair names it by its number there.
TEST(ShmSplitTest, RankThatDiesIsNoticedInEverySubgroup) {
  test::Shared<std::atomic<int>> num_waiting;
  RankProcesses ranks(4, [&](const Group& group) {
    const Group pair = group.split(group.rank() / 2);
    ++*num_waiting;
    pair.control().enter(Phase::kDispatchReceive, 17);
    pair.control().wait({Phase::kDispatchReceive, 17, 1 - pair.rank()}, kNever);
  });
  wait_until(*num_waiting, 4);
  const std::int64_t start = now_ns();
  ranks.send_signal(2, SIGKILL);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(what(outcomes[3]),
            "dispatch: rank 0 was lost (its process is gone) while rank 1 waited in dispatch "
            "receive, call 17");
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(outcomes[rank].error);
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost);
    EXPECT_EQ(what(outcomes[rank]),
              "dispatch: rank 2 of the parent group was lost (its process is gone) while rank " +
                  std::to_string(rank) + " waited in dispatch receive, call 17");
  }
}

TEST(ShmSplitTest, ErrorNamesTheRankThatDiedWithoutAWait) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(3, [&](const Group& group) {
    const Group part = group.split(0);
    EXPECT_EQ(part.error(), std::nullopt);
    ++*num_ready;
    std::optional<Error> error;
    while (!error) error = part.error();
    throw *error;
  });
  wait_until(*num_ready, 3);
  const std::int64_t start = now_ns();
  ranks.send_signal(1, SIGKILL);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  EXPECT_LT(seconds_since(start), 5.0);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(what(outcomes[rank]), "group: rank 1 was lost (its process is gone) (rank " +
                                        std::to_string(rank) + " of 3)");
  }
}

// At any moment of a split: before it, in its gathers, while members connect.
TEST(ShmSplitTest, RankThatIsKilledDuringASplitIsNamed) {
  for (int repeat = 0; repeat < 12; ++repeat) {
    test::Shared<std::atomic<int>> num_ready;
    RankProcesses ranks(4, [&](const Group& group) {
      for (int round = 0;; ++round) {
        const Group part = group.split(group.rank() / 2);
        if (round == 3) ++*num_ready;
      }
    });
    wait_until(*num_ready, 4);
    usleep(static_cast<useconds_t>(repeat * 700));
    const std::int64_t start = now_ns();
    ranks.send_signal(2, SIGKILL);
    const std::vector<RankOutcome> outcomes = ranks.wait();
    EXPECT_LT(seconds_since(start), 2.0);
    for (const std::size_t rank : {0u, 1u, 3u}) {
      ASSERT_TRUE(outcomes[rank].error) << what(outcomes[rank]);
      EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost) << what(outcomes[rank]);
      EXPECT_THAT(what(outcomes[rank]), HasSubstr("rank 2 was lost")) << repeat;
    }
  }
}

TEST(ShmSplitTest, StoppedRankIsATimeout) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(3,
                      [&](const Group& group) {
                        const Group part = group.split(0);
                        ++*num_ready;
                        while (*num_ready < 4) usleep(1000);
                        (void)part.split(part.rank());
                      },
                      {.timeout_ms = 500, .deadline_ms = 30'000});
  wait_until(*num_ready, 3);
  ranks.send_signal(1, SIGSTOP);
  ++*num_ready;
  for (const int rank : {0, 2}) {
    const RankOutcome outcome = ranks.wait_for(rank);
    ASSERT_TRUE(outcome.error) << what(outcome);
    EXPECT_EQ(outcome.error->code(), Errc::kTimeout);
    EXPECT_THAT(what(outcome), HasSubstr("no answer from rank 1 within 0.5 s"));
  }
  ranks.send_signal(1, SIGCONT);
  EXPECT_EQ(ranks.wait_for(1).error->code(), Errc::kTimeout);
}

// Rank 2 can open few files more: until the others have its words, they wait for it.
TEST(SplitFaultTest, RankWithoutDescriptorsIsNamedAtOnce) {
#ifdef SWITCHYARD_CHECKS_TAKE_DESCRIPTORS
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors of its own";
#endif
  for (const bool shares_host : {true, false}) {
    ProcessOptions options;
    options.timeout_ms = 20'000;
    options.engine = "auto";
    options.deadline_ms = 120'000;
    if (!shares_host) options.host_of = [](int rank) { return rank; };
    run_processes(
        4,
        [](const Group& group) {
          int num_failures = 0;
          for (int num_free = 0;; ++num_free) {
            std::optional<Error> error;
            const std::int64_t start = now_ns();
            {
              std::optional<FewDescriptors> few;
              if (group.rank() == 2) few.emplace(num_free);
              try {
                (void)group.split(group.rank() % 2);
              } catch (const Error& failure) {
                error = failure;
              }
            }
            EXPECT_LT(now_ns() - start, 5'000'000'000) << num_free;
            if (!error) break;
            ++num_failures;
            EXPECT_EQ(error->code(), Errc::kOutOfMemory) << error->what();
            EXPECT_THAT(error->what(), HasSubstr("split: rank 2 of 4: "));
            EXPECT_THAT(error->what(), HasSubstr("Too many open files"));
            if (::testing::Test::HasFailure()) break;
          }
          EXPECT_GT(num_failures, 2);
        },
        options);
  }
}

}  // namespace
}  // namespace switchyard
