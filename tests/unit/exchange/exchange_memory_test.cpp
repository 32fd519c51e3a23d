// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "exchange/exchange_shape.h"

namespace switchyard {
namespace {

std::size_t up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

// The formula of the public header, written again.
std::size_t stated_window(const ExchangeConfig& c, std::size_t num_ranks, std::size_t row_bytes) {
  const auto tokens = static_cast<std::size_t>(c.max_tokens_per_rank);
  const auto topk = static_cast<std::size_t>(c.num_topk);
  const std::size_t n = std::max<std::size_t>(2, static_cast<std::size_t>(c.max_in_flight) + 1);
  const std::size_t columns = c.reduce == Reduce::kPerRank ? std::min(num_ranks, topk) : topk;
  const std::size_t rows = std::max(
      tokens * up(row_bytes, 16), tokens * columns * 2 * up(static_cast<std::size_t>(c.hidden), 8));
  return 128 + n * up(128 * (1 + num_ranks) + up(2 * tokens * topk, 128) +
                          (c.sends_weights ? up(4 * tokens * topk, 128) : 0) + rows,
                      128);
}

TEST(ExchangeMemoryTest, EqualsTheStatedFormula) {
  for (const int num_ranks : {1, 2, 7, 8}) {
    for (const std::int64_t hidden : {1, 257, 7168}) {
      for (const std::int64_t tokens : {0, 1, 128}) {
        for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
          ExchangeConfig config;
          config.num_experts = 256;
          config.num_topk = 8;
          config.hidden = hidden;
          config.max_tokens_per_rank = tokens;
          config.reduce = reduce;
          config.max_in_flight = 2;
          const auto size = static_cast<std::size_t>(num_ranks);
          EXPECT_EQ(exchange_memory(config, num_ranks, 0).window_bytes,
                    stated_window(config, size, static_cast<std::size_t>(hidden) * 2));

          config.scheme = schemes::kFp8Block;
          config.sends_weights = false;
          const std::size_t scales = (static_cast<std::size_t>(hidden) + 127) / 128 * 4;
          const std::size_t payload = up(static_cast<std::size_t>(hidden), 4);
          EXPECT_EQ(exchange_memory(config, num_ranks, 0).window_bytes,
                    stated_window(config, size, payload + scales));

          config.layout = Layout::kBatched;
          const std::size_t experts = 256 / size + (256 % size != 0 ? 1 : 0);
          EXPECT_EQ(exchange_memory(config, num_ranks, 0).receive_bytes,
                    2 * experts * size * static_cast<std::size_t>(tokens) *
                        (static_cast<std::size_t>(hidden) + scales));
        }
      }
    }
  }
}

TEST(ExchangeMemoryTest, FewerExpertsThanRanksLeaveSomeRanksWithoutRows) {
  ExchangeConfig config;
  config.num_experts = 2;
  config.num_topk = 1;
  config.hidden = 16;
  config.max_tokens_per_rank = 4;
  EXPECT_GT(exchange_memory(config, 5, 1).receive_bytes, 0u);
  EXPECT_EQ(exchange_memory(config, 5, 4).receive_bytes, 0u);
}

}  // namespace
}  // namespace switchyard
