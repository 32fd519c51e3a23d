// SPDX-License-Identifier: Apache-2.0

#include "transport/env.h"

#include <unistd.h>

#include <array>
#include <map>
#include <sstream>
#include <string>

#include <gmock/gmock.h>

#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Of variables as in "NAME=value NAME=value".
RankInfo discover(const std::string& environment) {
  std::map<std::string, std::string> variables;
  std::istringstream words(environment);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    variables[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return discover_ranks([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

struct Known {
  const char* source;
  const char* environment;
  std::array<int, 4> numbers;  ///< rank, size, local rank, local size
  const char* job_id;
};

class EnvTest : public ::testing::TestWithParam<Known> {};

TEST_P(EnvTest, LauncherIsUnderstood) {
  const Known& known = GetParam();
  const RankInfo info = discover(known.environment);
  EXPECT_EQ(info.source, known.source);
  EXPECT_EQ((std::array{info.rank, info.size, info.local_rank, info.local_size}), known.numbers);
  EXPECT_EQ(info.job_id, known.job_id);
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, EnvTest,
    ::testing::Values(
        Known{"none", "", {0, 1, -1, -1}, ""},
        Known{"torchrun",
              "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29500 "
              "TORCHELASTIC_RUN_ID=abc",
              {3, 8, 1, 2},
              "abc/h/29500"},
        Known{"switchyard launcher",
              "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 SWITCHYARD_CONTROL_FD=5 "
              "SWITCHYARD_STORE=unix:@x",
              {1, 2, 1, 2},
              "unix:@x"},
        Known{"Open MPI",
              "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=7 OMPI_COMM_WORLD_LOCAL_RANK=5 "
              "OMPI_COMM_WORLD_LOCAL_SIZE=7 PMIX_RANK=5 PMIX_NAMESPACE=prterun-h-12@1",
              {5, 7, 5, 7},
              "prterun-h-12@1"},
        Known{"PMI", "PMI_RANK=0 PMI_SIZE=4", {0, 4, -1, -1}, ""},
        Known{"Slurm",
              "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 "
              "SLURM_JOB_ID=77 SLURM_STEP_ID=1",
              {2, 4, 0, -1},
              "77/1"},
        Known{"PMIx",
              "PMIX_RANK=2 PMIX_NAMESPACE=slurm.77.1 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
              {2, 4, -1, -1},
              "slurm.77.1"},
        // The shell of a batch script is not a rank.
        Known{"none", "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=77", {0, 1, -1, -1}, ""},
        Known{"none", "SLURM_NTASKS=4", {0, 1, -1, -1}, ""},
        // srun -n 1 torchrun --nproc-per-node 8
        Known{"torchrun",
              "RANK=6 WORLD_SIZE=8 MASTER_PORT=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
              {6, 8, -1, -1},
              "1"},
        // mpirun -n 1 torchrun --nproc-per-node 8
        Known{"torchrun",
              "RANK=6 WORLD_SIZE=8 MASTER_PORT=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "
              "PMIX_RANK=0 PMIX_NAMESPACE=prterun-h-12@1",
              {6, 8, -1, -1},
              "1"},
        // srun --mpi=pmix -n 1 torchrun --nproc-per-node 8
        Known{"torchrun",
              "RANK=6 WORLD_SIZE=8 MASTER_PORT=1 PMIX_RANK=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
              {6, 8, -1, -1},
              "1"},
        // srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 4
        Known{"torchrun",
              "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_PORT=1 "
              "TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=1 "
              "SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 PMIX_RANK=1 PMIX_NAMESPACE=slurm.77.0",
              {5, 8, 1, 4},
              "none/1"},
        // mpirun -n 2 --map-by node torchrun ...
        Known{"torchrun",
              "RANK=5 WORLD_SIZE=8 MASTER_PORT=1 TORCHELASTIC_RUN_ID=none OMPI_COMM_WORLD_RANK=1 "
              "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=1 PMIX_NAMESPACE=x",
              {5, 8, -1, -1},
              "none/1"},
        // Each task of srun -n 2 has a torchrun of its own.
        Known{"torchrun",
              "RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=a SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
              {0, 1, -1, -1},
              "a"},
        Known{"none", "WORLD_SIZE=1", {0, 1, -1, -1}, ""},
        Known{"none", "RANK= WORLD_SIZE=", {0, 1, -1, -1}, ""}));

struct Refused {
  const char* environment;
  const char* first;
  const char* second;
};

class EnvRefusalTest : public ::testing::TestWithParam<Refused> {};

TEST_P(EnvRefusalTest, IsAnErrorThatNamesTheVariables) {
  const Error error = error_of([] { discover(GetParam().environment); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(GetParam().first), HasSubstr(GetParam().second)));
}

INSTANTIATE_TEST_SUITE_P(
    Contradictions, EnvRefusalTest,
    ::testing::Values(Refused{"RANK=1 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
                              "RANK is 1", "OMPI_COMM_WORLD_RANK is 2"},
                      Refused{"RANK=1 WORLD_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=8",
                              "WORLD_SIZE is 4", "SLURM_STEP_NUM_TASKS is 8"},
                      Refused{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3",
                              "OMPI_COMM_WORLD_RANK is 1", "PMIX_RANK is 3"},
                      // Not torchrun: its run id is missing.
                      Refused{"RANK=5 WORLD_SIZE=8 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
                              "RANK is 5", "SLURM_PROCID is 1"},
                      // 3 is not the outer launcher's rank, so nothing explains it.
                      Refused{
                          "RANK=1 WORLD_SIZE=4 PMIX_RANK=3 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
                          "RANK is 1", "PMIX_RANK is 3"},
                      Refused{"RANK=4 WORLD_SIZE=4", "RANK is 4", "must be from 0 to 3"},
                      Refused{"RANK=0 WORLD_SIZE=0", "torchrun names 0 ranks", "from 1 to 4096"},
                      Refused{"RANK=0 WORLD_SIZE=4097", "4097 ranks", "from 1 to 4096"},
                      Refused{"WORLD_SIZE=4", "WORLD_SIZE is 4", "RANK is not set"},
                      Refused{"RANK=one WORLD_SIZE=4", "RANK is \"one\"", "whole number"},
                      Refused{"RANK=1x WORLD_SIZE=4", "RANK is \"1x\"", "whole number"},
                      Refused{"RANK=-1 WORLD_SIZE=4", "RANK is \"-1\"", "whole number"},
                      Refused{"RANK=1 WORLD_SIZE=99999999999", "WORLD_SIZE", "whole number"},
                      Refused{"PMIX_RANK=1", "PMIX_RANK is 1", "nothing says how many"},
                      Refused{"RANK=1", "RANK is 1", "nothing says how many"}));

TEST(MeetingAddressTest, IsOfUserAndJob) {
  RankInfo info;
  info.source = "torchrun";
  info.size = 4;
  EXPECT_THAT(error_of([&] { meeting_address(info); }).what(), HasSubstr("set SWITCHYARD_STORE"));
  info.job_id = "a";
  // FNV-1a of "a".
  EXPECT_EQ(meeting_address(info),
            "unix:@switchyard-" + std::to_string(geteuid()) + "-af63dc4c8601ec8c");
  info.rank = 3;
  const std::string same = meeting_address(info);
  info.job_id = "b";
  EXPECT_NE(meeting_address(info), same);
}

}  // namespace
}  // namespace switchyard
