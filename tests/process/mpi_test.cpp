// SPDX-License-Identifier: Apache-2.0
//
// Exchanges over engine "mpi" under mpirun: hosts are said by SWITCHYARD_HOST_ID, and MPI may use
// TCP alone, so that nothing but sockets joins the ranks.

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kTimeoutSeconds = 3;
// MPI_Finalize would be waited for, for ten timeouts.
constexpr double kMaxSeconds = 8 * kTimeoutSeconds;

// mpirun, and one of the tests' programs with `arguments`.
CommandResult run_mpi(int num_ranks, const std::vector<std::string>& arguments,
                      bool goes_on_after_faults = false,
                      const char* program = SWITCHYARD_MPI_RANK) {
  std::vector<std::string> command{"mpirun",
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "--mca",
                                   "btl",
                                   "tcp,self",
                                   "--mca",
                                   "btl_tcp_if_include",
                                   "lo",
                                   "-x",
                                   "SWITCHYARD_TIMEOUT_MS"};
  if (goes_on_after_faults) command.emplace_back("--enable-recovery");
  for (const std::string& text :
       {std::string("-n"), std::to_string(num_ranks), std::string(program)}) {
    command.push_back(text);
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_command(command, 100);
}

class MpiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_command({"mpirun", "--version"}).exit_code != 0) GTEST_SKIP() << "no mpirun here";
    setenv("SWITCHYARD_TIMEOUT_MS", "20000", 1);
  }
};

TEST_F(MpiTest, TwoHostsOfTwoEqualTheOracleInAllLayouts) {
  const CommandResult result = run_mpi(4, {"exchange", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "engine mpi, 4 ranks, 2 of a host, 5 layouts, many cases\n");
}

// As between machines: no address is known but to MPI.
TEST_F(MpiTest, RanksMeetOverMpi) {
  const CommandResult result = run_mpi(3, {"meet", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "engine mpi, 3 ranks, 1 of a host, 5 layouts, many cases\n");
}

TEST_F(MpiTest, ThreeHostsOfTwoEqualTheOracle) {
  const CommandResult result = run_mpi(6, {"exchange", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "engine mpi, 6 ranks, 2 of a host, 5 layouts, many cases\n");
}

TEST_F(MpiTest, SubgroupsAndHostGroupsEqualTheOracle) {
  const CommandResult result = run_mpi(4, {"split", "3"});  // hosts of three ranks and of one
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "split is well\n");
}

// The command, on two hosts of two.
CommandResult run_command_on_hosts(const std::string& arguments) {
  return run_mpi(
      4,
      {"-c",
       "SWITCHYARD_HOST_ID=$((OMPI_COMM_WORLD_RANK / 2)) exec " SWITCHYARD_CLI " " + arguments},
      false, "sh");
}

// A layer whose sums depend on no number of ranks gives the bytes of one host.
TEST_F(MpiTest, RunOnTwoHostsGivesTheBytesOfOne) {
  const TempFolder folder;
  const std::string layer =
      "run --model " SWITCHYARD_DATA_DIR "/tiny-moe --tokens 24 --split uneven --json - --output ";
  const CommandResult far = run_command_on_hosts(layer + folder.file("far"));
  ASSERT_EQ(far.exit_code, 0) << far.error;
  const auto json = nlohmann::json::parse(far.output);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["engine"], "mpi");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_GT(json["host_crossings"], 0);
  const CommandResult near =
      run_command({"sh", "-c", SWITCHYARD_CLI " " + layer + folder.file("near") + " --ranks 4"});
  ASSERT_EQ(near.exit_code, 0) << near.error;
  const auto near_json = nlohmann::json::parse(near.output);
  EXPECT_EQ(near_json["engine"], "shm");
  // Windows of ranks of several hosts also have the rows that they pass on.
  EXPECT_GT(json["window_bytes"], near_json["window_bytes"]);
  EXPECT_GT(json["workspace_bytes"], near_json["workspace_bytes"]);
  EXPECT_EQ(run_command({"cmp", folder.file("far"), folder.file("near")}).exit_code, 0);
}

// Of bf16 rows of 7168 elements; beside them go ids, weights and headers.
TEST_F(MpiTest, BenchCountsTheBytesThatCross) {
  for (const std::string reduce : {"per_rank", "per_host"}) {
    const CommandResult result = run_command_on_hosts(
        "bench --op dispatch --scheme none --tokens 32 --runs 30 --json - --reduce " + reduce);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto json = nlohmann::json::parse(result.output);
    EXPECT_EQ(json["engine"], "mpi");
    EXPECT_EQ(json["settings"]["hosts"], 2);
    const auto& row = json["rows"][0];
    EXPECT_EQ(row["wrong"], 0);
    const double rows_per_token = row["host_crossings_per_token"];
    EXPECT_GT(rows_per_token, 0.9);  // of 8 experts of 256, at least one is on the other host
    EXPECT_LE(rows_per_token, 1.0);
    const double bytes = row["host_bytes_per_token"];
    EXPECT_GE(bytes, 0.98 * rows_per_token * 2 * 7168);  // counted over more iterations
    EXPECT_LE(bytes, 1.04 * rows_per_token * 2 * 7168);
  }
}

TEST_F(MpiTest, CheckRunsBetweenTheRanksOfMpirun) {
  const CommandResult result = run_mpi(
      4, {"check", "--quick", "--ranks-per-host", "3,1", "--filter", "*per_host*", "--json", "-"},
      false, SWITCHYARD_CLI);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ok"], true);
  EXPECT_GE(json["cases"].size(), 5u);
  for (const auto& one : json["cases"]) {
    EXPECT_THAT(one["name"].get<std::string>(), ::testing::StartsWith("exchange/mpi/P4/"));
  }
}

TEST_F(MpiTest, CommunicatorsOfTheProgramBecomeGroups) {
  const CommandResult result = run_mpi(4, {}, false, SWITCHYARD_MPI_COMMUNICATORS);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "communicators are well\n");
}

