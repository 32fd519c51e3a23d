// SPDX-License-Identifier: Apache-2.0

#include "transport/control_block.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "transport/futex.h"

namespace switchyard {
namespace {

struct alignas(128) Line {
  std::byte bytes[128];
};

struct Block {
  explicit Block(int num_ranks)
      : memory(ControlBlock::size_bytes(num_ranks) / sizeof(Line)),
        control(reinterpret_cast<std::byte*>(memory.data()), num_ranks) {}
  std::vector<Line> memory;
  ControlBlock control;
};

TEST(ControlBlockTest, LinesDoNotOverlap) {
  EXPECT_EQ(ControlBlock::size_bytes(3), 256u + 3 * 256u);
  const Block block(3);
  block.control.ring(1);
  EXPECT_EQ(block.control.lines(0).doorbell, 0u);
  EXPECT_EQ(block.control.lines(1).doorbell, 1u);
  EXPECT_EQ(block.control.lines(2).doorbell, 0u);
  EXPECT_EQ(block.control.abort_line().code, 0u);
}

TEST(ControlBlockTest, OneOfManyAbortsWins) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Block block(2);
    std::atomic<int> num_first = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          const std::string reason(200, static_cast<char>('a' + i));
          if (block.control.abort(abort_code(Errc::kAborted), i, reason.c_str())) ++num_first;
          EXPECT_NE(block.control.abort_line().code, 0u);
        });
      }
    }
    const AbortLine& cause = block.control.abort_line();
    EXPECT_EQ(num_first, 1);
    EXPECT_EQ(errc_of(cause.code), Errc::kAborted);
    EXPECT_EQ(cause.reason, std::string(200, static_cast<char>('a' + cause.culprit)));
  }
}

TEST(ControlBlockTest, CauseOfOneWhoDiedIsReplaced) {
  const Block block(2);
  block.control.abort_line().claimed = 1;
  EXPECT_FALSE(block.control.abort(abort_code(Errc::kPeerLost), 1, "gone"));
  EXPECT_EQ(errc_of(block.control.abort_line().code), Errc::kPeerLost);
  EXPECT_EQ(block.control.abort_line().culprit, 1);
}

TEST(ControlBlockTest, ReasonIsCutToItsPlace) {
  const Block block(1);
  block.control.abort(1, 0, std::string(1000, 'x').c_str());
  EXPECT_EQ(std::strlen(block.control.abort_line().reason), sizeof(AbortLine::reason) - 1);
  EXPECT_EQ(block.control.lines(0).joined, 0u);  // nothing was overwritten
}

TEST(FutexTest, WakesOnARingAndNotBefore) {
  const Block block(1);
  RankLines& lines = block.control.lines(0);
  std::atomic<bool> is_awake = false;
  std::jthread sleeper([&] {
    lines.sleepers.fetch_add(1);
    while (lines.doorbell.load() == 0) futex_wait(lines.doorbell, 0, 20'000'000'000);
    is_awake = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_awake);
  const std::int64_t start = now_ns();
  block.control.ring(0);
  sleeper.join();
  EXPECT_LT(now_ns() - start, 5'000'000'000);
}

TEST(FutexTest, ReturnsAtTheDeadlineOrWhenTheWordMoved) {
  std::atomic<std::uint32_t> word = 7;
  const std::int64_t start = now_ns();
  futex_wait(word, 7, 30'000'000);
  EXPECT_GE(now_ns() - start, 25'000'000);
  const std::int64_t again = now_ns();
  futex_wait(word, 6, 20'000'000'000);
  EXPECT_LT(now_ns() - again, 5'000'000'000);
}

}  // namespace
}  // namespace switchyard
