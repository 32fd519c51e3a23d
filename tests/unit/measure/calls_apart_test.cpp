// SPDX-License-Identifier: Apache-2.0

#include "measure/calls_apart.h"

#include <set>

#include <gtest/gtest.h>

#include "known_meter.h"
#include "support/ranks.h"

namespace switchyard::measure {
namespace {

TEST(CallsApartTest, LatenessIsSeededAndInRange) {
  std::set<std::int64_t> different;
  for (int rank = 0; rank < 4; ++rank) {
    for (int call = 0; call < 100; ++call) {
      const std::int64_t late = late_ns(7, rank, call);
      EXPECT_GE(late, 0);
      EXPECT_LE(late, kMaxLateNs);
      EXPECT_EQ(late, late_ns(7, rank, call));
      different.insert(late);
    }
  }
  EXPECT_GT(different.size(), 390u);
  EXPECT_LT(*different.begin(), kMaxLateNs / 50);
  EXPECT_GT(*different.rbegin(), kMaxLateNs - kMaxLateNs / 50);
  EXPECT_NE(late_ns(7, 0, 0), late_ns(8, 0, 0));
}

// Rank 1 takes twice as long as rank 0: 2 and 4 us, then 4 and 8 us.
TEST(CallsApartTest, TheSlowestRankCounts) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(group.rank() == 1 ? 2 : 1);
    CallsApart calls(group, meter, Before::kNothing, 1);
    for (int round = 0; round < 2; ++round) {
      calls.restart();
      calls.enqueue(kStream, [&] { meter.advance(2); });
      calls.enqueue(kStream, [&] { meter.advance(4); });
      EXPECT_EQ(calls.num_calls(), 2);
      const std::vector<double> us = calls.times();
      ASSERT_EQ(us.size(), 2u);
      EXPECT_NEAR(us[0], 4, 1e-9);
      EXPECT_NEAR(us[1], 8, 1e-9);
    }
    EXPECT_EQ(meter.num_other_codes(), 0);
  });
}

// From when the last rank begins to when the last rank ends.
TEST(CallsApartTest, LatenessIsNotPartOfACall) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1);
    CallsApart calls(group, meter, Before::kBeLate, 3);
    constexpr int kCalls = 5;
    for (int i = 0; i < kCalls; ++i) {
      const std::int64_t last = std::max(late_ns(3, 0, i), late_ns(3, 1, i));
      const auto wait = static_cast<double>(last - late_ns(3, group.rank(), i));
      calls.enqueue(kStream, [&] { meter.advance(1e-3 * wait + 6); });
    }
    for (const double us : calls.times()) EXPECT_NEAR(us, 6, 1e-9);
  });
}

TEST(CallsApartTest, OtherCodeRunsBeforeEachCall) {
  test::run_ranks(2, [](const Group& group) {
    KnownMeter meter(1);
    CallsApart calls(group, meter, Before::kOtherCode, 1);
    for (int i = 0; i < 3; ++i) calls.enqueue(kStream, [&] { meter.advance(1); });
    EXPECT_EQ(meter.num_other_codes(), 3);
    EXPECT_NEAR(calls.times().at(2), 1, 1e-9);
  });
}

}  // namespace
}  // namespace switchyard::measure
