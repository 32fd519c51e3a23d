// SPDX-License-Identifier: Apache-2.0

#include "engine/local_engine.h"

#include <array>
#include <atomic>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using test::run_ranks;
using ::testing::HasSubstr;

constexpr std::array<int, 5> kSizes{1, 2, 3, 4, 7};

TEST(LocalEngineTest, KnowsRankSizeAndName) {
  std::atomic<int> sum = 0;
  run_ranks(4, [&](const Group& group) {
    EXPECT_EQ(group.size(), 4);
    EXPECT_STREQ(group.engine_name(), "local");
    EXPECT_EQ(group.timeout_ms(), test::kRanksTimeoutMs);
    sum += 1 << (4 * group.rank());
  });
  EXPECT_EQ(sum, 0x1111);
}

TEST(LocalEngineTest, WindowIsZeroAndVisibleToAll) {
  for (const int size : kSizes) {
    run_ranks(size, [&](const Group& group) {
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

TEST(LocalEngineTest, ThreadsHaveNoSocketsForDescriptors) {
  run_ranks(2, [](const Group& group) {
    EXPECT_FALSE(group.engine().windows().can_swap_descriptors());
    const Error error =
        error_of([&] { (void)group.engine().windows().swap_descriptors(Fd(), 64); });
    EXPECT_EQ(error.code(), Errc::kNotSupported);
    EXPECT_THAT(error.what(), HasSubstr("engine \"local\" has no sockets"));
  });
}

TEST(LocalEngineTest, ManyWindowsOfOddSizes) {
  run_ranks(3, [](const Group& group) {
    std::vector<std::unique_ptr<Window>> windows;
    for (const std::size_t bytes : {0u, 1u, 63u, 4097u, 3u << 20}) {
      windows.push_back(group.engine().windows().make_window(bytes));
      EXPECT_EQ(windows.back()->size_bytes(), bytes);
    }
  });
}

TEST(LocalEngineTest, WindowOutlivesTheRankThatMadeIt) {
  run_ranks(2, [](const Group& group) {
    const auto window = group.engine().windows().make_window(64);
    window->base(group.rank())[0] = std::byte{7};
    group.barrier();
    if (group.rank() == 1) {
      EXPECT_EQ(window->base(0)[0], std::byte{7});  // rank 0 may have left already
    }
  });
}

TEST(LocalEngineTest, UnequalWindowSizesAreNamed) {
  const Error error = error_of([] {
    run_ranks(3, [](const Group& group) {
      (void)group.engine().windows().make_window(group.rank() == 2 ? 128 : 64);
    });
  });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 asks for 128 bytes, but rank 0 for 64"));
}

TEST(LocalEngineTest, WindowThatDoesNotFitFailsOnAllRanks) {
  const Error error = error_of([] {
    run_ranks(2, [](const Group& group) {
      const Error own =
          error_of([&] { (void)group.engine().windows().make_window(std::size_t{1} << 60); });
      EXPECT_EQ(own.code(), Errc::kOutOfMemory);
      throw own;
    });
  });
  EXPECT_EQ(error.code(), Errc::kOutOfMemory);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 of 2"));
}

// Mapped bytes of this process, from /proc/self/statm.
std::size_t num_mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t num_pages = 0;
  file >> num_pages;
  return num_pages * 4096;
}

TEST(LocalEngineTest, WindowThatOneRankCannotGetKeepsNothingOfTheOthers) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  run_ranks(2, [](const Group& group) {
    group.barrier();
    const std::size_t before = num_mapped_bytes();
    for (int repeat = 0; repeat < 4; ++repeat) {
      const std::size_t bytes = group.rank() == 1 ? std::size_t{1} << 60 : kBytes;
      const Error error = error_of([&] { (void)group.engine().windows().make_window(bytes); });
      EXPECT_EQ(error.code(), Errc::kOutOfMemory);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2"));
    }
    group.barrier();
    EXPECT_LT(num_mapped_bytes(), before + kBytes);
  });
}

TEST(LocalEngineTest, AllGatherTextReturnsByRank) {
  for (const int size : kSizes) {
    run_ranks(size, [&](const Group& group) {
      for (int round = 0; round < 3; ++round) {
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

TEST(LocalEngineTest, BarrierSeparatesRounds) {
  for (const int size : kSizes) {
    std::atomic<int> arrived = 0;
    run_ranks(size, [&](const Group& group) {
      for (int round = 1; round <= 2000; ++round) {
        arrived.fetch_add(1, std::memory_order_relaxed);
        group.barrier();
        ASSERT_EQ(arrived.load(std::memory_order_relaxed), round * size);
        group.barrier();
      }
    });
  }
}

TEST(RunLocalRanksTest, FirstErrorIsThrownNotItsEchoes) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    try {
      run_ranks(4, [](const Group& group) {
        if (group.rank() == 2) throw std::out_of_range("rank 2 says no");
        group.barrier();
        group.barrier();
      });
      FAIL() << "no error";
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "rank 2 says no");
    }
  }
}

TEST(RunLocalRanksTest, EchoNamesTheRankThatFailed) {
  std::string seen;
  EXPECT_THROW(run_ranks(2,
                         [&](const Group& group) {
                           if (group.rank() == 1) throw std::runtime_error("bad luck");
                           const Error error = error_of([&] { group.barrier(); });
                           EXPECT_EQ(error.code(), Errc::kAborted);
                           seen = error.what();
                         }),
               std::runtime_error);
  EXPECT_THAT(seen, HasSubstr("barrier: the group was aborted by rank 1"));
  EXPECT_THAT(seen, HasSubstr("bad luck"));
}

TEST(RunLocalRanksTest, RefusesOtherEnginesAndSizes) {
  const auto nothing = [](const Group&) {};
  EXPECT_THAT(error_of([&] { run_local_ranks(2, nothing, {.engine = "shm"}); }).what(),
              HasSubstr("threads need \"local\""));
  EXPECT_THAT(error_of([&] { run_local_ranks(0, nothing); }).what(), HasSubstr("0 ranks"));
  EXPECT_THAT(error_of([&] { run_local_ranks(4097, nothing); }).what(), HasSubstr("1 to 4096"));
  EXPECT_THAT(error_of([&] { run_local_ranks(2, nullptr); }).what(), HasSubstr("body is empty"));
  EXPECT_THAT(error_of([&] { run_local_ranks(1, nothing, {.timeout_ms = -5}); }).what(),
              HasSubstr("timeout_ms is -5"));
}

TEST(GroupTest, ReasonOfAnAbortStaysOneLine) {
  run_local_ranks(1, [](const Group& group) {
    group.abort("first\nsecond");
    EXPECT_THAT(error_of([&] { group.barrier(); }).what(), HasSubstr("by rank 0: first?second"));
  });
}

TEST(GroupTest, EmptyGroupSaysSo) {
  EXPECT_THAT(error_of([] { (void)Group().rank(); }).what(), HasSubstr("group: it is empty"));
  EXPECT_THAT(error_of([] { Group().barrier(); }).what(), HasSubstr("group: it is empty"));
}

}  // namespace
}  // namespace switchyard
