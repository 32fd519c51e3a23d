// SPDX-License-Identifier: Apache-2.0
//
// env.h: which rank this process is, from the variables that launchers set.
//
//   launcher   rank, size                                  here
//   ours       RANK, WORLD_SIZE, and SWITCHYARD_CONTROL_FD
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

struct RankInfo {
  int rank = 0;
  int size = 1;
  int local_rank = -1;          ///< among the ranks of this host; -1: unknown
  int local_size = -1;          ///< ranks of this host; -1: unknown
  std::string source = "none";  ///< whose variables were used, for messages
  std::string job_id;           ///< the same text on all ranks of a job; empty: unknown
};

/// The value of a variable; null when it is not set.
using Lookup = std::function<const char*(const char*)>;

/// One rank when no launcher shows. A step of one process that starts a launcher of its own (srun
/// -n 1 torchrun ...) contradicts nothing; a Slurm batch script, which has SLURM_PROCID without a
/// step, is no rank.
/// Errors: kInvalidArgument (not a number, rank outside the size, two sources that disagree).
RankInfo discover_ranks(const Lookup& lookup);
RankInfo discover_ranks();

/// Variables that say which rank a process is; a launcher removes them from what it starts.
std::span<const char* const> rank_variables();

/// Where the ranks of a job on one host meet when nothing says so: a name of user and job.
/// Errors: kInvalidArgument when the job has no id.
std::string meeting_address(const RankInfo& info);

}  // namespace switchyard
