// SPDX-License-Identifier: Apache-2.0

#include "transport/launcher.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <signal.h>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "support/few_descriptors.h"
#include "support/observe.h"
#include "support/ranks.h"
#include "transport/child_process.h"
#include "transport/socket.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;

// An unnamed file that captures output.
class Capture {
 public:
  Capture() : file_(memfd_create("capture", MFD_CLOEXEC)) {}
  int fd() const { return file_.get(); }
  std::string text() const {
    std::ifstream file("/proc/self/fd/" + std::to_string(file_.get()));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  Fd file_;
};

struct Finished {
  LaunchResult result;
  std::string output;
  std::string errors;
};

LaunchOptions options_for(int num_ranks, const std::string& task, int special = -1) {
  LaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = {SWITCHYARD_RANK_PROGRAM, task, std::to_string(special)};
  options.variables = {{"SWITCHYARD_TIMEOUT_MS", "20000"}};
  return options;
}

Finished run(LaunchOptions options) {
  const Capture output;
  const Capture errors;
  options.output_fd = output.fd();
  options.error_fd = errors.fd();
  const LaunchResult result = launch(options);
  return {result, output.text(), errors.text()};
}

std::set<std::string> files_in(const char* path) {
  std::set<std::string> names;
  DIR* directory = opendir(path);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
  closedir(directory);
  return names;
}

bool has_socket(const std::string& name) {
  std::ifstream file("/proc/net/unix");
  for (std::string word; file >> word;) {
    if (word == name) return true;
  }
  return false;
}

// The stores of the job, as its ranks printed them; those of other jobs on this host stay.
void expect_stores_vanish(const std::string& errors) {
  std::istringstream words(errors);
  int num_stores = 0;
  for (std::string word; words >> word;) {
    if (word != "store" || !(words >> word)) continue;
    ++num_stores;
    const std::string name = word.substr(word.find('@'));
    for (const Deadline end = Deadline::after_ms(20'000); has_socket(name) && !end.expired();) {
      usleep(20'000);
    }
    EXPECT_FALSE(has_socket(name)) << name;
  }
  EXPECT_GT(num_stores, 0);
}

TEST(LauncherTest, Rank0WritesToStdoutOthersWithPrefixToStderr) {
  const Finished got = run(options_for(3, "hello"));
  EXPECT_EQ(got.result.exit_code, 0) << got.errors;
  EXPECT_EQ(got.result.culprit, -1);
  EXPECT_EQ(got.output, "out 0 of 3\n");
  for (const char* line : {"[rank 0] err 0\n", "[rank 0] no line end\n", "[rank 1] out 1 of 3\n",
                           "[rank 1] err 1\n", "[rank 2] out 2 of 3\n", "[rank 2] no line end\n"}) {
    EXPECT_THAT(got.errors, HasSubstr(line));
  }
  EXPECT_THAT(got.errors, Not(HasSubstr("out 0")));
}

TEST(LauncherTest, PrefixAllTakesRank0sStdoutToo) {
  LaunchOptions options = options_for(2, "hello");
  options.prefix_all = true;
  const Finished got = run(options);
  EXPECT_EQ(got.output, "");
  EXPECT_THAT(got.errors, HasSubstr("[rank 0] out 0 of 2\n"));
}

TEST(LauncherTest, RanksGetTheirVariablesAndNoOthersRank) {
  setenv("SLURM_PROCID", "5", 1);
  setenv("RANK", "77", 1);
  LaunchOptions options = options_for(1, "variables");
  options.variables = {{"COLOUR", "blue"}};
  const Finished got = run(options);
  unsetenv("SLURM_PROCID");
  unsetenv("RANK");
  EXPECT_EQ(got.output,
            "RANK=0\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=1\nSLURM_PROCID=(none)\nCOLOUR=blue\n");
}

TEST(LauncherTest, RanksMeet) {
  for (const int size : {1, 2, 5}) {
    const Finished got = run(options_for(size, "meet"));
    EXPECT_EQ(got.result.exit_code, 0) << got.errors;
    EXPECT_EQ(got.output,
              std::string(size == 1 ? "local" : "shm") + " sum " + std::to_string(size) + "\n");
  }
}

TEST(LauncherTest, KilledRankEndsAllAtOnceAndIsNamed) {
  const Finished got = run(options_for(4, "die", 2));
  const std::size_t mark = got.errors.find("dies at ");
  ASSERT_NE(mark, got.errors.npos) << got.errors;
  EXPECT_LT(seconds_since(std::stoll(got.errors.substr(mark + 8))), 5.0);
  EXPECT_EQ(got.result.exit_code, 4);
  EXPECT_EQ(got.result.culprit, 2);
  EXPECT_EQ(got.result.reason, "killed by signal 9");
  EXPECT_EQ(got.result.cause, Errc::kPeerLost);
  for (const char* rank : {"0", "1", "3"}) {
    EXPECT_THAT(
        got.errors,
        HasSubstr(std::string("[rank ") + rank +
                  "] peer_lost: dispatch: rank 2 was lost (killed by signal 9) while rank " + rank +
                  " waited in dispatch receive, call 17\n"));
  }
}

// The launcher tells the world; subgroups learn of it from there. Rank 2 is rank 0 of its pair.
TEST(LauncherTest, KilledRankIsNamedInSubgroups) {
  const Finished got = run(options_for(4, "die_in_pairs", 2));
  EXPECT_EQ(got.result.culprit, 2);
  for (const char* who :
       {"[rank 0] peer_lost: dispatch: rank 2 of the parent group was lost (killed by signal 9)",
        "[rank 1] peer_lost: dispatch: rank 2 of the parent group was lost (killed by signal 9)",
        "[rank 3] peer_lost: dispatch: rank 0 was lost (killed by signal 9) while rank 1 waited"}) {
    EXPECT_THAT(got.errors, HasSubstr(who));
  }
}

TEST(LauncherTest, ExitCodeOfTheFirstThatFailsIsReturned) {
  const Finished got = run(options_for(3, "exit3", 1));
  EXPECT_EQ(got.result.exit_code, 3);
  EXPECT_EQ(got.result.culprit, 1);
  EXPECT_EQ(got.result.cause, std::nullopt);
  EXPECT_THAT(got.errors, HasSubstr("rank 1 was lost (exited with code 3) while rank 0 waited"));
}

TEST(LauncherTest, StoppedRankIsBlamedNotTheOneThatWaited) {
  LaunchOptions options = options_for(3, "stop", 1);
  options.variables = {{"SWITCHYARD_TIMEOUT_MS", "400"}};
  options.grace_ms = 200;
  const std::int64_t start = now_ns();
  const Finished got = run(options);
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(got.result.culprit, 1) << got.errors;
  EXPECT_EQ(got.result.cause, Errc::kTimeout);
  EXPECT_THAT(got.result.reason, HasSubstr("had no answer from rank 1 within 0.4 s"));
}

TEST(LauncherTest, RankThatIgnoresTheEndIsKilledAfterTheGrace) {
  LaunchOptions options = options_for(3, "hang_or_fail", 1);
  options.grace_ms = 300;
  const std::int64_t start = now_ns();
  const Finished got = run(options);
  EXPECT_GE(seconds_since(start), 0.6);
  EXPECT_LT(seconds_since(start), 5.0);
  EXPECT_EQ(got.result.exit_code, 3);
  EXPECT_EQ(got.result.culprit, 1);
}

TEST(LauncherTest, RankThatEndsBeforeItJoinsIsNamed) {
  LaunchOptions options = options_for(3, "absent", 2);
  options.variables = {{"SWITCHYARD_TIMEOUT_MS", "500"}};
  const Finished got = run(options);
  EXPECT_EQ(got.result.exit_code, 7);
  EXPECT_EQ(got.result.culprit, 2);
  EXPECT_THAT(got.errors, HasSubstr("timeout: group: no sign of rank 2 within 0.5 s"));
}

// A rank of "sh", which prints so many bytes in lines of 100.
LaunchOptions printing(int num_bytes) {
  LaunchOptions options;
  options.num_ranks = 1;
  options.prefix_all = true;
  options.grace_ms = 200;
  const std::string line = "yes $(printf '%099d' 0) | head -c " + std::to_string(num_bytes);
  options.command = {"sh", "-c", line};
  return options;
}

// A launcher in a process of its own, whose lines go into a pipe.
class PipedLauncher {
 public:
  explicit PipedLauncher(LaunchOptions options) {
    auto [reader, writer] = make_pipe();
    reader_ = std::move(reader);
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      options.error_fd = writer.get();
      _exit(launch(options).exit_code);
    }
  }
  PipedLauncher(const PipedLauncher&) = delete;
  PipedLauncher& operator=(const PipedLauncher&) = delete;
  ~PipedLauncher() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void send_signal(int signal) const { kill(pid_, signal); }
  std::size_t read_all() {
    std::vector<char> bytes(1 << 16);
    std::size_t total = 0;
    for (ssize_t size = 1; size > 0; total += static_cast<std::size_t>(std::max<ssize_t>(size, 0)))
      size = read(reader_.get(), bytes.data(), bytes.size());
    return total;
  }
  // -1 when it has not ended.
  int exit_code(int within_ms) {
    for (const Deadline end = Deadline::after_ms(within_ms); !end.expired(); usleep(5000)) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) return WEXITSTATUS(status);
    }
    return -1;
  }

