// SPDX-License-Identifier: Apache-2.0
//
// What a user sees when a rank dies, stops, differs or never starts.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "support/command.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel = SWITCHYARD_DATA_DIR "/tiny-moe";

// Waits until the ranks have started and have been running for a moment.
std::vector<pid_t> started_ranks(const Command& command, std::size_t num_ranks) {
  std::vector<pid_t> ranks;
  for (int i = 0; i < 200 && ranks.size() < num_ranks; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks = command.children();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  return ranks;
}

bool is_running(pid_t pid) { return kill(pid, 0) == 0; }

TEST(RunFaultTest, KillingARankEndsTheRunWithinASecond) {
  Command command(
      {SWITCHYARD_CLI, "run", "--model", kModel, "--ranks", "4", "--repeat", "10000000"});
  const std::vector<pid_t> ranks = started_ranks(command, 4);
  ASSERT_EQ(ranks.size(), 4u);
  const std::int64_t start = now_ns();
  kill(ranks[2], SIGKILL);
  const CommandResult result = command.wait(20);
  EXPECT_LT(static_cast<double>(now_ns() - start) * 1e-9, 1.0 * SWITCHYARD_SLOWDOWN);
  EXPECT_EQ(result.exit_code, 4) << result.error;
  // The survivors name the dead rank, the phase and the call; the launcher reports how it died.
  EXPECT_THAT(result.error,
              HasSubstr("switchyard: peer_lost: run: rank 2 of 4: killed by signal 9"));
  EXPECT_THAT(result.error, HasSubstr("call "));
  for (const pid_t pid : ranks) EXPECT_FALSE(is_running(pid));
}

TEST(RunFaultTest, AStoppedRankIsATimeout) {
  Command command({SWITCHYARD_CLI, "run", "--model", kModel, "--ranks", "3", "--repeat", "10000000",
                   "--timeout", "1500"});
  const std::vector<pid_t> ranks = started_ranks(command, 3);
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[1], SIGSTOP);
  const CommandResult result = command.wait(30);
  EXPECT_EQ(result.exit_code, 4) << result.error;
  EXPECT_THAT(result.error, HasSubstr("\nswitchyard: timeout: run: rank 1 of 3: "));
  for (const pid_t pid : ranks) EXPECT_FALSE(is_running(pid));
}

// The command's stdout and stderr are a pipe that is full, as behind a pager.
TEST(RunFaultTest, SignalsEndAJobWhileNobodyReads) {
  constexpr int kShellFd = 9;  // sh knows digits only
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const std::string page(4096, '.');
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  ASSERT_EQ(dup2(ends[1], kShellFd), kShellFd);
  for (const int signal : {SIGTERM, SIGINT}) {
    Command command({"sh", "-c",
                     "exec " SWITCHYARD_CLI " run --ranks 2 --timeout 1000 --repeat 10000000 "
                     "--model " SWITCHYARD_DATA_DIR "/tiny-moe >&9 2>&9"});
    const std::vector<pid_t> ranks = started_ranks(command, 2);
    ASSERT_EQ(ranks.size(), 2u);
    kill(command.pid(), signal);
    const CommandResult result = command.wait_for_end(15);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_LT(result.seconds, 6.0 * SWITCHYARD_SLOWDOWN);
    for (const pid_t pid : ranks) EXPECT_FALSE(is_running(pid));
  }
  for (const int fd : {ends[0], ends[1], kShellFd}) close(fd);
}

