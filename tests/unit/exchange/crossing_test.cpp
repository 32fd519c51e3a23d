// SPDX-License-Identifier: Apache-2.0
//
// Messages between GPUs of several hosts, and the memory of their exchange, have room for what they
// carry.

#include "exchange/push/crossing.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "exchange/push/received_memory.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr int kNumRanks = 4;
constexpr std::int64_t kTokens = 37;

PushExchangeShape shape_of(const QuantScheme& scheme, std::int64_t hidden, Reduce reduce) {
  ExchangeConfig config;
  config.num_experts = 12;
  config.num_topk = 3;
  config.hidden = hidden;
  config.max_tokens_per_rank = kTokens;
  config.scheme = scheme;
  config.reduce = reduce;
  config.payload_bytes = {614};
  return make_push_exchange_shape(config, kNumRanks, 0);
}

TEST(CrossingTest, DispatchHasRoomForEveryRow) {
  for (const QuantScheme& scheme : named_schemes()) {
    for (const std::int64_t hidden : {16, 128, 612, 1024}) {
      SCOPED_TRACE(name_of(scheme) + " " + std::to_string(hidden));
      const PushExchangeShape shape = shape_of(scheme, hidden, Reduce::kPerRank);
      const DispatchMessage message = dispatch_message(shape, kTokens, false);
      ASSERT_EQ(message.regions.size(), 2u);
      const CrossingRows& payload = message.regions[0];
      const CrossingRows& tokens = message.regions[1];
      EXPECT_EQ(message.mode, 0u);
      EXPECT_GE(message.ids, sizeof(std::uint32_t));
      EXPECT_GE(message.weights, message.ids + kTokens * 3 * sizeof(std::int32_t));
      EXPECT_GE(payload.rows, message.weights + kTokens * 3 * sizeof(float));
      EXPECT_GE(payload.stride, 614);
      EXPECT_FALSE(payload.has_scales());
      EXPECT_GE(tokens.rows, payload.rows + static_cast<std::size_t>(kTokens * payload.stride));
      EXPECT_GE(tokens.stride, static_cast<std::int64_t>(row_bytes(scheme, hidden)));
      EXPECT_EQ(tokens.stride % 16, 0);
      const std::size_t end = tokens.rows + static_cast<std::size_t>(kTokens * tokens.stride);
      EXPECT_EQ(tokens.has_scales(), has_row_scales(scheme));
      const std::int64_t scale_bytes =
          tokens.has_scales() ? static_cast<std::int64_t>(scale_row_bytes(scheme, hidden)) : 0;
      const std::int64_t row = payload.stride + tokens.stride + scale_bytes + 3 * 8;
      EXPECT_LE(message.num_bytes, static_cast<std::size_t>(kTokens * row) + 6 * kPartAlignment)
          << "a row of each token, once";
      if (!tokens.has_scales()) {
        EXPECT_GE(message.num_bytes, end);
        continue;
      }
      EXPECT_GE(tokens.scales, end);
      EXPECT_GE(message.num_bytes, tokens.scales + kTokens * scale_row_bytes(scheme, hidden));
    }
  }
}

TEST(CrossingTest, RoutingAloneTakesOneVectorOfEachToken) {
  const PushExchangeShape shape = shape_of(schemes::kFp8Block, 1024, Reduce::kPerRank);
  const DispatchMessage message = dispatch_message(shape, kTokens, true);
  ASSERT_EQ(message.regions.size(), 1u);
  EXPECT_EQ(message.regions[0].stride, 16);
  EXPECT_FALSE(message.regions[0].has_scales());
  EXPECT_LT(message.num_bytes, dispatch_message(shape, kTokens, false).num_bytes);
}

TEST(CrossingTest, GatheredRoutingHasAnIdForEveryRank) {
  ExchangeConfig config = shape_of(schemes::kNone, 256, Reduce::kPerRank).config;
  config.layout = Layout::kAllGather;
  const PushExchangeShape shape = make_push_exchange_shape(config, kNumRanks, 0);
  ASSERT_TRUE(shape.gathers_routing);
  const DispatchMessage message = routing_message(shape, kTokens);
  ASSERT_EQ(message.regions.size(), 1u);
  EXPECT_GE(message.regions[0].rows, message.ids + kTokens * kNumRanks * sizeof(std::int32_t));
  EXPECT_GE(message.regions[0].stride, shape.routing_row_bytes());
}

