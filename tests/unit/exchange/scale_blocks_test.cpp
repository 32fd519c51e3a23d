// SPDX-License-Identifier: Apache-2.0
//
// Where the scales of received rows lie: known places, and no two scales share one.

#include <vector>

#include "exchange/exchange_shape.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

constexpr ScaleLayout kLayouts[] = {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                    ScaleLayout::kColumnMajorAligned, ScaleLayout::kSwizzled};

TEST(ScaleBlocksTest, KnownPlaces) {
  // Five rows of three scales.
  EXPECT_EQ((ScaleGeometry{ScaleLayout::kRowMajor, 5, 3, 4}.index(4, 2)), 14);
  EXPECT_EQ((ScaleGeometry{ScaleLayout::kColumnMajor, 5, 3, 4}.index(4, 2)), 14);
  EXPECT_EQ((ScaleGeometry{ScaleLayout::kColumnMajor, 5, 3, 4}.index(1, 2)), 11);
  EXPECT_EQ((ScaleGeometry{ScaleLayout::kColumnMajorAligned, 5, 3, 4}.index(1, 2)), 17);
  // 130 rows of five scales: two bands of two tiles of 128 x 4.
  const ScaleGeometry swizzled{ScaleLayout::kSwizzled, 130, 5, 1};
  EXPECT_EQ(swizzled.num_elements(), 4 * 512);
  EXPECT_EQ(swizzled.index(0, 3), 3);
  EXPECT_EQ(swizzled.index(1, 0), 16);
  EXPECT_EQ(swizzled.index(32, 0), 4);
  EXPECT_EQ(swizzled.index(127, 3), 511);
  EXPECT_EQ(swizzled.index(0, 4), 512);
  EXPECT_EQ(swizzled.index(129, 4), 3 * 512 + 16);
}

TEST(ScaleBlocksTest, EveryScaleHasAPlaceOfItsOwn) {
  for (const ScaleLayout layout : kLayouts) {
    for (const std::int64_t rows : {0, 1, 3, 127, 128, 129, 257}) {
      for (const std::int64_t scales : {0, 1, 4, 5, 9}) {
        const ScaleGeometry geometry{layout, rows, scales, 1};
        std::vector<int> used(static_cast<std::size_t>(geometry.num_elements()), 0);
        for (std::int64_t n = 0; n < rows; ++n) {
          for (std::int64_t s = 0; s < scales; ++s) {
            const std::int64_t at = geometry.index(n, s);
            ASSERT_TRUE(at >= 0 && at < geometry.num_elements()) << n << " " << s;
            ASSERT_EQ(used[static_cast<std::size_t>(at)]++, 0) << n << " " << s;
          }
        }
      }
    }
  }
}

// For any number of rows, the scales fit into the memory for the largest number.
TEST(ScaleBlocksTest, FewerRowsNeedNoMoreBytes) {
  ExchangeConfig config = small_config();
  config.scheme = schemes::kFp8Block;
  config.hidden = 700;
  config.max_tokens_per_rank = 50;
  for (const Layout layout : {Layout::kExpanded, Layout::kCompact, Layout::kBatched}) {
    config.layout = layout;
    config.scale_layout = ScaleLayout::kRowMajor;
    const ExchangeShape shape = make_exchange_shape(config, 3, 0);
    for (const ScaleLayout scales : kLayouts) {
      config.scale_layout = scales;
      const std::size_t most = scale_blocks(config, shape, 0, shape.max_buffer_rows).num_bytes();
      for (std::int64_t rows = 0; rows <= shape.max_buffer_rows; ++rows) {
        ASSERT_LE(scale_blocks(config, shape, 0, rows).num_bytes(), most) << rows;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
