// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/exchange.h"
#include "switchyard/log.h"

#include "support/ranks.h"

namespace switchyard {
namespace {

std::size_t up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

struct RowSizes {
  std::size_t elements = 0;
  std::size_t scales = 0;
};
RowSizes sizes_of(const QuantScheme& scheme, std::int64_t hidden) {
  const auto h = static_cast<std::size_t>(hidden);
  if (!scheme.is_quantized()) return {h * (scheme.dtype == DType::kF32 ? 4 : 2), 0};
  if (scheme == schemes::kFp8Tensor) return {h, 0};
  if (scheme == schemes::kFp8Ue8m0) return {h, up(h, 512) / 512 * 4};
  return {h, up(h, 128) / 128 * 4};
}

// Restates the formula of the public header.
std::size_t stated_window(const ExchangeConfig& c, std::size_t num_ranks) {
  const auto tokens = static_cast<std::size_t>(c.max_tokens_per_rank);
  const auto topk = static_cast<std::size_t>(c.num_topk);
  const std::size_t n = std::max<std::size_t>(2, static_cast<std::size_t>(c.max_in_flight) + 1);
  std::size_t columns = c.reduce == Reduce::kPerRank ? std::min(num_ranks, topk) : topk;
  if (topk == 0) columns = num_ranks;
  const RowSizes sizes = sizes_of(c.scheme, c.hidden);
  std::size_t row = up(sizes.elements, 4) + sizes.scales;
  for (const std::int64_t bytes : c.payload_bytes) row += up(static_cast<std::size_t>(bytes), 4);
  const RowSizes returned = sizes_of(c.combine_scheme, c.hidden);
  const std::size_t back = up(up(returned.elements, 4) + returned.scales, 16);
  const std::size_t rows = std::max(tokens * up(row, 16), tokens * columns * back);
  return 128 + n * up(128 * (1 + num_ranks) + up(2 * tokens * topk, 128) +
                          (c.sends_weights ? up(4 * tokens * topk, 128) : 0) + rows,
                      128);
}

// Restates the maximum number of rows that can arrive on rank 0, for each layout.
std::size_t stated_rows(const ExchangeConfig& c, std::size_t num_ranks) {
  const std::size_t tokens = num_ranks * static_cast<std::size_t>(c.max_tokens_per_rank);
  if (!is_expert_major(c.layout)) return tokens;
  const std::size_t local = (static_cast<std::size_t>(c.num_experts) + num_ranks - 1) / num_ranks;
  const auto capacity = static_cast<std::size_t>(c.capacity);
  if (c.layout == Layout::kBatched) return local * (capacity > 0 ? capacity : tokens);
  std::size_t rows = tokens * static_cast<std::size_t>(c.num_topk);
  if (capacity > 0) rows = std::min(rows, local * capacity);
  return rows + std::min(local, rows) * (static_cast<std::size_t>(c.expert_alignment) - 1);
}

std::size_t stated_receive(const ExchangeConfig& c, std::size_t num_ranks) {
  const std::size_t rows = stated_rows(c, num_ranks);
  const RowSizes sizes = sizes_of(c.scheme, c.hidden);
  const auto topk = static_cast<std::size_t>(c.num_topk);
  std::size_t row = sizes.elements;
  for (const std::int64_t bytes : c.payload_bytes) row += static_cast<std::size_t>(bytes);
  if (is_expert_major(c.layout)) {
    row += c.sends_weights ? 4 : 0;
  } else {
    row += topk * (c.sends_weights ? 8 : 4);
  }
  std::size_t scales = rows * sizes.scales;
  if (c.scale_layout == ScaleLayout::kColumnMajorAligned) {
    const std::size_t local = (static_cast<std::size_t>(c.num_experts) + num_ranks - 1) / num_ranks;
    const std::size_t blocks = c.layout == Layout::kBatched ? local : 1;
    scales = blocks * up(rows / blocks, 4) * sizes.scales;
  }
  return static_cast<std::size_t>(c.max_in_flight) * (rows * row + scales);
}

// Combines all sizes, layouts and formats; the other fields rotate.
TEST(ExchangeMemoryTest, EqualsTheStatedFormula) {
  const std::vector<QuantScheme> formats{schemes::kNone, QuantScheme{DType::kF32},
                                         schemes::kFp8Block, schemes::kFp8Ue8m0,
                                         schemes::kFp8Tensor};
  std::size_t turn = 0;
  for (const int num_ranks : {1, 2, 7, 8}) {
    for (const std::int64_t hidden : {1, 257, 7168}) {
      for (const std::int64_t tokens : {0, 1, 128}) {
        for (int layout = 0; layout < 5; ++layout) {
          for (std::size_t format = 0; format < formats.size(); ++format, ++turn) {
            ExchangeConfig config;
            config.layout = static_cast<Layout>(layout);
            config.num_experts = 256;
            config.num_topk = 8;
            if (config.layout == Layout::kAllGather && turn % 2 == 0) {
              config.num_experts = config.num_topk = 0;
            }
            config.hidden = hidden;
            config.max_tokens_per_rank = tokens;
            config.scheme = formats[format];
            config.combine_scheme = formats[turn % 4];
            const bool may_be_exact = is_expert_major(config.layout);
            config.reduce = may_be_exact && turn % 3 == 0 ? Reduce::kPerExpert : Reduce::kPerRank;
            config.sends_weights = turn % 7 < 4;
            config.capacity = turn % 4 == 3 ? 5 : 0;
            config.expert_alignment = config.layout == Layout::kExpanded && turn % 2 == 1 ? 16 : 1;
            if (turn % 3 == 1) config.payload_bytes = {5, 8};
            if (format == 2 && turn % 2 == 0) {
              config.scale_layout = ScaleLayout::kColumnMajorAligned;
            }
            config.max_in_flight = 1 + static_cast<int>(turn % 3);
            const auto size = static_cast<std::size_t>(num_ranks);
            const ExchangeMemory memory = exchange_memory(config, num_ranks, 0);
            ASSERT_EQ(memory.window_bytes, stated_window(config, size)) << turn;
            ASSERT_EQ(memory.receive_bytes, stated_receive(config, size)) << turn;
          }
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

// What rank 0 of two warns of when an exchange is made.
std::vector<std::string> warnings_of(const ExchangeConfig& config) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_callback([&](LogLevel level, int rank, std::string_view, std::string_view text) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kWarn) lines.push_back(std::to_string(rank) + " " + std::string(text));
  });
  test::run_ranks(2, [&](const Group& group) { Exchange(group, config); });
  set_log_callback({});
  return lines;
}

TEST(ExchangeMemoryTest, BlocksForManyTokensAreWarnedOfOnce) {
  ExchangeConfig config;
  config.num_experts = 16;
  config.num_topk = 2;
  config.hidden = 8192;
  config.max_tokens_per_rank = 1024;
  config.layout = Layout::kBatched;
  const std::string bytes = std::to_string(exchange_memory(config, 2, 0).receive_bytes);
  EXPECT_THAT(warnings_of(config),
              ::testing::ElementsAre("0 layout batched with 1024 tokens per rank takes " + bytes +
                                     " bytes of buffers on rank 0, for 8 experts of 2048 rows, but "
                                     "4096 of these 16384 rows can arrive at most; layout "
                                     "expanded, or a smaller capacity, takes less"));
  const auto expect_silent = [&](auto&& change) {
    ExchangeConfig other = config;
    change(other);
    EXPECT_THAT(warnings_of(other), ::testing::IsEmpty());
  };
  expect_silent([](ExchangeConfig& c) { c.max_tokens_per_rank = 1023; });
  expect_silent([](ExchangeConfig& c) { c.hidden = 4096; });  // 128 MiB
  expect_silent([](ExchangeConfig& c) { c.layout = Layout::kExpanded; });
  expect_silent([](ExchangeConfig& c) { c.capacity = 512; });   // 4096 rows
  expect_silent([](ExchangeConfig& c) { c.num_experts = 4; });  // each rank has as many as K
}

}  // namespace
}  // namespace switchyard
