// SPDX-License-Identifier: Apache-2.0
//
// Who passes on whose tokens, and that what crosses has room and does not overlap.

#include "plan/hosts_layout.h"

#include <set>

#include <gmock/gmock.h>

#include "plan/host_map.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostMapTest, RanksOfEqualLocalIndexPassOn) {
  const HostMap map({0, 0, 1, 1});
  EXPECT_EQ(map.num_hosts(), 2);
  EXPECT_EQ(map.forwarder(0, 1), 2);
  EXPECT_EQ(map.forwarder(1, 1), 3);
  EXPECT_EQ(map.forwarder(3, 0), 1);
  EXPECT_THAT(map.forwarded_by(2), ElementsAre(0));
  EXPECT_EQ(map.max_forwarded(), 1u);
}

// 3 + 1: the lone rank passes on the tokens of three, one of the three those of it.
TEST(HostMapTest, HostsMayDiffer) {
  const HostMap map({7, 7, 7, 3});
  EXPECT_EQ(map.host_of(3), 0);  // numbers ascend
  EXPECT_EQ(map.local_of(2), 2);
  EXPECT_THAT(map.forwarded_by(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(map.forwarded_by(0), ElementsAre(3));
  EXPECT_THAT(map.forwarded_by(1), IsEmpty());
  EXPECT_EQ(map.max_forwarded(), 3u);
  EXPECT_THAT(map.linked_with(3), ElementsAre(0, 1, 2));
  for (const int rank : {0, 1, 2}) EXPECT_THAT(map.linked_with(rank), ElementsAre(3));
  EXPECT_EQ(map.max_host_size(), 3u);
}

TEST(HostMapTest, EachSourceHasOneForwarderOnEachOtherHost) {
  const std::vector<int> hosts{5, 2, 2, 9, 9, 5, 9};
  const HostMap map(hosts);
  std::multiset<std::pair<int, int>> passed;  // source, host
  for (int rank = 0; rank < 7; ++rank) {
    for (const int source : map.forwarded_by(rank)) passed.insert({source, map.host_of(rank)});
  }
  EXPECT_EQ(passed.size(), 7u * 2);
  EXPECT_EQ((std::set<std::pair<int, int>>(passed.begin(), passed.end()).size()), 7u * 2);
}

TEST(HostsLayoutTest, PartsLieBehindTheSlotSetsAndDoNotOverlap) {
  WindowShape shape;
  shape.max_tokens = 5;
  shape.num_ranks = 4;
  shape.num_topk = 3;
  shape.num_sets = 2;
  shape.payload_bytes = 100;
  shape.combine_row_bytes = 60;
  const WindowLayout window = make_window_layout(shape);
  const HostsLayout layout = make_hosts_layout(window, {2, 3, 2}, false);
  EXPECT_EQ(layout.part(2, 0), window.total_bytes);
  EXPECT_EQ(layout.part(2, 1), window.total_bytes + layout.part_bytes);
  EXPECT_EQ(layout.part(3, 0), window.total_bytes + 2 * layout.part_bytes);
  EXPECT_EQ(layout.part(4, 1), layout.part(2, 1));
  EXPECT_EQ(layout.window_bytes, window.total_bytes + 4 * layout.part_bytes);
  EXPECT_GE(layout.routing_in_part, layout.arrived_in_part(2) + kLineBytes);
  EXPECT_GE(layout.rows_in_part - layout.routing_in_part, 5u * 3 * 6);
  EXPECT_GE(layout.part_bytes - layout.rows_in_part, 5u * 3 * 64);  // columns are choices
  EXPECT_GE(layout.part_bytes - layout.rows_in_part, 5u * 112);
  // What two sources get back, with a header for each rank of this host; one other host.
  EXPECT_GE(layout.weights_out - layout.rows_out, 2u * (5 * 3 * 64 + 3 * 16));
  EXPECT_GE(layout.weights_in - layout.rows_in, 5u * 3 * 64 + 4 * 16);
  EXPECT_EQ(layout.private_bytes % kLineBytes, 0u);
}

}  // namespace
}  // namespace switchyard
