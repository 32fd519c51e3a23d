// SPDX-License-Identifier: Apache-2.0

#include "plan/host_crossings.h"

#include <gmock/gmock.h>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

// Two experts per rank: 0 and 1 on rank 0, ..., 6 and 7 on rank 3.
constexpr ExpertOwnership kExperts{8, 4};

std::int64_t count(const std::vector<std::int32_t>& ids, std::int64_t num_topk,
                   const HostsOfRanks& hosts, int rank) {
  const auto num_tokens = static_cast<std::int64_t>(ids.size()) / num_topk;
  return count_host_crossings(TensorView::of(ids.data(), {num_tokens, num_topk}), kExperts, hosts,
                              rank);
}

TEST(HostCrossingsTest, EachOtherHostCountsOncePerToken) {
  const HostsOfRanks hosts{0, 0, 1, 1};
  EXPECT_EQ(count({0, 2}, 2, hosts, 0), 0);  // both on host 0
  EXPECT_EQ(count({4, 6}, 2, hosts, 0), 1);  // ranks 2 and 3, one host
  EXPECT_EQ(count({0, 7}, 2, hosts, 3), 1);  // seen from host 1
  EXPECT_EQ(count({4, 7, 0, 1, -1, 5}, 2, hosts, 0), 2);
  EXPECT_EQ(count({4, 6, 2, 0}, 4, {0, 1, 2, 3}, 0), 3);
  EXPECT_EQ(count({4, 6, 2, 0}, 4, {0, 0, 0, 0}, 0), 0);
  EXPECT_EQ(count({7, 0}, 2, {5, 5, 5, 9}, 1), 1);  // hosts may have any number, and any size
  EXPECT_EQ(count({}, 2, hosts, 0), 0);
}

TEST(HostCrossingsTest, IdsMayBeWide) {
  const std::int64_t ids[] = {0, 5, -1, -1};
  EXPECT_EQ(count_host_crossings(TensorView::of(ids, {2, 2}), kExperts, {0, 0, 1, 1}, 1), 1);
}

TEST(HostCrossingsTest, EvenMapsShareHostsAmongConsecutiveRanks) {
  EXPECT_THAT(even_host_map(4, 2), ::testing::ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(even_host_map(3, 3), ::testing::ElementsAre(0, 1, 2));
  expect_invalid("4 ranks on 3 hosts", [] { (void)even_host_map(4, 3); });
  expect_invalid("4 ranks on 0 hosts", [] { (void)even_host_map(4, 0); });
}

TEST(HostCrossingsTest, ErrorsNameTheValues) {
  expect_invalid("topk_ids[1, 0] is 8, must be from 0 to 7, or -1", [] {
    (void)count({0, 1, 8, 2}, 2, {0, 0, 1, 1}, 0);
  });
  expect_invalid("hosts of 3 ranks and rank 0, must be those of a group of 4", [] {
    (void)count({0, 1}, 2, {0, 0, 1}, 0);
  });
}

}  // namespace
}  // namespace switchyard
