// SPDX-License-Identifier: Apache-2.0
//
// Engine "shm" in real processes, without failures.

#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "support/engine_suite.h"
#include "support/observe.h"
#include "support/processes.h"
#include "transport/shared_memory.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

struct ShmRanks {
  static constexpr const char* kName = "shm";
  static constexpr std::int64_t kTimeoutMs = kProcessTimeoutMs;
  static constexpr int kRounds = 1000;
  static void run(int num_ranks, const std::function<void(const Group&)>& body) {
    run_processes(num_ranks, body);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, ControlSuite, ShmRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, WindowSuite, ShmRanks);

TEST(ShmEngineTest, WindowBeyondMemoryIsRefusedWithNumbers) {
  run_processes(2, [](const Group& group) {
    expect_error(Errc::kOutOfMemory, "1099511627776 bytes on each of 2 ranks needs 2097152.0 MiB",
                 [&] { (void)group.engine().windows().make_window(std::size_t{1} << 40); });
    group.barrier();
  });
}

TEST(ShmEngineTest, DescriptorsReachEveryRank) {
  for (const int size : kRankCounts) {
    run_processes(size, [&](const Group& group) {
      ASSERT_TRUE(group.engine().windows().can_swap_descriptors());
      for (int round = 0; round < 3; ++round) {
        const std::size_t bytes = 4096;
        const Fd own = make_shared_memory("switchyard test", bytes);
        const Mapping mine(own, bytes);
        mine.data()[0] = static_cast<std::byte>(10 * round + group.rank());
        const std::vector<Fd> all = group.engine().windows().swap_descriptors(own, bytes);
        ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
        for (int peer = 0; peer < size; ++peer) {
          const Fd& theirs = all[static_cast<std::size_t>(peer)];
          EXPECT_EQ(theirs.has_value(), peer != group.rank());
          if (!theirs.has_value()) continue;
          EXPECT_EQ(Mapping(theirs, bytes).data()[0], static_cast<std::byte>(10 * round + peer));
        }
        group.barrier();
      }
    });
  }
}

TEST(ShmEngineTest, DestroyedGroupLeavesNoDescriptorAndNoMapping) {
  run_processes(3, [](const Group& outer) {
    outer.barrier();
    const int files_before = num_open_files();
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto window = outer.engine().windows().make_window(8192);
      EXPECT_EQ(num_open_files(), files_before);
      EXPECT_THAT(read_file("/proc/self/maps"), HasSubstr("switchyard window"));
    }
    EXPECT_THAT(read_file("/proc/self/maps"), ::testing::Not(HasSubstr("switchyard window")));
    outer.barrier();
  });
}

TEST(ShmEngineTest, NothingIsLeftBehind) {
  const std::string sockets_before = read_file("/proc/net/unix");
  run_processes(4, [](const Group& group) { (void)group.engine().windows().make_window(1 << 20); });
  EXPECT_THAT(read_file("/proc/net/unix"),
              ::testing::Not(HasSubstr("@switchyard-test-" + std::to_string(getpid()))));
  const int files = num_open_files();
  run_processes(2, [](const Group& group) { group.barrier(); });
  EXPECT_EQ(num_open_files(), files);
}

}  // namespace
}  // namespace switchyard
