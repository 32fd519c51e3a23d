// SPDX-License-Identifier: Apache-2.0

#include "engine/channel_numbers.h"

#include <climits>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ChannelNumbersTest, EveryTagOfMpiIsUsed) {
  EXPECT_EQ(ChannelNumbers::max_channels(MessageChannel::kMaxTag), 1);  // what every MPI has
  EXPECT_EQ(ChannelNumbers::max_channels(2 * MessageChannel::kMaxTag), 1);
  EXPECT_EQ(ChannelNumbers::max_channels(2 * MessageChannel::kMaxTag + 1), 2);
  EXPECT_EQ(ChannelNumbers::max_channels(INT_MAX), 65536);
}

TEST(ChannelNumbersTest, LargestClaimCounts) {
  ChannelNumbers ahead;
  ChannelNumbers behind;
  for (int i = 0; i < 5; ++i) {
    const int own = ahead.claim();
    EXPECT_TRUE(ahead.take(own, own));
  }
  EXPECT_EQ(ahead.claim(), 5);
  const int claimed = behind.claim();
  EXPECT_EQ(claimed, 0);
  EXPECT_TRUE(ahead.take(5, 5));
  EXPECT_TRUE(behind.take(claimed, 5));
  EXPECT_EQ(behind.claim(), 6);
}

// Thread A comes first on one rank, thread B on the other: both would get the larger claim, 1.
TEST(ChannelNumbersTest, TwoThreadsNeverGetOneNumber) {
  ChannelNumbers first;
  ChannelNumbers second;
  const int first_a = first.claim();
  const int first_b = first.claim();
  const int second_b = second.claim();
  const int second_a = second.claim();
  ASSERT_EQ(first_b, 1);
  ASSERT_EQ(second_a, 1);
  EXPECT_FALSE(first.take(first_a, 1));  // B's there
  EXPECT_TRUE(second.take(second_a, 1));
  EXPECT_TRUE(first.take(first_b, 1));
  EXPECT_FALSE(second.take(second_b, 1));
  // Each tries again; whoever comes first now gets a number that the other does not.
  const int again = std::max(first.claim(), second.claim());
  EXPECT_EQ(again, 2);
}

}  // namespace
}  // namespace switchyard
