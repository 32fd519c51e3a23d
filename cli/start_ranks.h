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

#include "exchange/agree.h"

namespace switchyard::cli {

struct RankStart {
  const char* verb = "";  ///< prefix of error messages
  int num_ranks = 0;      ///< as requested; 0: the launcher's count, else default_ranks
  int default_ranks = 1;
  std::string engine;  ///< auto, local, shm; empty: the setting SWITCHYARD_ENGINE
  std::int64_t timeout_ms = 0;
  /// Throws what every rank would refuse. Runs once, in the process that starts the ranks; under
  /// another launcher each rank runs it, before there is a group.
  std::function<void(int num_ranks)> check;
  /// What all ranks must have been given alike; compared under another launcher.
  NamedValues shared;
  /// Runs once, in the process that starts the ranks; the returned arguments are added to theirs.
  /// May be absent.
  std::function<std::vector<std::string>(int num_ranks)> before;
  /// The work of one rank; rank 0's exit code is the result.
  std::function<int(const Group&)> body;
};

/// Returns the exit code. Ranks that are processes are started with `argv`.
/// Errors: kInvalidArgument; what `check`, `before` and `body` throw.
int start_ranks(const RankStart& start, char** argv);

/// The file of this program.
std::string own_program();

/// This program with the arguments of `argv`.
std::vector<std::string> own_command(char** argv);

}  // namespace switchyard::cli
