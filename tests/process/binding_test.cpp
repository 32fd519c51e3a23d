// SPDX-License-Identifier: Apache-2.0
//
// Ranks that the launcher starts run on the cores of one NUMA node each. hwloc is told that each
// processor of this machine is a node of its own, so that one node is enough for the test.

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/settings.h"
#include "core/topology.h"
#include "support/errors.h"
#include "support/observe.h"
#include "transport/launcher.h"
#include "transport/socket.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

// All that the ranks print, with the prefix of each.
std::string output_of(int num_ranks, const std::string& task) {
  const Fd file(memfd_create("capture", MFD_CLOEXEC));
  LaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = {SWITCHYARD_RANK_PROGRAM, task};
  options.prefix_all = true;
  options.error_fd = file.get();
  EXPECT_EQ(launch(options).exit_code, 0);
  std::ifstream text("/proc/self/fd/" + std::to_string(file.get()));
  return {std::istreambuf_iterator<char>(text), {}};
}

class BindingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SWITCHYARD_HAS_HWLOC) GTEST_SKIP() << "this build has no hwloc";
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    if (!CPU_ISSET(0, &set) || !CPU_ISSET(1, &set)) {
      GTEST_SKIP() << "this process may not run on processors 0 and 1";
    }
    setenv("HWLOC_SYNTHETIC", "numa:2 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
  }
  void TearDown() override {
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
    set_setting("SWITCHYARD_BIND", "numa");
  }
};

TEST_F(BindingTest, NodesHaveTheCoresOfThisProcess) {
  const std::vector<NumaNode> nodes = numa_nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].cores, std::vector<int>{0});
  EXPECT_EQ(nodes[1].cores, std::vector<int>{1});
}

TEST_F(BindingTest, EachRankRunsOnTheCoresOfItsNode) {
  const std::string text = output_of(3, "cores");
  EXPECT_THAT(text, HasSubstr("[rank 0] cores 0\n"));
  EXPECT_THAT(text, HasSubstr("[rank 1] cores 0\n"));
  EXPECT_THAT(text, HasSubstr("[rank 2] cores 1\n"));
}

TEST_F(BindingTest, TheLauncherStaysWhereItWas) {
  cpu_set_t before;
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  (void)output_of(2, "cores");
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST_F(BindingTest, ASettingSwitchesItOff) {
  set_setting("SWITCHYARD_BIND", "none");
  const std::string text = output_of(2, "cores");
  EXPECT_THAT(text, HasSubstr("[rank 0] cores 0 1"));
  EXPECT_THAT(text, HasSubstr("[rank 1] cores 0 1"));
  set_setting("SWITCHYARD_BIND", "socket");
  expect_invalid("setting SWITCHYARD_BIND is \"socket\", must be numa or none",
                 [] { (void)output_of(2, "cores"); });
}

// Node 0 exists on this machine, node 1 need not: the kernel refuses it, and the window is made.
TEST_F(BindingTest, WindowsPreferTheNodeOfTheirRank) {
  const std::string text = output_of(2, "window_policy");
  if (text.find("refused") != text.npos) GTEST_SKIP() << "the kernel does not tell its policies";
  EXPECT_EQ(text.find("[rank 0] policy 0\n"), text.npos) << text;
  EXPECT_THAT(text, HasSubstr("[rank 0] policy "));
  set_setting("SWITCHYARD_BIND", "none");
  EXPECT_THAT(output_of(2, "window_policy"), HasSubstr("[rank 0] policy 0\n"));
}

TEST(NodeOfRankTest, NodesGetEquallyManyConsecutiveRanks) {
  const auto nodes_of = [](int num_ranks, std::size_t num_nodes) {
    std::vector<std::size_t> nodes;
    for (int r = 0; r < num_ranks; ++r) nodes.push_back(node_of_rank(r, num_ranks, num_nodes));
    return nodes;
  };
  EXPECT_THAT(nodes_of(1, 2), ::testing::ElementsAre(0));
  EXPECT_THAT(nodes_of(2, 4), ::testing::ElementsAre(0, 2));
  EXPECT_THAT(nodes_of(5, 2), ::testing::ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(nodes_of(8, 2), ::testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

}  // namespace
}  // namespace switchyard
