// SPDX-License-Identifier: Apache-2.0
//
// Which calls go straight to their places.

#include "plan/push_path.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

ExchangeConfig config_of(Layout layout, std::int64_t max_tokens) {
  ExchangeConfig config;
  config.layout = layout;
  config.max_tokens_per_rank = max_tokens;
  return config;
}

constexpr PathFacts kHopper{.num_ranks = 2, .gpu_can = true};

TEST(PushPathTest, CallsAboveTheCrossoverGoDirectly) {
  for (const Layout layout : {Layout::kCompact, Layout::kByRank, Layout::kAllGather}) {
    EXPECT_FALSE(can_be_direct(config_of(layout, kMaxSlotTokens), kHopper, PushPath::kAuto));
    EXPECT_TRUE(can_be_direct(config_of(layout, kMaxSlotTokens + 1), kHopper, PushPath::kAuto));
    EXPECT_TRUE(can_be_direct(config_of(layout, 1), kHopper, PushPath::kDirect));
    EXPECT_FALSE(can_be_direct(config_of(layout, 4096), kHopper, PushPath::kSlots));
  }
  EXPECT_FALSE(is_direct(PushPath::kAuto, kMaxSlotTokens, false));
  EXPECT_TRUE(is_direct(PushPath::kAuto, kMaxSlotTokens + 1, false));
  EXPECT_FALSE(is_direct(PushPath::kAuto, kMaxSlotTokens + 1, true));
}

TEST(PushPathTest, WhatCannotGoDirectly) {
  const auto can = [](const ExchangeConfig& config, const PathFacts& facts) {
    return can_be_direct(config, facts, PushPath::kDirect);
  };
  const ExchangeConfig good = config_of(Layout::kCompact, 4096);
  ASSERT_TRUE(can(good, kHopper));
  EXPECT_FALSE(can(config_of(Layout::kExpanded, 4096), kHopper));
  EXPECT_FALSE(can(config_of(Layout::kBatched, 4096), kHopper));
  EXPECT_FALSE(can(good, {.num_ranks = 2}));
  EXPECT_FALSE(can(good, {.num_ranks = 1, .gpu_can = true}));
  EXPECT_FALSE(can(good, {.num_ranks = 2, .is_over_hosts = true, .gpu_can = true}));
  EXPECT_FALSE(can(good, {.num_ranks = 2, .takes_memory_to_size = true, .gpu_can = true}));
  ExchangeConfig returned = good;
  returned.combine_scheme = schemes::kFp8Block;
  EXPECT_FALSE(can(returned, kHopper));
  ExchangeConfig per_expert = good;
  per_expert.reduce = Reduce::kPerExpert;
  EXPECT_FALSE(can(per_expert, kHopper));
}

TEST(PushPathTest, OtherTextsAreRefused) {
  test::expect_error(Errc::kInvalidArgument, "SWITCHYARD_PUSH_PATH is \"slot\"",
                     [] { parse_push_path("slot"); });
}

}  // namespace
}  // namespace switchyard
