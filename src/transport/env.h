// SPDX-License-Identifier: Apache-2.0
//
// env.h: which rank this process is, from the variables that launchers set.
//
//   launcher   rank, size                                  local rank, local size
//   ours       RANK, WORLD_SIZE                            LOCAL_RANK, LOCAL_WORLD_SIZE
//              (if SWITCHYARD_CONTROL_FD is set)
//   torchrun   RANK, WORLD_SIZE                            LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK, ..._SIZE
//   PMIx       PMIX_RANK
//   PMI        PMI_RANK, PMI_SIZE                          MPI_LOCALRANKID, MPI_LOCALNRANKS
//   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS          SLURM_LOCALID
#pragma once

#include <functional>
#include <span>
#include <string>

namespace switchyard {

/// Most ranks of a group.
inline constexpr int kMaxRanks = 4096;

struct RankInfo {
  int rank = 0;
  int size = 1;
  int local_rank = -1;          ///< among the ranks on this host; -1: unknown
  int local_size = -1;          ///< ranks on this host; -1: unknown
  std::string source = "none";  ///< whose variables were used, for messages
  bool is_ours = false;         ///< started by our launcher
  bool is_spread = false;       ///< the launcher says that ranks are on several hosts
  std::string job_id;           ///< the same text on every rank of a job; empty: unknown
};

/// Returns the value of a variable; null when it is not set.
using Lookup = std::function<const char*(const char*)>;

/// Returns a single rank when no launcher is found. A launcher that starts another is not a
/// contradiction where torchrun is the inner one (srun -N 2 torchrun ...: TORCHELASTIC_RUN_ID is
/// set) or the outer one has a single process; a Slurm batch script, which has SLURM_PROCID but no
/// step, is not a rank. Errors: kInvalidArgument (not a number, no size, WORLD_SIZE without a rank,
/// a size above kMaxRanks, rank >= size, two sources that disagree).
RankInfo discover_ranks(const Lookup& lookup);
RankInfo discover_ranks();

/// Variables that state which rank a process is; a launcher removes them from the environment of
/// the processes it starts.
std::span<const char* const> rank_variables();

/// The default address at which the ranks of a job on one host meet, made from user and job id.
/// Errors: kInvalidArgument when the job has no id.
std::string meeting_address(const RankInfo& info);

}  // namespace switchyard
