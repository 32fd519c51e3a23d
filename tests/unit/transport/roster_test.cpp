// SPDX-License-Identifier: Apache-2.0

#include "transport/roster.h"

#include <map>

#include <gmock/gmock.h>

#include "switchyard/error.h"

#include "core/clock.h"
#include "transport/control_block.h"

namespace switchyard {
namespace {

using namespace member_protocol;
using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

class RosterTest : public ::testing::Test {
 protected:
  void join_all(std::uint32_t size) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(roster_.join({rank, size, 2000}, now_));
    }
  }
  int count(int rank, Event event) {
    int num = 0;
    for (const std::string& text : sent_[rank]) num += text[0] == static_cast<char>(event) ? 1 : 0;
    return num;
  }
  std::optional<End> end_of(int rank) {
    for (const std::string& text : sent_[rank]) {
      if (text[0] == static_cast<char>(Event::kEnded)) return End::parse(text.substr(1));
    }
    return std::nullopt;
  }
  // A beat of each of these ranks, then a look, every kBeatMs.
  void pass_time(std::int64_t ms, const std::vector<int>& alive) {
    for (std::int64_t passed = 0; passed < ms; passed += kBeatMs) {
      now_ += kBeatMs * kMs;
      for (const int rank : alive) roster_.beat(rank, {}, now_);
      roster_.look(now_);
    }
  }

  std::int64_t now_ = 1000 * kMs;
  std::map<int, std::vector<std::string>> sent_;
  Roster roster_{[this](int rank, const std::string& event) { sent_[rank].push_back(event); }};
};