// ---- faults: mpirun lets the survivors go on ---------------------------------------------------

class MpiFaultTest : public MpiTest {
 protected:
  void SetUp() override {
    MpiTest::SetUp();
    setenv("SWITCHYARD_TIMEOUT_MS",
           std::to_string(static_cast<int>(kTimeoutSeconds * 1000)).c_str(), 1);
  }
  // Each survivor of 4 ranks reports an error with `code` and `words`, soon enough.
  void expect_on_survivors(int victim, const std::string& deed, const std::string& code,
                           const std::string& words) {
    const CommandResult result = run_mpi(4, {"fault", "2", std::to_string(victim), deed}, true);
    EXPECT_LE(result.seconds, kMaxSeconds) << "a rank waited for MPI_Finalize";
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      const std::string opening = "rank " + std::to_string(rank) + " after ";
      const std::size_t at = result.error.find(opening);
      ASSERT_NE(at, std::string::npos) << "rank " << rank << " says nothing:\n" << result.error;
      const std::string line = result.error.substr(at, result.error.find('\n', at) - at);
      EXPECT_THAT(line, HasSubstr(" s: " + code + ": "));
      EXPECT_THAT(line, HasSubstr(words));
      EXPECT_LE(std::stod(line.substr(opening.size())), kTimeoutSeconds + 2) << line;
    }
  }
};

TEST_F(MpiFaultTest, KilledRankIsOneErrorOnAllSurvivors) {
  expect_on_survivors(2, "kill", "peer_lost", "rank 2 was lost (its connection ended) while rank ");
}

TEST_F(MpiFaultTest, KilledRank0IsOneErrorOnAllSurvivors) {
  expect_on_survivors(0, "kill", "peer_lost", "rank 0 was lost (its connection ended) while rank ");
}

TEST_F(MpiFaultTest, StoppedRankIsOneErrorOnAllSurvivors) {
  expect_on_survivors(1, "stop", "peer_lost", "rank 1 was lost (no sign of life for 1.5 s");
}

TEST_F(MpiFaultTest, RankWhoseLinksAreCutIsOneErrorOnAllSurvivors) {
  expect_on_survivors(3, "cut", "peer_lost", "rank 3 was lost (no sign of life for 1.5 s");
}

// What it left the group with is well, but MPI_Finalize would wait for the one that is lost.
TEST_F(MpiFaultTest, RankThatLeftDoesNotWaitForOneThatIsLost) {
  const CommandResult result = run_mpi(4, {"leave", "2", "2"}, true);
  for (const char* rank : {"rank 0: ", "rank 3: "}) {
    EXPECT_THAT(result.error, HasSubstr(std::string(rank) + "dispatch: rank 2 was lost"));
  }
  const std::string opening = "rank 1 ended after ";
  const std::size_t at = result.error.find(opening);
  ASSERT_NE(at, std::string::npos) << result.error;
  EXPECT_LE(std::stod(result.error.substr(at + opening.size())), 2 + kTimeoutSeconds)
      << "rank 1 waited for MPI_Finalize";
}

// Nobody hears of it but through the connections that ranks keep until MPI_Finalize has returned.
TEST_F(MpiFaultTest, RankThatIsLostAfterAllHaveLeftIsNotWaitedForInFinalize) {
  for (const auto& [victim, deed] : {std::pair(2, "kill"), {0, "kill"}, {3, "stop"}}) {
    const CommandResult result = run_mpi(4, {"last", "2", std::to_string(victim), deed}, true);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      const std::string opening = "rank " + std::to_string(rank) + " ended after ";
      const std::size_t at = result.error.find(opening);
      ASSERT_NE(at, std::string::npos) << result.error;
      EXPECT_LE(std::stod(result.error.substr(at + opening.size())), 2 + kTimeoutSeconds + 1)
          << deed << " of rank " << victim << ": rank " << rank << " waited for MPI_Finalize";
    }
  }
}

// One that lives and is busy for longer than the timeout is waited for: the job ends well.
TEST_F(MpiFaultTest, RankThatEndsLateIsWaitedForInFinalize) {
  for (const char* late : {"0", "2"}) {
    const CommandResult result = run_mpi(4, {"last", "2", late, "busy"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_GE(result.seconds, 6);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(result.error, HasSubstr("rank " + std::to_string(rank) + " ended after "));
    }
    EXPECT_THAT(result.error, Not(HasSubstr("finalize")));
  }
}

TEST_F(MpiFaultTest, ForkedCopyOfARankEndsSoonAndLeavesItInTheGroup) {
  const CommandResult result = run_mpi(4, {"fork", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output, "copies end\n") << result.error;
}

TEST_F(MpiFaultTest, HostThatNeverComesIsNamed) {
  const CommandResult result = run_mpi(3, {"fault", "2", "2", "late"}, true);
  for (const char* rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_THAT(result.error,
                HasSubstr(std::string(rank) + "group: no sign of rank 2 within 3.0 s"));
  }
}

}  // namespace
}  // namespace switchyard
