// SPDX-License-Identifier: Apache-2.0
//
// Kernels of a GPU that wait for other ranks find room beside one another, and beside messages.

#include "exchange/push/kernel_room.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "plan/push_grid.h"

namespace switchyard {
namespace {

constexpr int kSms = 132;
constexpr int kMessageSms = 16;

// A stream is a name here; nothing is launched.
Stream stream(std::uintptr_t name) { return Stream::cuda(reinterpret_cast<CUstream_st*>(name), 0); }
const Stream kA = stream(16);
const Stream kB = stream(32);

KernelRooms one_host(int max_in_flight, const ExchangeOptions& options = {}) {
  return {{.num_sms = kSms, .max_in_flight = max_in_flight}, options};
}
KernelRooms hosts(int max_in_flight, const ExchangeOptions& options = {}) {
  return {{.num_sms = kSms, .max_in_flight = max_in_flight, .num_message_sms = kMessageSms},
          options};
}
// Of a side stream.
int side_ctas(KernelRooms rooms) {
  rooms.begin(0, kA);
  return rooms.of(kB).num_ctas;
}

TEST(KernelRoomTest, TheOnlyHandleMayFillTheGpuInAnyStream) {
  for (KernelRooms rooms : {one_host(1), hosts(1)}) {
    EXPECT_FALSE(rooms.has_sides());
    EXPECT_FALSE(rooms.begin(0, kA));
    for (const Stream& each : {kA, kB}) {
      EXPECT_EQ(rooms.of(each).num_ctas, 264);
      EXPECT_TRUE(rooms.of(each).is_whole_gpu);
      EXPECT_TRUE(rooms.of(each).is_programmatic);
    }
  }
  EXPECT_FALSE(one_host(1, {.programmatic_launch = false}).of(kA).is_programmatic);
}

TEST(KernelRoomTest, SideStreamsShareHalf) {
  EXPECT_EQ(side_ctas(one_host(2)), 132);
  EXPECT_EQ(side_ctas(one_host(3)), 66);
  EXPECT_EQ(side_ctas(one_host(4)), 44);
  EXPECT_EQ(side_ctas(one_host(45)), 3);
  EXPECT_EQ(side_ctas(one_host(64)), 3);
}

TEST(KernelRoomTest, SideStreamsLeaveSmsForMessages) {
  EXPECT_EQ(side_ctas(hosts(2)), 116);
  EXPECT_EQ(side_ctas(hosts(3)), 58);
  EXPECT_EQ(side_ctas(hosts(39)), 3);
  EXPECT_EQ(side_ctas(hosts(64)), 3);
}

TEST(KernelRoomTest, MoreHandlesThanThereIsRoomForShareLanes) {
  EXPECT_EQ(one_host(45).num_shared_lanes(), 0u);
  EXPECT_EQ(one_host(46).num_shared_lanes(), 44u);
  EXPECT_EQ(one_host(64).num_shared_lanes(), 44u);
  EXPECT_EQ(hosts(39).num_shared_lanes(), 0u);
  EXPECT_EQ(hosts(40).num_shared_lanes(), 38u);
  EXPECT_EQ(hosts(64).num_shared_lanes(), 38u);
}

TEST(KernelRoomTest, SideStreamsTogetherKeepToTheirRoom) {
  for (const int sms : {1, 3, 19, 20, 56, 108, 132, 148}) {
    for (const int message_sms : {0, kMessageSms}) {
      for (int max_in_flight = 2; max_in_flight <= 64; ++max_in_flight) {
        SCOPED_TRACE(std::to_string(sms) + " SMs, " + std::to_string(max_in_flight) + " handles");
        const KernelRooms rooms(
            {.num_sms = sms, .max_in_flight = max_in_flight, .num_message_sms = message_sms}, {});
        const auto num_sides = static_cast<std::size_t>(max_in_flight) - 1;
        const std::size_t lanes = rooms.num_shared_lanes();
        EXPECT_LT(lanes, num_sides);
        const auto at_once = static_cast<int>(lanes == 0 ? num_sides : lanes);
        EXPECT_GE(side_ctas(rooms), kMinCtas);
        EXPECT_LE(at_once * side_ctas(rooms), std::max(kMinCtas, sms - message_sms));
      }
    }
  }
}

TEST(KernelRoomTest, MainIsTheStreamOfADispatchIntoSlot0) {
  KernelRooms rooms = one_host(3);
  EXPECT_TRUE(rooms.is_side(kA));
  EXPECT_TRUE(rooms.begin(0, kA));
  EXPECT_FALSE(rooms.begin(0, kA)) << "it is the main one already";
  EXPECT_FALSE(rooms.begin(1, kB)) << "another slot";
  EXPECT_FALSE(rooms.is_side(kA));
  EXPECT_TRUE(rooms.is_side(kB));
  EXPECT_EQ(rooms.of(kA).num_ctas, 264);
  EXPECT_TRUE(rooms.of(kA).is_whole_gpu);
  EXPECT_EQ(rooms.of(kB).num_ctas, 66);
  EXPECT_FALSE(rooms.of(kB).is_whole_gpu);
  EXPECT_TRUE(rooms.begin(0, kB));
  EXPECT_TRUE(rooms.is_side(kA));
  EXPECT_FALSE(rooms.is_side(kB));
}

TEST(KernelRoomTest, KernelsBesideMessagesOfTheirCallLeaveSms) {
  KernelRooms rooms = hosts(3);
  rooms.begin(0, kA);
  EXPECT_EQ(rooms.beside_messages(kA).num_ctas, 116);
  EXPECT_FALSE(rooms.beside_messages(kA).is_whole_gpu);
  EXPECT_EQ(rooms.beside_messages(kB).num_ctas, 58);
  EXPECT_EQ(hosts(1, {.num_ctas = 20}).beside_messages(kA).num_ctas, 20);
}

TEST(KernelRoomTest, RanksThatShareAGpuGetEqualShares) {
  const auto shared = [](int num_ranks, int max_in_flight) {
    return KernelRooms({.num_sms = kSms,
                        .num_ranks = num_ranks,
                        .max_in_flight = max_in_flight,
                        .num_message_sms = kMessageSms},
                       {.programmatic_launch = true});
  };
  KernelRooms rooms = shared(4, 2);
  EXPECT_FALSE(rooms.begin(0, kA));
  EXPECT_FALSE(rooms.has_sides());
  EXPECT_EQ(rooms.num_shared_lanes(), 0u);
  for (const KernelRoom& room : {rooms.of(kA), rooms.of(kB), rooms.beside_messages(kB)}) {
    EXPECT_EQ(room.num_ctas, 33);
    EXPECT_FALSE(room.is_whole_gpu);
    EXPECT_FALSE(room.is_programmatic);
  }
  EXPECT_EQ(shared(64, 2).of(kA).num_ctas, 3);
}

TEST(KernelRoomTest, OptionsLimitEveryKernel) {
  KernelRooms rooms = one_host(3, {.num_ctas = 8});
  rooms.begin(0, kA);
  EXPECT_EQ(rooms.of(kA).num_ctas, 8);
  EXPECT_FALSE(rooms.of(kA).is_whole_gpu);
  EXPECT_EQ(rooms.of(kB).num_ctas, 8);
  EXPECT_EQ(one_host(1, {.num_ctas = 1}).of(kA).num_ctas, 3) << "a dispatch has three kinds";
  EXPECT_EQ(one_host(1, {.num_ctas = 1000}).of(kA).num_ctas, 264);
}

}  // namespace
}  // namespace switchyard