TEST_F(RosterTest, EachNumberJoinsOnce) {
  EXPECT_TRUE(roster_.is_empty());
  EXPECT_FALSE(roster_.join({3, 3, 1000}, now_));
  EXPECT_FALSE(roster_.join({0, 0, 1000}, now_));
  EXPECT_FALSE(roster_.join({0, 100'000, 1000}, now_));
  EXPECT_TRUE(roster_.join({2, 3, 1000}, now_));
  EXPECT_FALSE(roster_.join({2, 3, 1000}, now_));
  EXPECT_FALSE(roster_.join({1, 4, 1000}, now_));
  EXPECT_TRUE(roster_.join({1, 3, 1000}, now_));
}

TEST_F(RosterTest, MeetingsEndWhenAllAreThere) {
  join_all(3);
  roster_.meet(0, 1);
  roster_.meet(2, 1);
  EXPECT_EQ(count(0, Event::kMet), 0);
  EXPECT_EQ(get_u64(*roster_.answer(Question::kWhoIsMissing, 1), 0), 1u);
  roster_.meet(0, 2);  // it may be ahead
  roster_.meet(1, 1);
  EXPECT_EQ(roster_.answer(Question::kWhoIsMissing, 1), std::nullopt);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(count(rank, Event::kMet), 1);
}

TEST_F(RosterTest, LostIsWhoDidNotLeave) {
  join_all(3);
  roster_.leave(1, false);
  roster_.lose(1);
  EXPECT_EQ(end_of(0), std::nullopt);
  EXPECT_EQ(count(0, Event::kLeft), 1);
  roster_.lose(2);
  ASSERT_TRUE(end_of(0));
  EXPECT_EQ(end_of(0)->culprit, 2);
  EXPECT_EQ(end_of(0)->code, abort_code(Errc::kPeerLost));
  EXPECT_EQ(end_of(1), std::nullopt);  // it is gone
  roster_.end({abort_code(Errc::kAborted), 0, 0, "late"});
  EXPECT_EQ(count(0, Event::kEnded), 1);
}

TEST_F(RosterTest, WhoHasLeftAndListensLearnsOfLosses) {
  join_all(3);
  roster_.leave(1, false);
  EXPECT_EQ(count(1, Event::kLeft), 1);  // it knows that it is known
  roster_.leave(0, false);
  EXPECT_EQ(count(1, Event::kLeft), 2);
  roster_.lose(2);
  ASSERT_TRUE(end_of(1));
  EXPECT_EQ(end_of(1)->culprit, 2);
}

TEST_F(RosterTest, ServerIsNeededUntilTheLastRankIsGone) {
  EXPECT_FALSE(roster_.is_over());
  join_all(3);
  roster_.leave(0, false);
  roster_.leave(2, false);
  EXPECT_FALSE(roster_.is_over());
  roster_.leave(1, false);
  EXPECT_TRUE(roster_.is_over());
}

// Its group is well: only who has still to end, or to leave, hears of it.
TEST_F(RosterTest, LossOfARankWhoseEndIsAwaitedIsTold) {
  join_all(3);
  roster_.leave(1, true);
  roster_.leave(2, true);
  EXPECT_FALSE(roster_.only_awaits_ends());
  roster_.lose(1);
  EXPECT_EQ(count(0, Event::kLost), 1);
  EXPECT_EQ(count(2, Event::kLost), 1);
  EXPECT_EQ(end_of(0), std::nullopt);
  EXPECT_FALSE(roster_.is_over());
  roster_.leave(0, true);
  EXPECT_TRUE(roster_.is_over());  // who is there knows
}

TEST_F(RosterTest, SilenceOfARankWhoseEndIsAwaitedIsALoss) {
  join_all(3);
  for (const int rank : {0, 1, 2}) roster_.leave(rank, true);
  pass_time(1750, {0, 2});
  EXPECT_EQ(count(0, Event::kLost), 0);
  EXPECT_TRUE(roster_.only_awaits_ends());
  pass_time(1000, {0, 2});
  EXPECT_EQ(count(0, Event::kLost), 1);
  EXPECT_EQ(end_of(0), std::nullopt);
  EXPECT_TRUE(roster_.is_over());
}

TEST_F(RosterTest, ServerIsNeededUntilNobodysEndIsAwaited) {
  join_all(2);
  roster_.leave(0, true);
  roster_.leave(1, true);
  EXPECT_FALSE(roster_.is_over());
  roster_.leave(1, false);
  roster_.lose(1);
  EXPECT_EQ(count(0, Event::kLost), 0);
  EXPECT_TRUE(roster_.only_awaits_ends());
  roster_.leave(0, false);
  EXPECT_FALSE(roster_.only_awaits_ends());
  EXPECT_TRUE(roster_.is_over());
}

TEST_F(RosterTest, NobodyNeedsTheServerOfAGroupThatHasEnded) {
  join_all(3);
  roster_.lose(1);
  EXPECT_TRUE(roster_.is_over());
}

TEST_F(RosterTest, SilenceIsALoss) {
  join_all(3);
  pass_time(1900, {0, 2});
  EXPECT_EQ(end_of(0), std::nullopt);
  pass_time(500, {0, 2});
  ASSERT_TRUE(end_of(0));
  EXPECT_EQ(end_of(0)->culprit, 1);
  EXPECT_THAT(end_of(0)->reason, HasSubstr("no sign of life for 2.0 s"));
}

// The server's process was stopped, perhaps with all others: nobody was silent then.
TEST_F(RosterTest, TimeThatNobodyLookedAtIsNoSilence) {
  join_all(2);
  pass_time(500, {0, 1});
  now_ += 60'000 * kMs;
  roster_.look(now_);
  EXPECT_EQ(end_of(0), std::nullopt);
  pass_time(1000, {0, 1});
  EXPECT_EQ(end_of(0), std::nullopt);
}

TEST_F(RosterTest, PlacesAreThoseOfTheLastBeat) {
  join_all(2);
  roster_.beat(1, {3, 1'000'000'000'000}, now_);
  const auto place = Place::parse(*roster_.answer(Question::kPlaceOf, 1));
  EXPECT_EQ(place->phase, 3u);
  EXPECT_EQ(place->call, 1'000'000'000'000u);
  EXPECT_EQ(roster_.answer(Question::kPlaceOf, 2), std::nullopt);
  EXPECT_EQ(roster_.answer(static_cast<Question>(9), 0), std::nullopt);
}

TEST_F(RosterTest, WhoComesLateHearsWhatWas) {
  ASSERT_TRUE(roster_.join({0, 3, 2000}, now_));
  ASSERT_TRUE(roster_.join({1, 3, 2000}, now_));
  roster_.leave(0, false);
  roster_.end({abort_code(Errc::kAborted), 1, 1, "stop"});
  ASSERT_TRUE(roster_.join({2, 3, 2000}, now_));
  EXPECT_TRUE(sent_[2].empty());
  roster_.greet(2);
  EXPECT_EQ(count(2, Event::kLeft), 1);
  EXPECT_EQ(end_of(2)->reason, "stop");
}

}  // namespace
}  // namespace switchyard
