// SPDX-License-Identifier: Apache-2.0

#include "engine/local_engine.h"

#include <fstream>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>

#include "support/engine_suite.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

struct LocalRanks {
  static constexpr const char* kName = "local";
  static constexpr std::int64_t kTimeoutMs = kRanksTimeoutMs;
  static constexpr int kRounds = 2000;
  static void run(int num_ranks, const std::function<void(const Group&)>& body) {
    run_ranks(num_ranks, body);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Local, ControlSuite, LocalRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Local, WindowSuite, LocalRanks);

TEST(LocalEngineTest, ThreadsHaveNoSocketsForDescriptors) {
  run_ranks(2, [](const Group& group) {
    EXPECT_FALSE(group.engine().windows().can_swap_descriptors());
    expect_error(Errc::kNotSupported, "engine \"local\" has no sockets",
                 [&] { (void)group.engine().windows().swap_descriptors(Fd(), 64); });
  });
}

TEST(LocalEngineTest, WindowThatDoesNotFitFailsOnAllRanks) {
  expect_error(Errc::kOutOfMemory, "rank 0 of 2", [] {
    run_ranks(2, [](const Group& group) {
      const Error own =
          error_of([&] { (void)group.engine().windows().make_window(std::size_t{1} << 60); });
      EXPECT_EQ(own.code(), Errc::kOutOfMemory);
      throw own;
    });
  });
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
      expect_error(Errc::kOutOfMemory, "rank 1 of 2",
                   [&] { (void)group.engine().windows().make_window(bytes); });
    }
    group.barrier();
    EXPECT_LT(num_mapped_bytes(), before + kBytes);
  });
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
