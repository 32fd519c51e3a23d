// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share no memory: processes that say that they are of several hosts, and so agree over
// TCP alone. Ranks that die, stop, are cut off or never come.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <signal.h>
#include <thread>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "engine/remote_control.h"
#include "engine/remote_exit.h"
#include "support/cut_links.h"
#include "support/engine_suite.h"
#include "support/errors.h"
#include "support/processes.h"
#include "support/shared.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::int64_t kFaultTimeoutMs = 4000;

// Two hosts, dealt out in turn, so that only TCP joins the ranks; `auto` finds that out.
ProcessOptions two_hosts(std::int64_t timeout_ms) {
  ProcessOptions options;
  options.timeout_ms = timeout_ms;
  options.engine = "auto";
  options.host_of = [](int rank) { return rank % 2; };
  return options;
}

struct RemoteRanks {
  static constexpr const char* kName = "mpi";
  static constexpr std::int64_t kTimeoutMs = 20'000;
  static constexpr int kRounds = 100;
  static void run(int num_ranks, const std::function<void(const Group&)>& body) {
    run_processes(num_ranks, body, two_hosts(kTimeoutMs));
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Remote, ControlSuite, RemoteRanks);

TEST(RemoteEngineTest, AutoChoosesByHosts) {
  ProcessOptions options = two_hosts(20'000);
  run_processes(
      4,
      [](const Group& group) {
        EXPECT_STREQ(group.engine_name(), "mpi");
        EXPECT_EQ(group.host_rank(), group.rank() / 2);
        EXPECT_EQ(group.host_size(), 2);
        EXPECT_FALSE(group.engine().has_windows());
      },
      options);
  options.host_of = [](int) { return 7; };
  run_processes(
      3,
      [](const Group& group) {
        EXPECT_STREQ(group.engine_name(), "shm");
        EXPECT_EQ(group.host_size(), 3);
      },
      options);
}

TEST(RemoteEngineTest, SubgroupsOfAnyHostsAndOfOne) {
  run_processes(
      5,
      [](const Group& group) {
        const Group part = group.split(group.rank() < 2 ? 0 : 1, -group.rank());
        EXPECT_STREQ(part.engine_name(), "mpi");
        EXPECT_EQ(part.size(), group.rank() < 2 ? 2 : 3);
        part.barrier();
        const auto texts =
            part.control().all_gather_text({Phase::kSetup, "test"}, std::to_string(group.rank()));
        EXPECT_EQ(texts[static_cast<std::size_t>(part.rank())], std::to_string(group.rank()));
        const Group host(group.engine().make_host_group());
        EXPECT_STREQ(host.engine_name(), "shm");
        EXPECT_EQ(host.size(), group.host_size());
        EXPECT_EQ(host.rank(), group.host_rank());
        const auto window = host.engine().windows().make_window(64);
        window->base((host.rank() + 1) % host.size())[0] = static_cast<std::byte>(group.rank());
        host.barrier();
        const int left = (host.rank() + host.size() - 1) % host.size();
        EXPECT_EQ(window->base(host.rank())[0],
                  static_cast<std::byte>(2 * left + group.rank() % 2));
        host.barrier();
      },
      two_hosts(20'000));
}

// A rank of it may leave the parent and end, also the one that serves it.
TEST(RemoteEngineTest, SubgroupOutlivesTheRanksThatHaveNoPartInIt) {
  run_processes(
      3,
      [](const Group& world) {
        Group group = world;
        const Group part = group.split(group.rank() == 0 ? -1 : 0);
        if (part.is_empty()) return;
        for (int round = 0; round < 20; ++round) {
          part.barrier();
          usleep(20'000);
        }
      },
      two_hosts(10'000));
}

TEST(RemoteEngineTest, AbortReachesAllRanks) {
  const auto outcomes = RankProcesses(
                            3,
                            [](const Group& group) {
                              group.barrier();
                              if (group.rank() == 1) group.abort("user said stop");
                              group.control().wait({}, [] { return false; });
                            },
                            two_hosts(20'000))
                            .wait();
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(code(outcome), Errc::kAborted);
    EXPECT_THAT(what(outcome), HasSubstr("the group was aborted by rank 1: user said stop"));
  }
}

// All survivors of `fault`, which happens to `victim` inside of a barrier, end with one error.
void expect_lost(int victim, int signal, const char* reason, std::int64_t within_ms) {
  const Shared<std::atomic<int>> num_there;
  RankProcesses ranks(
      4,
      [&](const Group& group) {
        group.barrier();
        ++*num_there;
        if (group.rank() == victim) pause();
        group.barrier();
      },
      two_hosts(kFaultTimeoutMs));
  wait_until(*num_there, 4);
  usleep(100'000);
  const std::int64_t start = now_ns();
  ranks.send_signal(victim, signal);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    const RankOutcome outcome = ranks.wait_for(rank);
    EXPECT_EQ(code(outcome), Errc::kPeerLost) << what(outcome);
    EXPECT_THAT(what(outcome),
                HasSubstr("rank " + std::to_string(victim) + " was lost (" + reason));
    EXPECT_THAT(what(outcome), HasSubstr("in barrier, call "));
  }
  EXPECT_LE(now_ns() - start, within_ms * 1'000'000);
}

TEST(RemoteFaultTest, KilledRankIsSeenAtOnce) {
  expect_lost(2, SIGKILL, "its connection ended", 3000);
}
TEST(RemoteFaultTest, KilledServerIsSeenAtOnce) {
  expect_lost(0, SIGKILL, "its connection ended", 3000);
}
TEST(RemoteFaultTest, StoppedRankIsSeenBeforeTheTimeout) {
  expect_lost(3, SIGSTOP, "no sign of life for 2.0 s", kFaultTimeoutMs);
}
TEST(RemoteFaultTest, StoppedServerIsSeenBeforeTheTimeout) {
  expect_lost(0, SIGSTOP, "no sign of life for 2.0 s", kFaultTimeoutMs);
}

// Nothing ends; both ends fall silent for each other.
TEST(RemoteFaultTest, RankWhoseLinksAreCutIsLostToTheOthersAndRank0ToIt) {
  constexpr int kVictim = 2;
  const Shared<std::atomic<int>> num_there;
  RankProcesses ranks(
      4,
      [&](const Group& group) {
        group.barrier();
        if (group.rank() == kVictim) cut_tcp_links();
        ++*num_there;
        group.barrier();
      },
      two_hosts(kFaultTimeoutMs));
  wait_until(*num_there, 4);
  const std::int64_t start = now_ns();
  for (int rank = 0; rank < 4; ++rank) {
    const RankOutcome outcome = ranks.wait_for(rank);
    EXPECT_EQ(code(outcome), Errc::kPeerLost) << what(outcome);
    EXPECT_THAT(what(outcome), HasSubstr(rank == kVictim ? "rank 0 was lost (no sign of life"
                                                         : "rank 2 was lost (no sign of life"));
  }
  EXPECT_LE(now_ns() - start, (kFaultTimeoutMs + 2000) * 1'000'000);
}

// It was cut off by the others; what ended meanwhile were healthy connections.
TEST(RemoteFaultTest, Rank0ThatGoesOnAfterAStopBlamesNobodyElse) {
  const Shared<std::atomic<int>> num_there;
  const Shared<std::atomic<int>> goes_on;
  RankProcesses ranks(
      3,
      [&](const Group& group) {
        group.barrier();
        ++*num_there;
        while (group.rank() == 0 && *goes_on == 0) usleep(1000);
        group.control().wait({Phase::kCombineReceive, 1, -1}, [] { return false; });
      },
      two_hosts(3000));
  wait_until(*num_there, 3);
  ranks.send_signal(0, SIGSTOP);
  for (const int rank : {1, 2}) EXPECT_EQ(code(ranks.wait_for(rank)), Errc::kPeerLost);
  ++*goes_on;
  ranks.send_signal(0, SIGCONT);
  const RankOutcome outcome = ranks.wait_for(0);
  EXPECT_EQ(code(outcome), Errc::kPeerLost) << what(outcome);
  EXPECT_THAT(what(outcome), HasSubstr("rank 0 was lost (no sign of life for 1.5 s"));
}

// The server is rank 0's, and stays until the others have left too.
TEST(RemoteFaultTest, LossIsSeenAtOnceAfterRank0HasLeft) {
  const Shared<std::atomic<int>> num_there;
  RankProcesses ranks(
      3,
      [&](const Group& group) {
        group.barrier();
        ++*num_there;
        if (group.rank() == 2) pause();
        if (group.rank() == 0) return;
        group.control().wait({Phase::kCombineReceive, 5, 2}, [] { return false; });
      },
      two_hosts(10'000));
  wait_until(*num_there, 3);
  usleep(1'000'000);
  const std::int64_t start = now_ns();
  ranks.send_signal(2, SIGKILL);
  const RankOutcome outcome = ranks.wait_for(1);
  EXPECT_EQ(code(outcome), Errc::kPeerLost) << what(outcome);
  EXPECT_THAT(what(outcome), HasSubstr("rank 2 was lost (its connection ended)"));
  EXPECT_EQ(ranks.wait_for(0).exit_code, 0);
  EXPECT_LE(now_ns() - start, std::int64_t{3'000'000'000});
}

// It has none of the threads, and what it says would be taken for the rank's words.
TEST(RemoteEngineTest, ForkedCopyOfARankEndsSoonAndLeavesItInTheGroup) {
  for (const bool shares_host : {false, true}) {
    ProcessOptions options = two_hosts(10'000);
    if (shares_host) options.host_of = nullptr;
    run_processes(
        2,
        [](const Group& group) {
          static std::optional<Group> kept;  // is there when the copy ends
          kept = group;
          group.barrier();
          const pid_t copy = fork();
          if (copy == 0) {
            kept.reset();
            remote_exit::run();
            _exit(0);
          }
          int status = -1;
          const Deadline deadline = Deadline::after_ms(5000);
          while (waitpid(copy, &status, WNOHANG) == 0 && !deadline.expired()) usleep(10'000);
          EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the copy waits";
          kill(copy, SIGKILL);
          usleep(1'500'000);  // who had left would be missed by now
          group.barrier();
          kept.reset();
        },
        options);
  }
}

// Another thread of the rank is at its list of groups while it forks: the copy has one of its own.
TEST(RemoteEngineTest, ForkedCopyDoesNotWaitForWhatAThreadOfTheRankHeld) {
  run_processes(
      2,
      [](const Group& group) {
        auto& control = static_cast<RemoteControl&>(group.control());
        std::atomic<bool> is_over = false;
        std::thread busy([&] {
          while (!is_over) remote_exit::add(control);
        });
        bool have_ended = true;
        for (int i = 0; i < 50 && have_ended; ++i) {
          const pid_t copy = fork();
          if (copy == 0) {
            remote_exit::add(control);
            remote_exit::run();
            _exit(0);
          }
          int status = -1;
          const Deadline deadline = Deadline::after_ms(3000);
          while (waitpid(copy, &status, WNOHANG) == 0 && !deadline.expired()) usleep(100);
          have_ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
          if (!have_ended) kill(copy, SIGKILL);
        }
        is_over = true;
        busy.join();
        EXPECT_TRUE(have_ended) << "a copy waits";
        usleep(1'500'000);  // who had left would be missed by now
        group.barrier();
      },
      two_hosts(10'000));
}

// Rank 1 stays: rank 0, whose exit handlers come twice where there is MPI, waits for one timeout.
TEST(RemoteEngineTest, EndOfRank0WaitsOnce) {
  const Shared<std::atomic<int>> num_there;
  RankProcesses ranks(
      2,
      [&](const Group& group) {
        group.barrier();
        ++*num_there;
        if (group.rank() == 1) {
          usleep(5'000'000);
          return;
        }
        const std::int64_t start = now_ns();
        remote_exit::run();
        remote_exit::run();
        const std::int64_t waited_ns = now_ns() - start;
        EXPECT_GT(waited_ns, 1'900'000'000);
        EXPECT_LT(waited_ns, 3'000'000'000);
      },
      two_hosts(2000));
  wait_until(*num_there, 2);
  EXPECT_EQ(ranks.wait_for(0).exit_code, 0);
  EXPECT_EQ(ranks.wait_for(1).exit_code, 0);
}

TEST(RemoteEngineTest, RanksThatFailedTryAgainOverTheSameStore) {
  const TempFolder folder;
  const std::string store = folder.file("store");
  run_processes(
      3,
      [&](const Group& group) {
        GroupOptions options{.engine = "mpi", .timeout_ms = 10'000};
        expect_error(Errc::kNotAvailable, "engine \"mpi\": rank 0: ", [&] {
          Group::from(group.rank(), group.size(), store, options);
        });
        options.engine = "auto";
        const Group again = Group::from(group.rank(), group.size(), store, options);
        EXPECT_STREQ(again.engine_name(), "mpi");
        again.barrier();
      },
      two_hosts(10'000));
}

TEST(RemoteFaultTest, RankThatIsStuckIsNamedAtTheTimeoutWithItsPlace) {
  const Shared<std::atomic<int>> num_done;
  const auto outcomes = RankProcesses(
                            3,
                            [&](const Group& group) {
                              group.barrier();
                              if (group.rank() == 1) {
                                group.control().enter(Phase::kDispatchSend, 7);
                                wait_until(*num_done, 2);
                                return;
                              }
                              try {
                                group.barrier();
                              } catch (const Error&) {
                                ++*num_done;
                                throw;
                              }
                            },
                            two_hosts(2000))
                            .wait();
  for (const int rank : {0, 2}) {
    const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(code(outcome), Errc::kTimeout) << what(outcome);
    EXPECT_THAT(what(outcome), HasSubstr("from rank 1 within 2.0 s"));
  }
  // Who serves can always say it; once rank 0 has ended, rank 2 has nobody to ask.
  EXPECT_THAT(what(outcomes[0]), HasSubstr("last reached dispatch send, call 7"));
}

TEST(RemoteFaultTest, RankThatLeftIsNamed) {
  const auto outcomes = RankProcesses(
                            3,
                            [](const Group& group) {
                              if (group.rank() != 1) group.barrier();
                            },
                            two_hosts(10'000))
                            .wait();
  for (const int rank : {0, 2}) {
    const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(code(outcome), Errc::kPeerLost) << what(outcome);
    EXPECT_THAT(what(outcome), HasSubstr("rank 1 was lost (it left the group)"));
  }
}

TEST(RemoteFaultTest, RankThatNeverComesIsNamed) {
  ProcessOptions options = two_hosts(1000);
  options.num_missing = 1;
  const auto outcomes = RankProcesses(
                            3, [](const Group&) {}, options)
                            .wait();
  for (const int rank : {0, 1}) {
    const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(code(outcome), Errc::kTimeout) << what(outcome);
    EXPECT_THAT(what(outcome), HasSubstr("no sign of rank 2 within 1.0 s"));
  }
}

TEST(RemoteFaultTest, LostRankOfTheParentEndsSubgroups) {
  const Shared<std::atomic<int>> num_there;
  RankProcesses ranks(
      3,
      [&](const Group& group) {
        const Group part = group.split(group.rank() == 2 ? 1 : 0);
        part.barrier();
        ++*num_there;
        if (group.rank() == 2) pause();
        part.control().wait({Phase::kCombineReceive, 5, 1 - part.rank()}, [] { return false; });
      },
      two_hosts(20'000));
  wait_until(*num_there, 3);
  ranks.send_signal(2, SIGKILL);
  for (const int rank : {0, 1}) {
    const RankOutcome outcome = ranks.wait_for(rank);
    EXPECT_EQ(code(outcome), Errc::kPeerLost);
    EXPECT_THAT(what(outcome), HasSubstr("rank 2 of the parent group was lost"));
  }
}

}  // namespace
}  // namespace switchyard
