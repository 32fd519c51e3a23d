// SPDX-License-Identifier: Apache-2.0
//
// Engine "shm" in real processes, without failures.

#include <unistd.h>

#include <array>
#include <atomic>
#include <dirent.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/clock.h"
#include "engine/engine.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "transport/shared_memory.h"

namespace switchyard {
namespace {

using test::error_of;
using test::run_processes;
using ::testing::HasSubstr;

constexpr std::array<int, 4> kSizes{1, 2, 3, 7};

int num_open_files() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ShmEngineTest, KnowsRankSizeAndName) {
  test::Shared<std::atomic<int>> sum;
  run_processes(3, [&](const Group& group) {
    EXPECT_EQ(group.size(), 3);
    EXPECT_STREQ(group.engine_name(), "shm");
    EXPECT_EQ(group.timeout_ms(), 20'000);
    *sum += 1 << (4 * group.rank());
  });
  EXPECT_EQ(*sum, 0x111);
}

TEST(ShmEngineTest, WindowIsZeroAndVisibleToAll) {
  for (const int size : kSizes) {
    run_processes(size, [&](const Group& group) {
      const auto window = group.engine().windows().make_window(4096 + 64);
      ASSERT_EQ(window->size_bytes(), 4160u);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(window->base(rank)[100 + group.rank()], std::byte{0});
      }
      group.barrier();
      // Each rank writes its own byte into every rank's region.
      for (int rank = 0; rank < size; ++rank) {
        window->base(rank)[100 + group.rank()] = static_cast<std::byte>(10 * rank + group.rank());
      }
      group.barrier();
      for (int writer = 0; writer < size; ++writer) {
        EXPECT_EQ(window->base(group.rank())[100 + writer],
                  static_cast<std::byte>(10 * group.rank() + writer));
      }
    });
  }
}

TEST(ShmEngineTest, ManyWindowsOfOddSizes) {
  run_processes(3, [](const Group& group) {
    std::vector<std::unique_ptr<Window>> windows;
    for (const std::size_t bytes : {0u, 1u, 63u, 4097u, 3u << 20}) {
      windows.push_back(group.engine().windows().make_window(bytes));
      EXPECT_EQ(windows.back()->size_bytes(), bytes);
    }
  });
}

TEST(ShmEngineTest, WindowOutlivesItsGroup) {
  run_processes(2, [](const Group& group) {
    const auto window = group.engine().windows().make_window(64);
    window->base(group.rank())[0] = std::byte{7};
    group.barrier();
    if (group.rank() == 1) {
      EXPECT_EQ(window->base(0)[0], std::byte{7});  // rank 0 may have exited already
    }
  });
}

TEST(ShmEngineTest, UnequalWindowSizesAreNamed) {
  run_processes(3, [](const Group& group) {
    const Error error =
        error_of([&] { (void)group.engine().windows().make_window(group.rank() == 2 ? 128 : 64); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("rank 2 asks for 128 bytes, but rank 0 for 64"));
    (void)group.engine().windows().make_window(64);  // the group still works
  });
}

TEST(ShmEngineTest, WindowBeyondMemoryIsRefusedWithNumbers) {
  run_processes(2, [](const Group& group) {
    const Error error =
        error_of([&] { (void)group.engine().windows().make_window(std::size_t{1} << 40); });
    EXPECT_EQ(error.code(), Errc::kOutOfMemory);
    EXPECT_THAT(error.what(),
                HasSubstr("1099511627776 bytes on each of 2 ranks needs 2097152.0 MiB"));
    group.barrier();
  });
}

TEST(ShmEngineTest, DescriptorsReachEveryRank) {
  for (const int size : kSizes) {
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

TEST(ShmEngineTest, AllGatherTextReturnsByRank) {
  for (const int size : kSizes) {
    run_processes(size, [&](const Group& group) {
      for (int round = 0; round < 5; ++round) {
        const auto texts =
            group.control().all_gather_text(std::to_string(group.rank() * 100 + round));
        ASSERT_EQ(texts.size(), static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(texts[static_cast<std::size_t>(rank)], std::to_string(rank * 100 + round));
        }
      }
    });
  }
}

TEST(ShmEngineTest, BarrierSeparatesRounds) {
  for (const int size : kSizes) {
    test::Shared<std::atomic<int>> arrived;
    run_processes(size, [&](const Group& group) {
      for (int round = 1; round <= 1000; ++round) {
        arrived->fetch_add(1, std::memory_order_relaxed);
        group.barrier();
        ASSERT_EQ(arrived->load(std::memory_order_relaxed), round * size);
        group.barrier();
      }
    });
  }
}

TEST(ShmEngineTest, PingPongMissesNoBell) {
  constexpr int kRounds = 100'000;
  test::Shared<std::atomic<int>> ball;
  run_processes(2, [&](const Group& group) {
    Control& control = group.control();
    const int peer = 1 - group.rank();
    for (int round = group.rank(); round < kRounds; round += 2) {
      control.wait({Phase::kDispatchReceive, static_cast<std::uint64_t>(round), peer},
                   [&] { return ball->load(std::memory_order_acquire) == round; });
      ball->store(round + 1, std::memory_order_release);
      group.engine().windows().notify(peer);
    }
  });
  EXPECT_EQ(*ball, kRounds);
}

TEST(ShmEngineTest, DestroyedGroupLeavesNoDescriptorAndNoMapping) {
  run_processes(3, [](const Group& outer) {
    outer.barrier();
    const int files_before = num_open_files();
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto window = outer.engine().windows().make_window(8192);
      EXPECT_EQ(num_open_files(), files_before);
      EXPECT_THAT(text_of("/proc/self/maps"), HasSubstr("switchyard window"));
    }
    EXPECT_THAT(text_of("/proc/self/maps"), ::testing::Not(HasSubstr("switchyard window")));
    outer.barrier();
  });
}

TEST(ShmEngineTest, NothingIsLeftBehind) {
  const std::string sockets_before = text_of("/proc/net/unix");
  run_processes(4, [](const Group& group) { (void)group.engine().windows().make_window(1 << 20); });
  EXPECT_THAT(text_of("/proc/net/unix"),
              ::testing::Not(HasSubstr("@switchyard-test-" + std::to_string(getpid()))));
  const int files = num_open_files();
  run_processes(2, [](const Group& group) { group.barrier(); });
  EXPECT_EQ(num_open_files(), files);
}

}  // namespace
}  // namespace switchyard