TEST(RunFaultTest, KillingTheLauncherLeavesNothingBehind) {
  std::vector<pid_t> ranks;
  {
    Command command(
        {SWITCHYARD_CLI, "run", "--model", kModel, "--ranks", "3", "--repeat", "10000000"});
    ranks = started_ranks(command, 3);
    ASSERT_EQ(ranks.size(), 3u);
    kill(command.pid(), SIGKILL);
    command.wait(5);
  }
  for (int i = 0; i < 100; ++i) {
    if (std::none_of(ranks.begin(), ranks.end(), is_running)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (const pid_t pid : ranks) EXPECT_FALSE(is_running(pid));
}

// Starts a rank as an external launcher does, through torchrun's variables.
Command start_rank(int rank, int size, std::vector<std::string> extra) {
  std::vector<std::string> arguments{"env",
                                     "RANK=" + std::to_string(rank),
                                     "WORLD_SIZE=" + std::to_string(size),
                                     "LOCAL_RANK=" + std::to_string(rank),
                                     "LOCAL_WORLD_SIZE=" + std::to_string(size),
                                     "TORCHELASTIC_RUN_ID=fault-test-" + std::to_string(getpid()),
                                     "MASTER_ADDR=127.0.0.1",
                                     "MASTER_PORT=29500",
                                     SWITCHYARD_CLI,
                                     "run",
                                     "--model",
                                     kModel};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  return Command(arguments);
}

TEST(RunFaultTest, ARankWithOtherOptionsIsRefused) {
  const struct {
    std::vector<std::string> rank0;
    std::vector<std::string> rank1;
    const char* words;
  } cases[] = {{{"--scheme", "none"},
                {"--scheme", "fp8_block"},
                "rank 1 has --scheme fp8_block, but rank 0 has none"},
               {{"--tokens", "64", "--split", "64,0"},
                {"--tokens", "64", "--split", "0,64"},
                "rank 1 has --split 0,64, but rank 0 has 64,0"},
               {{"--seed", "2"}, {}, "rank 1 has --seed its default, but rank 0 has 2"},
               {{"--repeat", "5"}, {"--repeat", "1"}, "rank 1 has --repeat 1, but rank 0 has 5"}};
  for (const auto& [rank0, rank1, words] : cases) {
    Command first = start_rank(0, 2, rank0);
    Command second = start_rank(1, 2, rank1);
    for (Command* command : {&first, &second}) {
      const CommandResult result = command->wait(30);
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_THAT(result.error, HasSubstr(words));
    }
  }
}

TEST(RunFaultTest, TwoProcessesWithOneNumberAreNamed) {
  for (const int rank : {0, 1}) {
    Command first = start_rank(rank, 3, {"--timeout", "20000"});
    Command second = start_rank(rank, 3, {"--timeout", "20000"});
    Command other = start_rank(1 - rank, 3, {"--timeout", "20000"});
    // On a loaded machine the store may be gone before the second has asked it.
    const CommandResult results[] = {first.wait(30), second.wait(30)};
    for (const CommandResult& result : results) EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(results[0].error + results[1].error,
                HasSubstr("two processes say that they are rank " + std::to_string(rank)));
  }
}

TEST(RunFaultTest, ARankThatNeverStartsIsNamed) {
  Command first = start_rank(0, 3, {"--timeout", "1500"});
  Command second = start_rank(2, 3, {"--timeout", "1500"});
  for (Command* command : {&first, &second}) {
    const CommandResult result = command->wait(30);
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_THAT(result.error, HasSubstr("rank 1"));
  }
}

TEST(RunFaultTest, TorchrunsVariablesStartAGroup) {
  Command first = start_rank(0, 2, {"--json"});
  Command second = start_rank(1, 2, {"--json"});
  const CommandResult result = first.wait(30);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("\"ranks\":2"));
  EXPECT_EQ(second.wait(30).exit_code, 0);
}

TEST(RunFaultTest, MpirunStartsAGroup) {
  if (run_command({"sh", "-c", "command -v mpirun"}).exit_code != 0) {
    GTEST_SKIP() << "mpirun is not installed";
  }
  const CommandResult result =
      run_command({"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                   "3", SWITCHYARD_CLI, "run", "--model", kModel, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("\"ranks\":3"));
}

}  // namespace
}  // namespace switchyard::test