TEST(CrossingTest, PackedMessagesHaveRoomForTheirRows) {
  const PushExchangeShape shape = shape_of(schemes::kFp8Block, 1024, Reduce::kPerRank);
  const DispatchMessage all = dispatch_message(shape, kTokens, false);
  EXPECT_EQ(all.num_rows, kTokens);
  EXPECT_EQ(dispatch_message(shape, kTokens, false, {.is_exact = true}).num_bytes, all.num_bytes);
  EXPECT_EQ(dispatch_message(shape, kTokens, false, {kTokens + 1}).num_bytes, all.num_bytes);
  const DispatchMessage some = dispatch_message(shape, kTokens, false, {9});
  EXPECT_EQ(some.num_rows, 9);
  EXPECT_EQ(some.ids, all.ids);
  EXPECT_EQ(some.weights, all.weights) << "ids and weights are of all tokens";
  const CrossingRows& rows = some.regions[1];
  EXPECT_GE(rows.scales, rows.rows + static_cast<std::size_t>(9 * rows.stride));
  EXPECT_LT(some.num_bytes, all.num_bytes * 2 / 5);
  const ReturnMessage back = return_message(shape, 2, kTokens, {9});
  EXPECT_EQ(back.row_bytes, 2 * shape.main.return_stride);
  EXPECT_EQ(back.num_records, return_message(shape, 2, kTokens).num_records);
  EXPECT_GE(back.weights, 9 * back.row_bytes);
  EXPECT_LT(back.weights, 10 * back.row_bytes);
}

// Every row is in one block, and blocks are so long that what a message costs does not matter.
TEST(CrossingTest, BlocksOfLongMessagesHaveEveryRowOnce) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const std::int64_t num_rows : {0, 1, 7, 300, 4096, 65536}) {
    for (const std::size_t num_bytes :
         {std::size_t{0}, 7 * kMiB, 9 * kMiB, 30 * kMiB, 900 * kMiB}) {
      const std::vector<RowBlock> blocks = row_blocks(num_rows, num_bytes);
      SCOPED_TRACE(std::to_string(num_rows) + " rows, " + std::to_string(num_bytes) + " bytes");
      ASSERT_FALSE(blocks.empty());
      EXPECT_LE(blocks.size(), std::max<std::size_t>(1, std::min(kMaxRowBlocks, num_bytes / kMiB)));
      EXPECT_EQ(blocks.front().first, 0);
      EXPECT_EQ(blocks.back().end, num_rows);
      for (std::size_t i = 1; i < blocks.size(); ++i) {
        EXPECT_EQ(blocks[i].first, blocks[i - 1].end);
        EXPECT_GT(blocks[i].count(num_rows), 0);
        EXPECT_LE(blocks[i].count(num_rows), blocks[0].count(num_rows));
      }
    }
  }
  EXPECT_EQ(row_blocks(4096, 4 * kMiB).size(), 1u);
  EXPECT_EQ(row_blocks(4096, 7 * kMiB).size(), 2u);
  EXPECT_EQ(row_blocks(4096, 30 * kMiB).size(), 8u);
  EXPECT_EQ(row_blocks(4096, 900 * kMiB).size(), kMaxRowBlocks);
}

// Of the rows that there are, the last blocks may have none.
TEST(CrossingTest, RangesCountTheRowsThatThereAre) {
  const RowBlock range{10, 20};
  EXPECT_EQ(range.count(5), 0);
  EXPECT_EQ(range.count(10), 0);
  EXPECT_EQ(range.count(13), 3);
  EXPECT_EQ(range.count(100), 10);
  EXPECT_FALSE(range.has(9));
  EXPECT_TRUE(range.has(10));
  EXPECT_FALSE(range.has(20));
  EXPECT_TRUE(RowBlock{}.has(1 << 30));
}

using Pieces = std::vector<MessagePiece>;

