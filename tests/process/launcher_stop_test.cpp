// SPDX-License-Identifier: Apache-2.0
//
// A launcher whose rank is stopped before its program runs: a tracer holds the new process.

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <set>
#include <signal.h>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "transport/launcher.h"

namespace switchyard {
namespace {

// Starts two ranks that exit with code 3, once a byte comes through `gate`.
[[noreturn]] void launch_behind(int gate) {
  char byte = 0;
  if (read(gate, &byte, 1) != 1) _exit(99);
  LaunchOptions options;
  options.num_ranks = 2;
  options.command = {"sh", "-c", "exit 3"};
  options.grace_ms = 200;
  _exit(launch(options).exit_code);
}

// Traces the launcher and stops its second child before it runs; the others go on. Returns the exit
// code of the launcher, or -1 when it did not end.
int trace(pid_t launcher) {
  std::set<pid_t> children;
  for (const Deadline end = Deadline::after_ms(20'000); !end.expired(); usleep(1000)) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
    if (pid <= 0) continue;
    if (pid == launcher && WIFEXITED(status)) return WEXITSTATUS(status);
    if (!WIFSTOPPED(status)) continue;
    const bool is_event = status >> 16 != 0;
    if (pid == launcher) {
      ptrace(PTRACE_CONT, pid, nullptr, is_event ? 0 : WSTOPSIG(status));
    } else if (children.insert(pid).second && children.size() == 1) {
      ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
    }
  }
  return -1;
}

TEST(LauncherStopTest, RankThatNeverReachesItsProgramHangsNobody) {
  std::array<int, 2> gate{};
  ASSERT_EQ(pipe(gate.data()), 0);
  const pid_t launcher = fork();
  if (launcher == 0) launch_behind(gate[0]);
  const bool is_traced = ptrace(PTRACE_SEIZE, launcher, nullptr, PTRACE_O_TRACEFORK) == 0;
  if (is_traced) {
    EXPECT_EQ(write(gate[1], "x", 1), 1);
    EXPECT_EQ(trace(launcher), 3);
  }
  kill(launcher, SIGKILL);
  while (waitpid(-1, nullptr, __WALL) > 0) {
  }
  close(gate[0]);
  close(gate[1]);
  if (!is_traced) GTEST_SKIP() << "ptrace is not permitted: errno " << errno;
}

}  // namespace
}  // namespace switchyard