 private:
  Fd reader_;
  pid_t pid_ = -1;
};

constexpr int kManyBytes = 10'000'000;  // more than pipes hold
constexpr int kSomeBytes = 100'000;     // more than the launcher's pipe holds

TEST(LauncherTest, SignalsEndAJobWhoseOutputNobodyReads) {
  for (const int num_bytes : {kManyBytes, kSomeBytes}) {
    for (const int signal : {SIGTERM, SIGINT}) {
      PipedLauncher launcher(printing(num_bytes));
      usleep(300'000);  // of few bytes the rank has ended meanwhile
      launcher.send_signal(signal);
      EXPECT_EQ(launcher.exit_code(5000), 128 + signal) << num_bytes;
    }
  }
}

TEST(LauncherTest, LateReaderGetsEveryLine) {
  for (const int num_bytes : {kManyBytes, kSomeBytes}) {
    PipedLauncher launcher(printing(num_bytes));
    EXPECT_EQ(launcher.exit_code(1000), -1);
    const std::size_t num_lines = static_cast<std::size_t>(num_bytes) / 100;
    EXPECT_EQ(launcher.read_all(), num_lines * (100 + sizeof("[rank 0] ") - 1));
    EXPECT_EQ(launcher.exit_code(5000), 0);
  }
}

TEST(LauncherTest, WithoutDescriptorsItSaysSo) {
#ifdef SWITCHYARD_CHECKS_TAKE_DESCRIPTORS
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors of its own";
#endif
  int num_failures = 0;
  for (int num_free = 0; num_free == num_failures; ++num_free) {
    const Capture errors;
    const FewDescriptors few(num_free);
    LaunchOptions options = printing(100);
    options.error_fd = errors.fd();
    try {
      launch(options);
    } catch (const Error& failure) {
      ++num_failures;
      EXPECT_EQ(failure.code(), Errc::kOutOfMemory) << failure.what();
      EXPECT_THAT(failure.what(), HasSubstr("Too many open files; raise ulimit -n"));
    }
  }
  EXPECT_GT(num_failures, 5);
}

bool is_sigpipe(int (*get)(sigset_t*)) {
  sigset_t set;
  sigemptyset(&set);
  get(&set);
  return sigismember(&set, SIGPIPE) == 1;
}

TEST(LauncherTest, OutputThatNobodyReadsEndsNeitherJobNorLauncher) {
  LaunchOptions options = options_for(3, "hello");
  const Capture output;
  options.output_fd = output.fd();
  auto [reader, writer] = make_pipe();
  reader.reset();
  options.error_fd = writer.get();
  EXPECT_EQ(launch(options).exit_code, 0);
  EXPECT_EQ(output.text(), "out 0 of 3\n");
  EXPECT_FALSE(is_sigpipe(sigpending));
  EXPECT_FALSE(is_sigpipe([](sigset_t* set) { return pthread_sigmask(SIG_BLOCK, nullptr, set); }));
}

TEST(LauncherTest, RanksGetTheSignalMaskOfTheCaller) {
  LaunchOptions options = options_for(1, "");
  options.command = {"grep", "SigBlk", "/proc/self/status"};
  std::ifstream status("/proc/self/status");
  std::string own;
  while (own.substr(0, 7) != "SigBlk:") ASSERT_TRUE(std::getline(status, own));
  EXPECT_EQ(run(options).output, own + "\n");
}

TEST(LauncherTest, CommandThatIsNotThereIsAnError) {
  LaunchOptions options;
  options.num_ranks = 2;
  options.command = {"/no/such/program"};
  expect_invalid("launch: /no/such/program: No such file", [&] { launch(options); });
  options.num_ranks = 0;
  EXPECT_THAT(error_of([&] { launch(options); }).what(), HasSubstr("0 ranks"));
}

TEST(LauncherTest, NothingIsLeftBehind) {
  (void)run(options_for(2, "meet"));  // opens the descriptors that libraries keep
  const auto files = files_in("/proc/self/fd");
  const auto named_memory = files_in("/dev/shm");
  (void)run(options_for(3, "meet"));
  const Finished last = run(options_for(3, "die", 0));
  EXPECT_EQ(files_in("/proc/self/fd").size(), files.size());
  EXPECT_EQ(files_in("/dev/shm"), named_memory);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  expect_stores_vanish(last.errors);
}

// A launcher in a process of its own, and the pids that its ranks print.
struct RemoteLauncher {
  RemoteLauncher(int num_ranks, const std::string& task, int grace_ms = 200) {
    std::fflush(nullptr);
    pid = fork();
    if (pid != 0) return;
    LaunchOptions options = options_for(num_ranks, task);
    options.grace_ms = grace_ms;
    options.error_fd = errors.fd();
    _exit(launch(options).exit_code);
  }
  ~RemoteLauncher() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }

  std::vector<pid_t> rank_pids(std::size_t num_wanted) const {
    std::vector<pid_t> pids;
    for (const Deadline end = Deadline::after_ms(20'000); !end.expired(); usleep(5000)) {
      pids.clear();
      std::istringstream words(errors.text());
      for (std::string word; words >> word;) {
        if (word == "pid" && words >> word) pids.push_back(std::atoi(word.c_str()));
      }
      if (pids.size() == num_wanted) break;
    }
    return pids;
  }

  Capture errors;
  pid_t pid = -1;
};

// True once none of them runs; a zombie that init has yet to reap counts as ended.
bool are_gone(const std::vector<pid_t>& pids, int within_ms) {
  for (const Deadline end = Deadline::after_ms(within_ms); !end.expired(); usleep(5000)) {
    int num_alive = 0;
    for (const pid_t pid : pids) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
      std::string word;
      if (file >> word >> word >> word && word != "Z" && word != "X") ++num_alive;
    }
    if (num_alive == 0) return true;
  }
  return false;
}

