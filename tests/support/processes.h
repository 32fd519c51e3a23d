// SPDX-License-Identifier: Apache-2.0
//
// processes.h: ranks as processes of a test: forked copies of it that join one group, over engine
// "shm" unless told otherwise. The test process must have no other threads when it forks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/group.h"

namespace switchyard::test {

/// How the process of a rank ended.
struct RankOutcome {
  int exit_code = -1;          ///< 0: success; 1: a test failure; 2: an exception; -1: a signal
  int signal = 0;              ///< the signal that ended it, or 0
  std::optional<Error> error;  ///< what the body threw
  std::string output;          ///< what it wrote to stdout and stderr
};

/// What the body threw, or what the rank wrote instead.
inline std::string what(const RankOutcome& outcome) {
  return outcome.error ? outcome.error->what() : "no error; output: " + outcome.output;
}
inline Errc code(const RankOutcome& outcome) {
  return outcome.error ? outcome.error->code() : Errc::kInternal;
}

/// Timeout of a group of processes, unless told otherwise.
inline constexpr std::int64_t kProcessTimeoutMs = 20'000;

struct ProcessOptions {
  std::int64_t timeout_ms = kProcessTimeoutMs;  ///< timeout of the group
  std::int64_t deadline_ms = 60'000;            ///< after this the test kills all ranks
  int num_missing = 0;                          ///< this many ranks, the last ones, never start
  std::string engine = "shm";
  /// The rank's host, by the setting SWITCHYARD_HOST_ID; empty: all share one.
  std::function<int(int rank)> host_of{};
};

/// Starts all ranks at once; the destructor kills those still running.
class RankProcesses {
 public:
  RankProcesses(int num_ranks, const std::function<void(const Group&)>& body,
                const ProcessOptions& options = {});
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  pid_t pid(int rank) const;
  void send_signal(int rank, int signal) const;

  /// Waits for all ranks until the deadline, then kills those still running.
  std::vector<RankOutcome> wait();
  /// Waits for this rank only; the others keep running.
  RankOutcome wait_for(int rank);

 private:
  struct Child;
  std::vector<Child> children_;
  std::int64_t end_ns_;
};

/// Runs `body` on every rank; unless all succeed, the test fails and shows the rank's output.
void run_processes(int num_ranks, const std::function<void(const Group&)>& body,
                   const ProcessOptions& options = {});

/// Fails the test unless the value comes within 20 s.
void wait_until(const std::atomic<int>& value, int wanted);

}  // namespace switchyard::test
