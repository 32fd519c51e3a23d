// SPDX-License-Identifier: Apache-2.0
//
// launcher.h: starts N copies of a command as the ranks of one job on this host, and stops them all
// when one fails. Each gets torchrun's variables plus SWITCHYARD_STORE, SWITCHYARD_SECRET and
// SWITCHYARD_CONTROL_FD. When a rank dies, the launcher records it in the control block, so that
// the others end with an error that names it; ranks that outlive a grace time are killed. Ranks
// also die with the launcher, even when it is killed with SIGKILL. Each rank runs on the cores of
// one NUMA node, unless SWITCHYARD_BIND is none.
#pragma once

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/error.h"

namespace switchyard {

struct LaunchOptions {
  int num_ranks = 1;
  std::vector<std::string> command{};  ///< program and arguments; empty: this program without any
  std::vector<std::pair<std::string, std::string>> variables{};  ///< extra, for all ranks
  /// False: rank 0's stdout goes to `output_fd` unchanged, and every other line to `error_fd` with
  /// a prefix such as "[rank 2] ". True: rank 0's stdout is prefixed too.
  bool prefix_all = false;
  int grace_ms = 2000;  ///< from the first failure or signal to SIGTERM, and from there to SIGKILL
  int output_fd = STDOUT_FILENO;
  int error_fd = STDERR_FILENO;
};

struct LaunchResult {
  /// 0, or the exit code of the first rank that failed; 4 when that rank was killed by a signal, 3
  /// when its exit code was lost; 128 + n when the launcher itself got signal n.
  int exit_code = 0;
  int culprit = -1;  ///< the rank to blame, or -1
  /// Why, where that is known: kPeerLost when the culprit was killed by a signal, kSystem when its
  /// exit code was lost, or what the ranks agreed on. Empty: it ended by itself, with `exit_code`.
  std::optional<Errc> cause{};
  std::string reason;  ///< "killed by signal 9", "exited with code 3", or what the ranks agreed on
};

inline constexpr int kRankLostExitCode = 4;

/// Returns when all ranks have ended or were killed. The first SIGINT, SIGTERM or SIGHUP to this
/// program aborts the group, as a failure does; later ones are passed on to the ranks at once. The
/// calling thread must be the only one with these signals unblocked, and must live until the end.
/// Output that nobody reads is dropped without raising SIGPIPE.
///
/// Errors: kInvalidArgument (number of ranks, a command that cannot be started), kSystem.
LaunchResult launch(const LaunchOptions& options);

}  // namespace switchyard
