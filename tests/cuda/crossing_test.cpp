// SPDX-License-Identifier: Apache-2.0
//
// Messages between GPUs of several hosts have room for what they carry. Needs no GPU.

#include "exchange/push/crossing.h"

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

cuda::DispatchArgs region_of(const PushExchangeShape& shape, const PushLayout& layout) {
  cuda::DispatchArgs args;
  args.layout = layout;
  args.num_topk = shape.main_topk;
  if (layout.shape.chunk_scale_bytes == 0) return args;
  args.scales.block = scale_blocks(shape.config, shape.exchange, 0, kTokens).block;
  return args;
}

TEST(CrossingTest, DispatchHasRoomForEveryRow) {
  for (const QuantScheme& scheme : named_schemes()) {
    for (const std::int64_t hidden : {16, 128, 612, 1024}) {
      SCOPED_TRACE(name_of(scheme) + " " + std::to_string(hidden));
      const PushExchangeShape shape = shape_of(scheme, hidden, Reduce::kPerRank);
      const DispatchMessage message = dispatch_message(
          {region_of(shape, shape.payloads[0]), region_of(shape, shape.main)}, kTokens);
      ASSERT_EQ(message.regions.size(), 2u);
      const CrossingRows& payload = message.regions[0];
      const CrossingRows& tokens = message.regions[1];
      EXPECT_EQ(message.mode, 0u);
      EXPECT_GE(message.ids, sizeof(std::uint32_t));
      EXPECT_GE(message.weights, message.ids + kTokens * 3 * sizeof(std::int32_t));
      EXPECT_GE(payload.rows, message.weights + kTokens * 3 * sizeof(float));
      EXPECT_GE(payload.stride, 614);
      EXPECT_FALSE(payload.has_scales);
      EXPECT_GE(tokens.rows, payload.rows + static_cast<std::size_t>(kTokens * payload.stride));
      EXPECT_GE(tokens.stride, static_cast<std::int64_t>(row_bytes(scheme, hidden)));
      EXPECT_EQ(tokens.stride % 16, 0);
      const std::size_t end = tokens.rows + static_cast<std::size_t>(kTokens * tokens.stride);
      EXPECT_EQ(tokens.has_scales, has_row_scales(scheme));
      const std::int64_t scale_bytes =
          tokens.has_scales ? static_cast<std::int64_t>(scale_row_bytes(scheme, hidden)) : 0;
      const std::int64_t row = payload.stride + tokens.stride + scale_bytes + 3 * 8;
      EXPECT_LE(message.num_bytes, static_cast<std::size_t>(kTokens * row) + 6 * kPartAlignment)
          << "a row of each token, once";
      if (!tokens.has_scales) {
        EXPECT_GE(message.num_bytes, end);
        continue;
      }
      EXPECT_GE(tokens.scales, end);
      EXPECT_GE(message.num_bytes, tokens.scales + kTokens * scale_row_bytes(scheme, hidden));
    }
  }
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

TEST(CrossingTest, PartsHaveRoomForReturnsOfAllTokens) {
  const PushExchangeShape shape = shape_of(schemes::kNone, 256, Reduce::kPerRank);
  const ReturnPart part = return_part(shape);
  EXPECT_GE(part.weights, shape.main.total_bytes - shape.main.returns_offset);
  EXPECT_GE(part.num_bytes, part.weights + shape.weights.total_bytes);
}

}  // namespace
}  // namespace switchyard
