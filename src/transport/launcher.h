// SPDX-License-Identifier: Apache-2.0
//
// launcher.h: starts N copies of a command as the ranks of one job on this host, and stops all when
// one fails. Each gets torchrun's variables and SWITCHYARD_STORE, SWITCHYARD_SECRET and
// SWITCHYARD_CONTROL_FD. When a rank dies its death is written to the control block, so the others
// end with an error that names it; who has not ended after a grace time is killed. Ranks also die
// with the launcher, even when that is killed with SIGKILL.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace switchyard {

struct LaunchOptions {
  int num_ranks = 1;
  std::vector<std::string> command{};  ///< program and arguments; empty: this program, without any
  std::vector<std::pair<std::string, std::string>> variables{};  ///< more, for every rank
  /// Rank 0's stdout is the launcher's own, untouched. Every other line goes to `error_fd` with a
  /// prefix, "[rank 2] ". True: rank 0's stdout too.
  bool prefix_all = false;
  int grace_ms = 2000;  ///< from the first failure or signal to SIGTERM, from there to SIGKILL
  int output_fd = STDOUT_FILENO;
  int error_fd = STDERR_FILENO;
};

struct LaunchResult {
  /// 0; or what the first rank that failed returned; 4 when it was lost to a signal; 128 + n when
  /// the launcher itself got the signal n.
  int exit_code = 0;
  int culprit = -1;    ///< the rank to blame, or -1
  std::string reason;  ///< "killed by signal 9", "exited with code 3", or what the ranks agreed on
};

inline constexpr int kRankLostExitCode = 4;

/// Returns when all ranks have ended, or are ended: SIGINT, SIGTERM and SIGHUP to this program are
/// first told to the ranks, as a failure is; a second signal is passed on at once. The calling
/// thread must be the only one that has them unblocked, and must live as long. Output that nobody
/// reads is dropped, and no SIGPIPE comes of it.
///
/// Errors: kInvalidArgument (number of ranks, a command that cannot be started), kSystem.
LaunchResult launch(const LaunchOptions& options);

}  // namespace switchyard