TEST(LauncherTest, RanksDieWithAKilledLauncher) {
  RemoteLauncher launcher(3, "hang");
  const std::vector<pid_t> pids = launcher.rank_pids(3);
  ASSERT_EQ(pids.size(), 3u) << launcher.errors.text();
  kill(launcher.pid, SIGKILL);
  int status = 0;
  waitpid(launcher.pid, &status, 0);
  launcher.pid = -1;
  EXPECT_TRUE(are_gone(pids, 1000));
  expect_stores_vanish(launcher.errors.text());
}

TEST(LauncherTest, SignalToTheLauncherEndsTheRanks) {
  RemoteLauncher launcher(3, "hang");
  const std::vector<pid_t> pids = launcher.rank_pids(3);
  ASSERT_EQ(pids.size(), 3u) << launcher.errors.text();
  kill(launcher.pid, SIGTERM);
  int status = 0;
  waitpid(launcher.pid, &status, 0);
  launcher.pid = -1;
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_TRUE(are_gone(pids, 1000));
}

TEST(LauncherTest, SignalToTheLauncherIsToldToTheRanksFirst) {
  constexpr int kGraceMs = 20'000;
  RemoteLauncher launcher(3, "wait", kGraceMs);
  ASSERT_EQ(launcher.rank_pids(3).size(), 3u) << launcher.errors.text();
  const std::int64_t start = now_ns();
  kill(launcher.pid, SIGINT);
  int status = 0;
  waitpid(launcher.pid, &status, 0);
  launcher.pid = -1;
  EXPECT_LT(seconds_since(start), 10.0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(launcher.errors.text(), HasSubstr(std::string("[rank ") + rank + "] aborted: "));
  }
  EXPECT_THAT(launcher.errors.text(),
              HasSubstr(": the group was aborted: the launcher got signal 2 (rank "));
}

TEST(LauncherTest, SecondSignalToTheLauncherIsPassedOnAtOnce) {
  RemoteLauncher launcher(2, "sleep", 20'000);
  const std::vector<pid_t> pids = launcher.rank_pids(2);
  ASSERT_EQ(pids.size(), 2u) << launcher.errors.text();
  kill(launcher.pid, SIGTERM);
  EXPECT_FALSE(are_gone(pids, 300));  // the ranks are notified, but ignore it
  kill(launcher.pid, SIGTERM);
  EXPECT_TRUE(are_gone(pids, 5000));
}

}  // namespace
}  // namespace switchyard