TEST(CrossingTest, ADispatchCrossesInPieces) {
  const PushExchangeShape shape = shape_of(schemes::kFp8Block, 1024, Reduce::kPerRank);
  const DispatchMessage message = dispatch_message(shape, kTokens, false);
  const CrossingRows& payload = message.regions[0];
  const CrossingRows& tokens = message.regions[1];
  ASSERT_EQ(payload.stride, 624) << "39 vectors of 16 bytes hold 614";
  ASSERT_EQ(tokens.stride, 1024);
  ASSERT_EQ(tokens.scale_bytes, 8u * 4);
  const auto expect = [&](const RowBlock& block, const ExactRows& exact, const Pieces& pieces) {
    EXPECT_EQ(message.pieces(block, exact), pieces) << "from row " << block.first;
  };
  expect({0, kTokens}, {}, {{0, message.num_bytes}});
  expect({0, 20}, {},
         {{0, payload.rows},
          {payload.rows, 20 * 624},
          {tokens.rows, 20 * 1024},
          {tokens.scales, 20 * 32}});
  expect({20, kTokens}, {},
         {{payload.rows + 20 * 624, 17 * 624},
          {tokens.rows + 20 * 1024, 17 * 1024},
          {tokens.scales + 20 * 32, 17 * 32}});
  // Mode and count have crossed before.
  EXPECT_EQ(message.head(), (MessagePiece{0, 8}));
  const MessagePiece routing{message.ids, payload.rows - message.ids};
  expect({0, kTokens}, 25,
         {routing, {payload.rows, 25 * 624}, {tokens.rows, 25 * 1024}, {tokens.scales, 25 * 32}});
  expect({20, kTokens}, 25,
         {{payload.rows + 20 * 624, 5 * 624},
          {tokens.rows + 20 * 1024, 5 * 1024},
          {tokens.scales + 20 * 32, 5 * 32}});
  expect({0, 20}, 0, {routing, {payload.rows, 0}, {tokens.rows, 0}, {tokens.scales, 0}});
}

TEST(CrossingTest, AReturnCrossesInPieces) {
  const PushExchangeShape shape = shape_of(schemes::kNone, 256, Reduce::kPerRank);
  const ReturnMessage message = return_message(shape, 2, kTokens);
  ASSERT_EQ(message.row_bytes, 2u * 512);
  const MessagePiece weights{message.weights, static_cast<std::size_t>(message.num_records) * 8};
  EXPECT_EQ(message.pieces({0, kTokens}), (Pieces{{0, message.num_bytes}}));
  EXPECT_EQ(message.pieces({0, 20}), (Pieces{{0, 20 * 1024}}));
  EXPECT_EQ(message.pieces({20, kTokens}), (Pieces{{20 * 1024, 17 * 1024}, weights}));
  EXPECT_EQ(message.pieces({0, kTokens}, 25), (Pieces{{0, 25 * 1024}, weights}));
  EXPECT_EQ(message.pieces({20, kTokens}, 25), (Pieces{{20 * 1024, 5 * 1024}, weights}));
  EXPECT_EQ(message.pieces({20, kTokens}, 3), (Pieces{{20 * 1024, 0}, weights}));
}

// One row for each rank of the host that may return one, or for each choice.
TEST(CrossingTest, ReturnsHaveRoomForEveryPartialSum) {
  const PushExchangeShape per_rank = shape_of(schemes::kNone, 256, Reduce::kPerRank);
  EXPECT_EQ(return_message(per_rank, 1, kTokens).width, 1);
  EXPECT_EQ(return_message(per_rank, 2, kTokens).width, 2);
  EXPECT_EQ(return_message(per_rank, 4, kTokens).width, 3);
  const PushExchangeShape per_host = shape_of(schemes::kNone, 256, Reduce::kPerHost);
  EXPECT_EQ(return_message(per_host, 4, kTokens).width, 1);
  const PushExchangeShape exact = shape_of(schemes::kNone, 256, Reduce::kPerExpert);
  const ReturnMessage message = return_message(exact, 1, kTokens);
  EXPECT_EQ(message.width, 3);
  EXPECT_GE(message.weights, kTokens * 3 * exact.main.return_stride);
  EXPECT_GE(message.num_bytes, message.weights + static_cast<std::size_t>(message.num_records) * 8);
  EXPECT_GE(message.num_records, kNumRanks + kTokens * 3);
}

