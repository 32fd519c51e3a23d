// SPDX-License-Identifier: Apache-2.0
//
// Groups that processes join through environment variables, as under torchrun or mpirun.

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/settings.h"
#include "engine/engine.h"
#include "engine/mesh.h"
#include "engine/registry.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;

void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

void set_torchrun_variables(int rank, int size, const std::string& run) {
  set_variable("RANK", std::to_string(rank));
  set_variable("WORLD_SIZE", std::to_string(size));
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", "29500");
  set_variable("TORCHELASTIC_RUN_ID", run + std::to_string(getppid()));
}

TEST(EnvironmentTest, WithoutALauncherThereIsOneRank) {
  for (const char* engine : {"", "auto", "local"}) {
    const Group group = Group::from_environment({.engine = engine});
    EXPECT_EQ(group.rank(), 0);
    EXPECT_EQ(group.size(), 1);
    EXPECT_STREQ(group.engine_name(), "local");
    EXPECT_EQ(group.timeout_ms(), 30'000);
    group.barrier();
  }
  EXPECT_THAT(error_of([] { Group::from_environment({.engine = "nccl"}); }).what(),
              HasSubstr("engine \"nccl\" is not in this build; built with: local, shm"));
  EXPECT_THAT(error_of([] { Group::from_environment({.timeout_ms = -1}); }).what(),
              HasSubstr("timeout_ms is -1"));
}

TEST(EnvironmentTest, OneRankOverSharedMemoryNeedsNoStore) {
  run_processes(1, [](const Group&) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Group group = Group::from_environment({.engine = "shm"});
      EXPECT_EQ(group.size(), 1);
      EXPECT_STREQ(group.engine_name(), "shm");
      const auto window = group.engine().windows().make_window(4096);
      EXPECT_EQ(window->base(0)[0], std::byte{0});
      group.barrier();
    }
  });
}

TEST(EnvironmentTest, ProcessesMeetByTheirJobAgainAndAgain) {
  run_processes(3, [](const Group& outer) {
    set_torchrun_variables(outer.rank(), 3, "again");
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Group group = Group::from_environment();
      EXPECT_EQ(group.rank(), outer.rank());
      EXPECT_EQ(group.size(), 3);
      EXPECT_STREQ(group.engine_name(), "shm");
      group.barrier();
    }
  });
}

TEST(EnvironmentTest, ProcessesMeetOverTcp) {
  run_processes(3, [](const Group& outer) {
    set_torchrun_variables(outer.rank(), 3, "tcp");
    const std::string port = std::to_string(20'000 + getppid() % 20'000);
    set_variable("SWITCHYARD_STORE", "tcp://127.0.0.1:" + port);
    EXPECT_THAT(error_of([] { Group::from_environment(); }).what(), HasSubstr("needs a secret"));
    set_variable("SWITCHYARD_SECRET", "sesame");
    Group::from_environment().barrier();
    outer.barrier();
  });
}

