// SPDX-License-Identifier: Apache-2.0
//
// engine_suite.h: what every engine does for its ranks. `Ranks` says how a test starts them:
//   kName, kTimeoutMs   of the group
//   kRounds             barriers of a test: as many as the engine does in a moment
//   run(n, body)        runs `body` on each of n ranks and fails where one of them does
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "engine/engine.h"
#include "support/errors.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard::test {

inline constexpr std::array<int, 5> kRankCounts{1, 2, 3, 4, 7};

template <typename Ranks>
class ControlSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(ControlSuite);

TYPED_TEST_P(ControlSuite, KnowsRankSizeAndName) {
  const Shared<std::atomic<int>> sum;
  TypeParam::run(3, [&](const Group& group) {
    EXPECT_EQ(group.size(), 3);
    EXPECT_STREQ(group.engine_name(), TypeParam::kName);
    EXPECT_EQ(group.timeout_ms(), TypeParam::kTimeoutMs);
    *sum += 1 << (4 * group.rank());
  });
  EXPECT_EQ(*sum, 0x111);
}

TYPED_TEST_P(ControlSuite, AllGatherTextReturnsByRank) {
  for (const int size : kRankCounts) {
    TypeParam::run(size, [&](const Group& group) {
      for (int round = 0; round < 5; ++round) {
        const auto texts = group.control().all_gather_text(
            {Phase::kSetup, "test"}, std::to_string(group.rank() * 100 + round));
        ASSERT_EQ(texts.size(), static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(texts[static_cast<std::size_t>(rank)], std::to_string(rank * 100 + round));
        }
      }
    });
  }
}

TYPED_TEST_P(ControlSuite, BarrierSeparatesRounds) {
  for (const int size : kRankCounts) {
    const Shared<std::atomic<int>> arrived;
    TypeParam::run(size, [&](const Group& group) {
      for (int round = 1; round <= TypeParam::kRounds; ++round) {
        arrived->fetch_add(1, std::memory_order_relaxed);
        group.barrier();
        ASSERT_EQ(arrived->load(std::memory_order_relaxed), round * size);
        group.barrier();
      }
    });
  }
}

REGISTER_TYPED_TEST_SUITE_P(ControlSuite, KnowsRankSizeAndName, AllGatherTextReturnsByRank,
                            BarrierSeparatesRounds);

template <typename Ranks>
class WindowSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(WindowSuite);

TYPED_TEST_P(WindowSuite, IsZeroAndVisibleToAll) {
  for (const int size : kRankCounts) {
    TypeParam::run(size, [&](const Group& group) {
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

TYPED_TEST_P(WindowSuite, ManyOfOddSizes) {
  TypeParam::run(3, [](const Group& group) {
    std::vector<std::unique_ptr<Window>> windows;
    for (const std::size_t bytes : {0u, 1u, 63u, 4097u, 3u << 20}) {
      windows.push_back(group.engine().windows().make_window(bytes));
      EXPECT_EQ(windows.back()->size_bytes(), bytes);
    }
  });
}

TYPED_TEST_P(WindowSuite, OutlivesTheRankThatMadeIt) {
  TypeParam::run(2, [](const Group& group) {
    const auto window = group.engine().windows().make_window(64);
    window->base(group.rank())[0] = std::byte{7};
    group.barrier();
    if (group.rank() == 1) {
      EXPECT_EQ(window->base(0)[0], std::byte{7});  // rank 0 may have left already
    }
  });
}

TYPED_TEST_P(WindowSuite, UnequalSizesAreNamed) {
  TypeParam::run(3, [](const Group& group) {
    expect_invalid("rank 2 asks for 128 bytes, but rank 0 for 64", [&] {
      (void)group.engine().windows().make_window(group.rank() == 2 ? 128 : 64);
    });
    (void)group.engine().windows().make_window(64);  // the group still works
  });
}

TYPED_TEST_P(WindowSuite, PingPongMissesNoBell) {
  constexpr int kRounds = 100'000;
  const Shared<std::atomic<int>> ball;
  TypeParam::run(2, [&](const Group& group) {
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

REGISTER_TYPED_TEST_SUITE_P(WindowSuite, IsZeroAndVisibleToAll, ManyOfOddSizes,
                            OutlivesTheRankThatMadeIt, UnequalSizesAreNamed, PingPongMissesNoBell);

}  // namespace switchyard::test
