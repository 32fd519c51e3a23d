// SPDX-License-Identifier: Apache-2.0

#include "forecast/memory_use.h"

#include <gtest/gtest.h>

#include "exchange/push/crossing.h"
#include "plan/host_crossings.h"

namespace switchyard::forecast {
namespace {

HostsShape shape_of(int num_ranks, int num_hosts, std::int64_t tokens) {
  HostsShape shape;
  shape.workload = measure::find_workload("deepseek-v3");
  shape.num_ranks = num_ranks;
  shape.num_hosts = num_hosts;
  shape.num_tokens = tokens;
  shape.scheme = schemes::kFp8Block;
  return shape;
}

TEST(MemoryUseTest, PullIsWhatTheExchangeStates) {
  const HostsShape shape = shape_of(4, 1, 128);
  const ExchangeMemory stated = exchange_memory(shape.exchange_config(), 4, 0);
  const MemoryUse use = memory_use(shape, 256, "pull", false);
  EXPECT_EQ(use.window_bytes, stated.window_bytes);
  EXPECT_EQ(use.receive_bytes, stated.receive_bytes);
}

// docs/design.md: 8 ranks, top-8, hidden 7168, fp8 rows, bf16 returns.
TEST(MemoryUseTest, PushWindowsAreThoseOfTheDesignPage) {
  EXPECT_NEAR(static_cast<double>(memory_use(shape_of(8, 1, 4096), 256, "push", true).window_bytes),
              1.03e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(memory_use(shape_of(8, 1, 128), 256, "push", true).window_bytes),
              32e6, 0.5e6);
}

// Rows of many tokens go straight to their places, in a part of the window; then no received rows
// lie elsewhere.
TEST(MemoryUseTest, TokenMajorLayoutsOfManyTokensHaveReceivedRowsInTheWindow) {
  HostsShape shape = shape_of(8, 1, 256);
  shape.layout = Layout::kCompact;
  const MemoryUse slots = memory_use(shape, 256, "push", true);
  EXPECT_GT(slots.receive_bytes, 0u);
  HostsShape more = shape;
  more.num_tokens = 257;
  const MemoryUse direct = memory_use(more, 256, "push", true);
  EXPECT_EQ(direct.receive_bytes, 0u);
  const std::size_t rows = 8 * 257 * 7168;
  EXPECT_GT(direct.window_bytes, slots.window_bytes + 3 * rows);  // fp8 received, bf16 results
  more.layout = Layout::kExpanded;
  EXPECT_GT(memory_use(more, 256, "push", true).receive_bytes, 0u);
}

// Calls of micro-batches are in flight together, each with a part of the tokens.
TEST(MemoryUseTest, EveryMicroBatchHasASlot) {
  HostsShape split = shape_of(8, 1, 128);
  split.num_micro_batches = 3;  // of 43, 43 and 42 tokens
  const MemoryUse one = memory_use(shape_of(8, 1, 43), 256, "push", true);
  const MemoryUse push = memory_use(split, 256, "push", true);
  EXPECT_EQ(push.window_bytes, 3 * one.window_bytes);
  EXPECT_EQ(push.receive_bytes, 3 * one.receive_bytes);
  ExchangeConfig config = split.exchange_config();
  config.max_tokens_per_rank = 43;
  config.max_in_flight = 3;
  const ExchangeMemory stated = exchange_memory(config, 8, 0);
  const MemoryUse pull = memory_use(split, 256, "pull", false);
  EXPECT_EQ(pull.window_bytes, stated.window_bytes);
  EXPECT_EQ(pull.receive_bytes, stated.receive_bytes);
}

TEST(MemoryUseTest, MessagesHaveNoWindowAndHostsHaveParts) {
  const HostsShape shape = shape_of(16, 2, 128);
  const MemoryUse messages = memory_use(shape, 256, "messages", false);
  EXPECT_EQ(messages.window_bytes, 0u);
  EXPECT_GT(messages.receive_bytes, memory_use(shape, 256, "pull", false).receive_bytes);
  const MemoryUse hosts = memory_use(shape, 256, "hosts", false);
  EXPECT_GT(hosts.window_bytes, memory_use(shape, 256, "pull", false).window_bytes);
}

// What is allocated: a window with parts for the rows that return, and messages.
TEST(MemoryUseTest, GpusOfSeveralHostsHaveRoomForMessagesOfFixedSize) {
  constexpr std::int64_t kTokens = 128;
  const HostsShape shape = shape_of(16, 2, kTokens);
  const PushExchangeShape push = make_push_exchange_shape(shape.exchange_config(), 16, 0);
  const HostMap map(even_host_map(16, 2));
  const MemoryUse use = memory_use(shape, 256, "hosts", true);
  const MemoryUse one = memory_use(shape_of(16, 1, kTokens), 256, "push", true);
  EXPECT_EQ(use.window_bytes, hosts_window_bytes(push, map));
  EXPECT_EQ(use.receive_bytes, one.receive_bytes + hosts_slot_layout(push, map, 0).num_bytes);
  // Sent, passed on and returned: a row of each token, and up to 8 that return.
  const std::size_t sent = dispatch_message(push, kTokens, false).num_bytes;
  const std::size_t returned = return_message(push, 8, kTokens).num_bytes;
  EXPECT_GE(sent, kTokens * (7168u + 56 * 4 + 64));
  EXPECT_GE(returned, kTokens * 8u * 7168 * 2);
  EXPECT_GE(use.receive_bytes - one.receive_bytes, sent + 2 * returned);
  EXPECT_LT(use.receive_bytes - one.receive_bytes, sent + 2 * returned + kTokens * 8 * 16 + 4096);
  HostsShape per_host = shape;
  per_host.reduce = Reduce::kPerHost;  // one row returns, summed in 32 bits
  EXPECT_LT(memory_use(per_host, 256, "hosts", true).total(), use.total());
  HostsShape split = shape;
  split.num_micro_batches = 2;
  const MemoryUse half = memory_use(shape_of(16, 2, kTokens / 2), 256, "hosts", true);
  EXPECT_EQ(memory_use(split, 256, "hosts", true).total(), 2 * half.total());
}

// Eight times the ranks: windows have room for eight times the tokens, and there are messages for
// 63 other hosts instead of 7.
TEST(MemoryUseTest, MoreRanksThanKernelsHaveAreStatedWithoutTheLimit) {
  const MemoryUse possible = memory_use(shape_of(64, 8, 128), 2048, "hosts", true);
  EXPECT_FALSE(possible.exceeds_ranks);
  const MemoryUse beyond = memory_use(shape_of(512, 64, 128), 2048, "hosts", true);
  EXPECT_TRUE(beyond.exceeds_ranks);
  EXPECT_TRUE(beyond.is_known());
  const auto ratio = [](std::size_t many, std::size_t few) {
    return static_cast<double>(many) / static_cast<double>(few);
  };
  EXPECT_NEAR(ratio(beyond.window_bytes, possible.window_bytes), 8, 0.1);
  EXPECT_GT(ratio(beyond.total(), possible.total()), 7);
  EXPECT_LT(ratio(beyond.total(), possible.total()), 9);
  HostsShape wide = shape_of(128, 16, 128);
  wide.workload.num_topk = 64;
  const MemoryUse refused = memory_use(wide, 256, "hosts", true);  // for another reason
  EXPECT_FALSE(refused.is_known());
  EXPECT_EQ(refused.total(), 0u);
}

TEST(MemoryUseTest, WhatCannotBeMadeSaysWhy) {
  EXPECT_NE(memory_use(shape_of(128, 16, 128), 256, "hosts", true).obstacle.find("at most 64"),
            std::string::npos);
  EXPECT_NE(memory_use(shape_of(128, 1, 128), 256, "push", true).obstacle.find("128 ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard::forecast
