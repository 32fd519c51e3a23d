// SPDX-License-Identifier: Apache-2.0

#include "plan/window_layout.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/error.h"

namespace switchyard {
namespace {

WindowShape small_shape() {
  WindowShape shape;
  shape.max_tokens = 5;
  shape.num_ranks = 3;
  shape.num_topk = 4;
  shape.num_sets = 3;
  shape.payload_bytes = 37;
  shape.scale_bytes = 8;
  shape.combine_row_bytes = 74;
  return shape;
}

// No two regions of a window overlap, and all lie inside it.
TEST(WindowLayoutTest, RegionsAreDisjoint) {
  for (const bool every_choice : {false, true}) {
    WindowShape shape = small_shape();
    shape.keeps_every_choice = every_choice;
    const WindowLayout layout = make_window_layout(shape);
    std::vector<int> owner(layout.total_bytes, 0);
    const auto claim = [&](std::size_t offset, std::size_t bytes) {
      ASSERT_LE(offset + bytes, layout.total_bytes);
      for (std::size_t i = offset; i < offset + bytes; ++i) ASSERT_EQ(owner[i]++, 0) << i;
    };
    claim(layout.consumed(), kLineBytes);
    for (std::uint64_t set = 0; set < 3; ++set) {
      claim(layout.header(set), kLineBytes);
      for (int peer = 0; peer < 3; ++peer) claim(layout.arrived(set, peer), kLineBytes);
      claim(layout.ids(set), 5 * 4 * 2);
      claim(layout.weights(set), 5 * 4 * 4);
      for (int t = 0; t < 5; ++t) {
        for (int c = 0; c < layout.num_columns(); ++c) claim(layout.partial(set, t, c), 74);
      }
    }
  }
}

// More ranks than choices: a column of each rank where each returns a row.
TEST(WindowLayoutTest, ColumnsAreChoicesOrRanks) {
  WindowShape shape = small_shape();
  shape.num_topk = 2;
  EXPECT_EQ(make_window_layout(shape).num_columns(), 2);
  shape.returns_everywhere = true;
  const WindowLayout everywhere = make_window_layout(shape);
  EXPECT_EQ(everywhere.num_columns(), 3);
  EXPECT_EQ(everywhere.column(2, -1), 2);
}

TEST(WindowLayoutTest, RowsAreAlignedAndDisjoint) {
  const WindowLayout layout = make_window_layout(small_shape());
  EXPECT_EQ(layout.scales_in_row, 40u);  // 37 bytes of elements, then f32 scales
  EXPECT_EQ(layout.row_stride, 48u);
  for (std::uint64_t call = 1; call < 7; ++call) {
    for (int t = 0; t < 5; ++t) {
      EXPECT_EQ(layout.row(call, t) % kRowAlignment, 0u);
      EXPECT_LE(layout.row(call, t) + 48, layout.set(call) + layout.set_bytes);
    }
    EXPECT_EQ(layout.row(call, 0), layout.row(call + 3, 0));
    EXPECT_NE(layout.row(call, 0), layout.row(call + 1, 0));
  }
}

TEST(WindowLayoutTest, FewerRanksThanChoicesNeedFewerColumns) {
  WindowShape shape = small_shape();
  EXPECT_EQ(make_window_layout(shape).num_columns(), 3);
  EXPECT_EQ(make_window_layout(shape).column(2, 0), 2);
  shape.num_ranks = 9;
  EXPECT_EQ(make_window_layout(shape).num_columns(), 4);
  EXPECT_EQ(make_window_layout(shape).column(8, 1), 1);
  shape.keeps_every_choice = true;
  shape.num_ranks = 2;
  EXPECT_EQ(make_window_layout(shape).num_columns(), 4);
}

TEST(WindowLayoutTest, OverflowIsAnError) {
  WindowShape shape = small_shape();
  shape.max_tokens = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_THROW(make_window_layout(shape), Error);
  // Rounding up must not overflow either: the last bytes of the address space.
  for (std::size_t less = 1; less < 400; ++less) {
    shape = small_shape();
    shape.max_tokens = 1;
    shape.payload_bytes = std::numeric_limits<std::size_t>::max() - less;
    EXPECT_THROW(make_window_layout(shape), Error) << less;
    std::swap(shape.payload_bytes, shape.extra_bytes);
    EXPECT_THROW(make_window_layout(shape), Error) << less;
    std::swap(shape.extra_bytes, shape.combine_row_bytes);
    EXPECT_THROW(make_window_layout(shape), Error) << less;
  }
}

TEST(WindowLayoutTest, NoTokensNeedNoRows) {
  WindowShape shape = small_shape();
  shape.max_tokens = 0;
  EXPECT_EQ(make_window_layout(shape).total_bytes, kLineBytes * (1 + 3 * 4));
}

}  // namespace
}  // namespace switchyard
