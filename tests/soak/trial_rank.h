// SPDX-License-Identifier: Apache-2.0
//
// trial_rank.h: one trial of kill_trials, and its ranks as processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace switchyard::test {

enum class Fault : std::uint8_t { kKill, kStop, kLate };

/// What a rank reports that has done its work.
inline constexpr const char* kTrialDone = "done";

struct Trial {
  std::uint64_t seed = 0;
  Fault fault = Fault::kKill;
  int num_ranks = 2;
  std::vector<int> victims{};
  int signal = 0;
  std::int64_t delay_ms = 0;  ///< until the signal, or the start of those that are late
  std::int64_t timeout_ms = 0;
  std::string device{};
  std::string name{};   ///< part of the name of all that this trial creates
  std::string store{};  ///< where the ranks meet

  bool is_victim(int rank) const;
  bool is_late(int rank) const;
  /// Late ranks that come in time harm nobody.
  bool must_fail() const { return fault != Fault::kLate || delay_ms > timeout_ms; }
  std::string describe() const;
};

Trial random_trial(std::uint64_t seed, const std::string& device, std::int64_t timeout_ms,
                   const std::filesystem::path& folder);

struct TrialRank {
  pid_t pid = -1;
  Fd reports;
  std::int64_t since_ns = 0;  ///< its time counts from here
  std::int64_t end_ns = 0;    ///< 0: it is running
  int exit_code = -1;
  int signal = 0;
  std::string report{};  ///< kTrialDone, or the code and the text of an error

  /// Reaps the process. Its end is when it had its error: leaving a GPU takes a second.
  bool has_ended();
  /// It ended with an error of which the cause is a peer.
  bool is_explained() const;
};

/// One process group; the first rank leads it. Returns when every rank has its GPU and may begin:
/// from there times count. No thread may run.
std::vector<TrialRank> start(const Trial& trial);

}  // namespace switchyard::test