// Every part lies behind the one before, whatever the hosts' sizes are.
TEST(CrossingTest, ASlotHasRoomForTheMessagesOfItsNeighbours) {
  const HostMap map({0, 0, 0, 1});  // rank 3 passes on the tokens of three
  for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert, Reduce::kPerHost}) {
    const PushExchangeShape shape = shape_of(schemes::kFp8Block, 1024, reduce);
    const std::size_t dispatched = dispatch_message(shape, kTokens, false).num_bytes;
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const HostsSlotLayout layout = hosts_slot_layout(shape, map, rank);
      const int host = map.host_of(rank);
      ASSERT_EQ(layout.forwards.size(), rank == 3 ? 3u : rank == 0 ? 1u : 0u);
      const std::size_t passed_back = return_message(shape, host == 0 ? 3 : 1, kTokens).num_bytes;
      std::size_t end = layout.sent + dispatched;
      for (const HostsSlotLayout::Forward& forward : layout.forwards) {
        EXPECT_GE(forward.message, end);
        EXPECT_GE(forward.lists.num_partials, forward.message + std::max(dispatched, passed_back));
        EXPECT_GE(forward.lists.columns, forward.lists.num_partials + kTokens * 4);
        EXPECT_GE(forward.lists.partial_ranks, forward.lists.columns + kTokens * 3 * 4);
        EXPECT_GE(forward.lists.partial_weights, forward.lists.partial_ranks + kTokens * 3 * 4);
        end = forward.lists.partial_weights + kTokens * 3 * 4;
      }
      if (reduce == Reduce::kPerHost) {
        EXPECT_GE(layout.of_ranks.num_partials, end);
        EXPECT_GE(layout.of_hosts.num_partials, layout.of_ranks.partial_ranks + kTokens * 3 * 4);
        EXPECT_GE(layout.sums, layout.of_hosts.partial_ranks + kTokens * 3 * 4);
        end = layout.sums + kTokens * 1024 * 4;
      }
      const std::size_t returned = return_message(shape, host == 0 ? 1 : 3, kTokens).num_bytes;
      ASSERT_EQ(layout.returned.size(), 2u);
      EXPECT_GE(layout.returned[host == 0 ? 1 : 0], end);
      EXPECT_GE(layout.num_bytes, layout.returned[host == 0 ? 1 : 0] + returned);
    }
  }
}

TEST(CrossingTest, APackedSlotHasAMessageForEveryHost) {
  const HostMap map({0, 0, 1, 2});
  const PushExchangeShape shape = shape_of(schemes::kFp8Block, 1024, Reduce::kPerRank);
  const std::size_t numbers = kTokens * sizeof(std::int32_t);
  for (const CrossingRoom& room : {CrossingRoom{9}, CrossingRoom{.is_exact = true}}) {
    const std::size_t message = dispatch_message(shape, kTokens, false, room).num_bytes;
    const HostsSlotLayout layout = hosts_slot_layout(shape, map, 0, room);
    EXPECT_GE(layout.message_stride, message);
    EXPECT_EQ(layout.message_stride % kPartAlignment, 0u);
    EXPECT_GE(layout.numbers, layout.sent + 2 * layout.message_stride);
    ASSERT_EQ(layout.forwards.size(), 2u);
    EXPECT_GE(layout.forwards[0].message, layout.numbers + 2 * numbers);
    EXPECT_GE(layout.forwards[1].message, layout.forwards[0].numbers + numbers);
    EXPECT_GE(layout.returned[1], layout.forwards[1].numbers + numbers);
  }
}

TEST(CrossingTest, WindowsHaveAPartForEverySource) {
  const PushExchangeShape shape = shape_of(schemes::kNone, 256, Reduce::kPerRank);
  const std::size_t part = return_part(shape).num_bytes;
  EXPECT_GE(return_part_offset(shape, 0), shape.window_bytes);
  EXPECT_EQ(return_part_offset(shape, 2), return_part_offset(shape, 0) + 2 * part);
  EXPECT_EQ(hosts_window_bytes(shape, HostMap({0, 0, 0, 1})), return_part_offset(shape, 3));
}

TEST(CrossingTest, PartsHaveRoomForReturnsOfAllTokens) {
  const PushExchangeShape shape = shape_of(schemes::kNone, 256, Reduce::kPerRank);
  const ReturnPart part = return_part(shape);
  EXPECT_GE(part.weights, shape.main.total_bytes - shape.main.returns_offset);
  EXPECT_GE(part.num_bytes, part.weights + shape.weights.total_bytes);
}

}  // namespace
}  // namespace switchyard
