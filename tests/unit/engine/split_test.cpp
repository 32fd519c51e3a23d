// SPDX-License-Identifier: Apache-2.0
//
// Subgroups of threads, and the query for errors.

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array<int, 4> kSizes{1, 2, 3, 7};

// Of all threads, without the group, which is about to end.
void meet(std::atomic<int>& num_here, int num_ranks) {
  ++num_here;
  const Deadline end = Deadline::after_ms(20'000);
  while (num_here < num_ranks && !end.expired()) std::this_thread::yield();
  ASSERT_GE(num_here, num_ranks);
}

// Ranks of `group` in the order of `part`.
std::vector<int> members(const Group& group, const Group& part) {
  std::vector<int> ranks;
  for (const auto& text :
       part.control().all_gather_text({Phase::kSetup, "test"}, std::to_string(group.rank()))) {
    ranks.push_back(std::stoi(text));
  }
  return ranks;
}

// Colors 0 1 0 1 0; key is 3 - rank, so the order turns round.
TEST(SplitTest, RanksAreOrderedByKeyThenRank) {
  run_ranks(5, [](const Group& group) {
    const Group part = group.split(group.rank() % 2, 3 - group.rank());
    const std::vector<int> wanted =
        group.rank() % 2 == 0 ? std::vector{4, 2, 0} : std::vector{3, 1};
    EXPECT_EQ(members(group, part), wanted);
    EXPECT_STREQ(part.engine_name(), "local");
    EXPECT_EQ(part.timeout_ms(), group.timeout_ms());
    EXPECT_EQ(part.host_rank(), part.rank());
    EXPECT_EQ(part.host_size(), part.size());
    const Group same_key = group.split(7, 0);
    EXPECT_THAT(members(group, same_key), ElementsAre(0, 1, 2, 3, 4));
  });
}

TEST(SplitTest, OneColorIsTheWholeGroupAndEachItsOwnIsOneRank) {
  for (const int size : kSizes) {
    run_ranks(size, [&](const Group& group) {
      const Group whole = group.split(3);
      EXPECT_EQ(whole.rank(), group.rank());
      EXPECT_EQ(whole.size(), size);
      const Group alone = group.split(group.rank());
      EXPECT_EQ(alone.rank(), 0);
      EXPECT_EQ(alone.size(), 1);
      alone.barrier();
      whole.barrier();
    });
  }
}

TEST(SplitTest, NegativeColorGetsAnEmptyGroup) {
  run_ranks(3, [](const Group& group) {
    const Group part = group.split(group.rank() == 1 ? -1 : 0);
    EXPECT_EQ(part.is_empty(), group.rank() == 1);
    EXPECT_EQ(part.is_empty() ? 2 : part.size(), 2);
    EXPECT_TRUE(group.split(-5).is_empty());  // nobody has one
    EXPECT_FALSE(group.is_empty());
  });
}

// Expert parallelism within pairs, beside the world: 7 ranks are 3 pairs and one alone.
TEST(SplitTest, GroupsSideBySideHaveTheirOwnWindows) {
  run_ranks(7, [](const Group& group) {
    const Group pair = group.split(group.rank() / 2);
    const Group parity = group.split(group.rank() % 2);
    const auto of_pair = pair.engine().windows().make_window(64);
    const auto of_parity = parity.engine().windows().make_window(128);
    const auto of_all = group.engine().windows().make_window(64);
    of_pair->base(0)[8 + pair.rank()] = std::byte{1};
    of_parity->base(0)[8 + parity.rank()] = std::byte{2};
    group.barrier();
    for (int rank = 0; rank < pair.size(); ++rank) {
      EXPECT_EQ(of_pair->base(0)[8 + rank], std::byte{1});
    }
    for (int rank = 0; rank < parity.size(); ++rank) {
      EXPECT_EQ(of_parity->base(0)[8 + rank], std::byte{2});
    }
    EXPECT_EQ(of_all->base(0)[8], std::byte{0});
    group.barrier();
  });
}

TEST(SplitTest, SubgroupsCanBeSplitAndOutliveTheirParent) {
  run_ranks(7, [](const Group& group) {
    Group half = group.split(group.rank() / 4);
    const Group quarter = half.split(half.rank() / 2);
    half = Group();
    for (int round = 0; round < 100; ++round) quarter.barrier();
    EXPECT_EQ(quarter.size(), group.rank() == 6 ? 1 : 2);
  });
}

TEST(SplitTest, AbortOfASubgroupIsItsOwn) {
  run_ranks(4, [](const Group& group) {
    const Group pair = group.split(group.rank() / 2);
    if (group.rank() == 3) pair.abort("only here");
    if (group.rank() >= 2) {
      EXPECT_THAT(error_of([&] {
                    for (;;) pair.barrier();
                  }).what(),
                  HasSubstr("aborted by rank 1: only here"));
      EXPECT_THAT(pair.error()->what(), HasSubstr("only here (rank"));
    } else {
      for (int round = 0; round < 100; ++round) pair.barrier();
      EXPECT_EQ(pair.error(), std::nullopt);
    }
    group.barrier();
    EXPECT_EQ(group.error(), std::nullopt);
  });
}

TEST(SplitTest, WhatEndsTheParentEndsItsSubgroups) {
  std::atomic<int> num_ready = 0;
  std::atomic<int> num_told = 0;
  run_ranks(5, [&](const Group& group) {
    const Group pair = group.split(group.rank() / 2);
    const Group alone = pair.split(pair.rank());
    meet(num_ready, 5);
    if (group.rank() == 4) group.abort("all of you");
    const Error error = error_of([&] { alone.control().wait({}, [] { return false; }); });
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_THAT(
        error.what(),
        HasSubstr(group.rank() == 4 ? "the group was aborted by rank 0: all of you"
                                    : "aborted: rank 4 of the parent group says: all of you"));
    EXPECT_EQ(pair.error()->code(), Errc::kAborted);
    meet(num_told, 5);
  });
}

TEST(GroupErrorTest, SaysWhyTheGroupEndedWithoutWaiting) {
  std::atomic<int> num_ready = 0;
  std::atomic<int> num_told = 0;
  run_ranks(3, [&](const Group& group) {
    EXPECT_EQ(group.error(), std::nullopt);
    meet(num_ready, 3);
    if (group.rank() == 2) group.abort("enough");
    while (!group.error()) std::this_thread::yield();
    EXPECT_STREQ(group.error()->what(), ("group: the group was aborted by rank 2: enough (rank " +
                                         std::to_string(group.rank()) + " of 3)")
                                            .c_str());
    meet(num_told, 3);
  });
}

TEST(GroupErrorTest, NamesTheRankThatDidNotAnswer) {
  std::atomic<bool> is_over = false;
  run_ranks(
      2,
      [&](const Group& group) {
        if (group.rank() == 0) {
          EXPECT_EQ(error_of([&] { group.barrier(); }).code(), Errc::kTimeout);
          is_over = true;
          return;
        }
        while (!is_over) std::this_thread::yield();
        EXPECT_EQ(group.error()->code(), Errc::kTimeout);
        EXPECT_THAT(group.error()->what(), HasSubstr("rank 0 had no answer from rank 1 within"));
      },
      200);
}

}  // namespace
}  // namespace switchyard
