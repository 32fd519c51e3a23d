// SPDX-License-Identifier: Apache-2.0

#include "plan/message_layout.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

TEST(RoutingMessageTest, PartsFollowEachOtherWithoutOverlap) {
  RoutingMessage all{8, 3, 5, false, true, true};
  EXPECT_EQ(all.weights(), 0u);
  EXPECT_EQ(all.ids(), 5u * 3 * 4);
  EXPECT_EQ(all.size_bytes(), 5u * 3 * 6);
  RoutingMessage list{8, 3, 5, true, true, true};
  EXPECT_EQ(list.tokens(), 8u * 4);
  EXPECT_EQ(list.weights(), 8u * 4 + 5 * 4);
  EXPECT_EQ(list.size_bytes(), 8u * 4 + 5 * 4 + 5 * 3 * 6);
  // An earlier routing holds: only weights travel.
  list.has_ids = false;
  EXPECT_EQ(list.size_bytes(), 5u * 3 * 4);
  list.has_weights = false;
  EXPECT_EQ(list.size_bytes(), 0u);
}

TEST(MessageLayoutTest, HasRoomForTheLargestCall) {
  WindowShape shape;
  shape.max_tokens = 10;
  shape.num_ranks = 4;
  shape.num_topk = 3;
  shape.payload_bytes = 100;
  shape.combine_row_bytes = 60;
  const WindowLayout window = make_window_layout(shape);
  EXPECT_EQ(window.row_stride, 112u);
  EXPECT_EQ(window.combine_row_stride, 64u);
  const MessageLayout layout = make_message_layout(window, 8, false, false);
  // A token goes to three ranks, and tokens of all ranks may come here.
  EXPECT_GE(layout.weights_out - layout.rows_out, 10u * 3 * 112);
  EXPECT_GE(layout.weights_out - layout.rows_out, 4u * 10 * 64 + 4 * 16);
  EXPECT_GE(layout.weights_in - layout.rows_in, 4u * 10 * 112);
  EXPECT_GE(layout.rows_in - layout.routing_in, 4u * 10 * 3 * 6);
  EXPECT_LT(layout.rows_out - layout.routing_out, 2u * 10 * 3 * 6);
  EXPECT_GE(layout.total_bytes - layout.weights_in, 10u * 3 * 4);
  // Every choice returns a row; one row goes to all.
  shape.keeps_every_choice = true;
  const MessageLayout all = make_message_layout(make_window_layout(shape), 8, true, true);
  EXPECT_GE(all.weights_out - all.rows_out, 4u * 10 * 3 * 64);
  EXPECT_GE(all.rows_out - all.routing_out, 4u * (8 * 4 + 10 * 4 + 10 * 3 * 6));
}

TEST(MessageLayoutTest, SizesThatOverflowAreRefused) {
  WindowShape shape;
  shape.max_tokens = std::int64_t{1} << 40;
  shape.num_ranks = 1 << 15;
  shape.num_topk = 64;
  WindowLayout window;
  window.shape = shape;
  window.row_stride = std::size_t{1} << 20;
  test::expect_invalid("overflows", [&] { (void)make_message_layout(window, 8, false, false); });
}

}  // namespace
}  // namespace switchyard
