// SPDX-License-Identifier: Apache-2.0
//
// processes.h: ranks as processes of a test: forked copies of it that join one group over engine
// "shm". The test process must have no other threads when it forks.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/group.h"

namespace switchyard::test {

/// How the process of a rank ended.
struct RankOutcome {
  int exit_code = -1;          ///< 0: fine; 1: a test failure; 2: an exception; -1: by a signal
  int signal = 0;              ///< that ended it, or 0
  std::optional<Error> error;  ///< what the body threw
  std::string output;          ///< what it wrote to stdout and stderr
};

struct ProcessOptions {
  std::int64_t timeout_ms = 20'000;   ///< of the group
  std::int64_t deadline_ms = 60'000;  ///< of the test: then all are killed
  int num_missing = 0;                ///< so many ranks, the last ones, never start
};

/// Starts the ranks at once; the destructor kills what is left.
class RankProcesses {
 public:
  RankProcesses(int num_ranks, const std::function<void(const Group&)>& body,
                const ProcessOptions& options = {});
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();

  pid_t pid(int rank) const;
  void send_signal(int rank, int signal) const;

  /// Waits for all, until the deadline, and kills who is left then.
  std::vector<RankOutcome> wait();
  /// As wait, but only for these ranks; the others go on.
  RankOutcome wait_for(int rank);

 private:
  struct Child;
  std::vector<Child> children_;
  std::int64_t end_ns_;
};

/// Runs `body` on every rank; the test fails, with the rank's output, unless all ends well.
void run_processes(int num_ranks, const std::function<void(const Group&)>& body,
                   const ProcessOptions& options = {});

/// A zero-filled T that forked processes share. T is trivially destructible (atomics).
template <typename T>
class Shared {
 public:
  Shared()
      : data_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                        0)) T{}) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(data_, sizeof(T)); }
  T* operator->() const { return data_; }
  T& operator*() const { return *data_; }

 private:
  T* data_;
};

}  // namespace switchyard::test
