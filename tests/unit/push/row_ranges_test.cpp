// SPDX-License-Identifier: Apache-2.0
//
// Ranges that kernels read are clamped to the buffer, and a grid has a place for every tile. Needs
// no GPU: the same functions run on the host.

#include "cuda/quantize/row_ranges.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"

namespace switchyard {
namespace {

TEST(RowRangesTest, BatchesCountFromTheirPlaces) {
  const std::int32_t counts[] = {3, 0, -1, 9, 8};
  const cuda::RowRanges ranges{nullptr, counts, 5, 8, 40};
  const cuda::RowRange expected[] = {{0, 3}, {}, {}, {24, 8}, {32, 8}};
  for (std::int64_t e = 0; e < 5; ++e) {
    EXPECT_EQ(ranges.of(e).first, expected[e].first) << e;
    EXPECT_EQ(ranges.of(e).count, expected[e].count) << e;
  }
}

TEST(RowRangesTest, RangesEndWithTheBuffer) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t first[] = {0, 95, 100, -1, kMax, std::numeric_limits<std::int64_t>::min()};
  const std::vector<std::int32_t> counts(6, std::numeric_limits<std::int32_t>::max());
  const cuda::RowRanges ranges{first, counts.data(), 6, 100, 100};
  const std::int64_t expected[] = {100, 5, 0, 0, 0, 0};
  for (std::int64_t e = 0; e < 6; ++e) EXPECT_EQ(ranges.of(e).count, expected[e]) << e;
  EXPECT_EQ((cuda::RowRanges{.capacity = 7, .total_rows = 7}.of(0).count), 7);
  EXPECT_EQ((cuda::RowRanges{}.of(0).count), 0);
}

// Random counts per expert, some of them 0.
TEST(RowRangesTest, EveryTileHasAPlaceInTheGrid) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto experts = static_cast<std::int64_t>(1 + random_bits(seed, 0) % 40);
    std::vector<std::int64_t> first;
    std::vector<std::int32_t> counts;
    std::int64_t total = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::uint64_t bits = random_bits(seed, static_cast<std::uint64_t>(e + 1));
      const auto count = static_cast<std::int32_t>(bits % 3 == 0 ? 0 : (bits >> 8) % 200);
      first.push_back(total);
      counts.push_back(count);
      total += count;
    }
    const cuda::RowRanges ranges{first.data(), counts.data(), experts, total, total};
    for (const std::int64_t tile : {1, 8, 32, 500}) {
      std::int64_t tiles = 0;
      for (std::int64_t e = 0; e < experts; ++e) tiles += cdiv(ranges.of(e).count, tile);
      EXPECT_LE(tiles, ranges.max_tiles(tile)) << "seed " << seed << ", tiles of " << tile;
    }
  }
}

TEST(RowRangesTest, GridsAreAsSmallAsCanBe) {
  EXPECT_EQ((cuda::RowRanges{nullptr, nullptr, 32, 512, 32 * 512}.max_tiles(32)), 512);
  EXPECT_EQ((cuda::RowRanges{nullptr, nullptr, 32, 16, 32 * 16}.max_tiles(32)), 32);
  EXPECT_EQ((cuda::RowRanges{nullptr, nullptr, 32, 4096, 4096}.max_tiles(32)), 160);
  EXPECT_EQ((cuda::RowRanges{nullptr, nullptr, 4, 0, 0}.max_tiles(32)), 0);
  EXPECT_EQ((cuda::RowRanges{nullptr, nullptr, 0, 64, 64}.max_tiles(32)), 0);
}

}  // namespace
}  // namespace switchyard