// A rank that runs ahead finds the server of rank 0's previous group still at the address.
TEST(EnvironmentTest, GroupsFollowEachOtherOverOneAddress) {
  for (const char* kind : {"unix", "tcp"}) {
    run_processes(3, [&](const Group& outer) {
      set_torchrun_variables(outer.rank(), 3, "follow");
      if (kind == std::string("tcp")) {
        const std::string port = std::to_string(20'000 + (getppid() + 1) % 20'000);
        set_variable("SWITCHYARD_STORE", "tcp://127.0.0.1:" + port);
        set_variable("SWITCHYARD_SECRET", "sesame");
      }
      for (int repeat = 0; repeat < 5; ++repeat) {
        Group group = Group::from_environment();
        group.barrier();
        if (outer.rank() == 0) usleep(50'000);
        group = Group();
        if (outer.rank() == 0) usleep(50'000);
      }
      outer.barrier();
    });
  }
}

TEST(EnvironmentTest, FailedGroupTakesItsServerAlongButNotThatOfOthers) {
  run_processes(2, [](const Group& outer) {
    set_torchrun_variables(outer.rank(), 2, "failed");
    if (outer.rank() == 0) {
      EXPECT_EQ(error_of([] { Group::from_environment({.timeout_ms = 100}); }).code(),
                Errc::kTimeout);
    }
    outer.barrier();
    const Group first = Group::from_environment();
    if (outer.rank() == 0) {
      EXPECT_EQ(error_of([] { Group::from_environment({.timeout_ms = 100}); }).code(),
                Errc::kTimeout);
    }
    outer.barrier();
    (void)first.control().all_gather_text({Phase::kSetup, "test"}, "still served");
    Group::from_environment().barrier();  // nothing of the failed group is left
  });
}

TEST(EnvironmentTest, DestroyedGroupLeavesNothing) {
  run_processes(3, [](const Group& outer) {
    set_torchrun_variables(outer.rank(), 3, "leak");
    Group::from_environment().barrier();  // rank 0 keeps its store's server
    outer.barrier();
    usleep(100'000);  // the server closes connections that its clients closed
    const int files_before = num_open_files();
    outer.barrier();  // nobody may reconnect before all have counted
    {
      const Group group = Group::from_environment();
      const auto window = group.engine().windows().make_window(8192);
      EXPECT_GT(num_open_files(), files_before);
      EXPECT_THAT(read_file("/proc/self/maps"), HasSubstr("switchyard window"));
      group.barrier();
    }
    EXPECT_THAT(read_file("/proc/self/maps"), Not(HasSubstr("switchyard window")));
    outer.barrier();
    const Deadline end = Deadline::after_ms(5000);
    while (num_open_files() != files_before && !end.expired()) usleep(1000);
    EXPECT_EQ(num_open_files(), files_before);
    outer.barrier();
  });
}

TEST(EnvironmentTest, SizesThatDisagreeAreNamed) {
  run_processes(2, [](const Group& outer) {
    set_torchrun_variables(outer.rank(), outer.rank() == 0 ? 2 : 3, "sizes");
    const Error error = error_of([] { Group::from_environment({.timeout_ms = 1500}); });
    // Rank 1 waits for a rank 2 that nobody starts, or sees rank 0 leave.
    EXPECT_TRUE(error.code() == Errc::kInvalidArgument || error.code() == Errc::kTimeout ||
                error.code() == Errc::kPeerLost);
    if (outer.rank() == 0) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 says that there are 2 ranks, but rank 1 says 3"));
    }
  });
}

TEST(EnvironmentTest, LocalEngineRefusesOtherProcesses) {
  run_processes(1, [](const Group&) {
    set_torchrun_variables(0, 2, "local");
    EXPECT_THAT(error_of([] { Group::from_environment({.engine = "local"}); }).what(),
                HasSubstr("torchrun started 2; use engine \"shm\""));
  });
}

TEST(EnvironmentTest, RankThatNeverComesIsNamed) {
  run_processes(1, [](const Group&) {
    set_torchrun_variables(1, 2, "alone");
    expect_error(Errc::kTimeout, "no sign of rank 0",
                 [] { Group::from_environment({.timeout_ms = 200}); });
    set_torchrun_variables(0, 2, "alone");
    expect_error(Errc::kTimeout, "no sign of rank 1 within 0.2 s (rank 0 of 2)",
                 [] { Group::from_environment({.timeout_ms = 200}); });
  });
}

TEST(EnvironmentTest, ControlDescriptorThatIsNoneIsAnError) {
  run_processes(1, [](const Group& outer) {
    set_torchrun_variables(0, 2, "fd");
    set_variable("SWITCHYARD_STORE", "unix:@switchyard-nobody");
    for (const char* fd : {"777", "0", "x"}) {
      set_variable("SWITCHYARD_CONTROL_FD", fd);
      const Error error = error_of([] { Group::from_environment({.timeout_ms = 100}); });
      EXPECT_NE(error.code(), Errc::kInternal) << fd;
    }
    outer.barrier();
  });
}

std::vector<Introduction> introductions(int num_ranks) {
  std::vector<Introduction> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(Introduction::of_this_process(num_ranks, "socket"));
  }
  return ranks;
}

TEST(IntroductionTest, SurvivesTheStore) {
  const Introduction own = Introduction::of_this_process(5, "0001f");
  const Introduction read = Introduction::parse(own.text());
  EXPECT_EQ(read.text(), own.text());
  EXPECT_EQ(read.size, 5);
  EXPECT_EQ(read.socket, "0001f");
  EXPECT_EQ(error_of([] { Introduction::parse("nonsense"); }).code(), Errc::kSystem);
}

// Where two containers have one network namespace and names of their own.
TEST(IntroductionTest, LoopbackIsThatOfTheKernelAndTheNetworkNamespace) {
  auto ranks = introductions(2);
  ranks[1].host = "another";
  EXPECT_TRUE(ranks[1].has_loopback_of(ranks[0]));
  EXPECT_NE(ranks[1].machine(), ranks[0].machine());
  ranks[1].network = "net:[1]";
  EXPECT_FALSE(ranks[1].has_loopback_of(ranks[0]));
  ranks = introductions(2);
  ranks[1].boot_id = "other";
  EXPECT_FALSE(ranks[1].has_loopback_of(ranks[0]));
  for (Introduction& rank : ranks) rank.boot_id = rank.network = "";  // no /proc
  EXPECT_TRUE(ranks[1].has_loopback_of(ranks[0]));
  ranks[1].host = "another";
  EXPECT_FALSE(ranks[1].has_loopback_of(ranks[0]));
}

TEST(IntroductionTest, RanksOfOtherHostsVersionsAndSizesAreNamed) {
  require_one_job(introductions(3));
  auto ranks = introductions(3);
  require_one_host(ranks);
  ranks[2].boot_id = "other";
  ranks[2].host = "far";
  expect_error(Errc::kNotSupported, "but rank 2 on host far", [&] { require_one_host(ranks); });
  ranks = introductions(3);
  ranks[1].host_setting = "b";
  expect_error(Errc::kNotSupported, "but rank 1 on host b", [&] { require_one_host(ranks); });
  ranks = introductions(3);
  EXPECT_THAT(ranks[1].network, HasSubstr("net:["));
  ranks[1].network = "net:[1]";
  EXPECT_EQ(hosts_of(ranks), (std::vector{0, 1, 0}));
  expect_error(Errc::kNotSupported, "ranks 0 and 1 of host " + ranks[0].host + " are in different",
               [&] { require_one_host(ranks); });
  ranks = introductions(3);
  ranks[1].version = "9.9.9";
  EXPECT_THAT(error_of([&] { require_one_job(ranks); }).what(), HasSubstr("rank 1 has 9.9.9"));
  ranks = introductions(3);
  ranks[1].size = 4;
  EXPECT_THAT(error_of([&] { require_one_job(ranks); }).what(), HasSubstr("rank 1 says 4"));
}

// By name and running kernel, unless the setting says otherwise.
TEST(IntroductionTest, HostsAreNumberedAsTheyCome) {
  EXPECT_THAT(hosts_of(introductions(3)), ::testing::ElementsAre(0, 0, 0));
  auto ranks = introductions(6);
  ranks[1].boot_id = "other";
  ranks[2].host = "container";
  ranks[3].boot_id = "other";
  ranks[4].host_setting = "rack-1";
  ranks[5].host_setting = "rack-1";
  ranks[5].boot_id = "third";
  EXPECT_THAT(hosts_of(ranks), ::testing::ElementsAre(0, 1, 2, 1, 3, 3));
}

TEST(RegistryTest, ListsItsEngines) {
  std::vector<std::string> names;
  for (const EngineInfo& engine : all_engines()) names.emplace_back(engine.name);
  EXPECT_THAT(names, ::testing::ElementsAre("local", "shm", "mpi"));
}

}  // namespace
}  // namespace switchyard
