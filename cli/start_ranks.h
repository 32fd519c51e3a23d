// SPDX-License-Identifier: Apache-2.0
//
// start_ranks.h: turns one command into ranks: those that a launcher started, threads, or copies of
// this command as processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "switchyard/group.h"

namespace switchyard::cli {

struct RankStart {
  const char* verb = "";  ///< begins messages
  int num_ranks = 0;      ///< as asked for; 0: the launcher's, else default_ranks
  int default_ranks = 1;
  std::string engine;  ///< auto, local, shm; empty: the setting SWITCHYARD_ENGINE
  std::int64_t timeout_ms = 0;
  /// Once a process, before there is a group: what every rank would refuse.
  std::function<void(int num_ranks)> check;
  /// Once, by the process that starts the ranks; the arguments are added to theirs. May be absent.
  std::function<std::vector<std::string>(int num_ranks)> before;
  /// Of one rank; the exit code of rank 0 counts.
  std::function<int(const Group&)> body;
};

/// Returns the exit code. `argv` is what the ranks are started with, when they are processes.
/// Errors: kInvalidArgument; what `check`, `before` and `body` throw.
int start_ranks(const RankStart& start, char** argv);

}  // namespace switchyard::cli
