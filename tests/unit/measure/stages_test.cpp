// SPDX-License-Identifier: Apache-2.0

#include "measure/stages.h"

#include <gtest/gtest.h>

namespace switchyard::measure {
namespace {

using cuda::CtaRole;
using cuda::CtaStages;
using cuda::KernelStages;

const StageTimes* find(const std::vector<StageTimes>& rows, const std::string& kernel,
                       const std::string& role, const std::string& stage) {
  for (const StageTimes& row : rows) {
    if (row.kernel == kernel && row.role == role && row.stage == stage) return &row;
  }
  return nullptr;
}

// Starts at 1000 ns: two senders and a receiver, which has no first store.
std::vector<KernelStages> one_run(std::uint64_t later) {
  const CtaStages first{CtaRole::kSend, {1000, 1200, 1500, 0, 0, 0, 2000}};
  const CtaStages second{CtaRole::kSend, {1100, 1300, 1700 + later, 0, 0, 0, 2100}};
  const CtaStages receiver{CtaRole::kReceive, {1050, 1250, 0, 2000, 2200, 2600, 3000}};
  const CtaStages sum{CtaRole::kReceive, {3400, 3500, 0, 0, 0, 4000, 4400}};
  return {{false, {first, second, receiver}}, {true, {sum}}};
}

TEST(StagesTest, TimesAreThoseAfterTheFirstCtaBegan) {
  const std::vector<StageTimes> rows = stage_times({one_run(0), one_run(100)});
  const StageTimes* store = find(rows, "dispatch", "send", "first store");
  ASSERT_NE(store, nullptr);
  EXPECT_DOUBLE_EQ(store->min_us, 0.5);
  EXPECT_DOUBLE_EQ(store->median_us, 0.6);
  EXPECT_DOUBLE_EQ(store->max_us, 0.8);
  EXPECT_EQ(store->count, 4);
  const StageTimes* start = find(rows, "dispatch", "receive", "start");
  ASSERT_NE(start, nullptr);
  EXPECT_NEAR(start->median_us, 0.05, 1e-9);
  EXPECT_NEAR(find(rows, "dispatch", "receive", "chunk seen")->max_us, 1.6, 1e-9);
  EXPECT_NEAR(find(rows, "combine", "receive", "end")->max_us, 1.0, 1e-9);
}

TEST(StagesTest, GapIsFromTheLastEndToTheFirstStart) {
  const std::vector<StageTimes> rows = stage_times({one_run(0)});
  const StageTimes* gap = find(rows, "combine", "-", "gap");
  ASSERT_NE(gap, nullptr);
  EXPECT_NEAR(gap->median_us, 0.4, 1e-9);
  EXPECT_EQ(find(rows, "dispatch", "-", "gap"), nullptr);  // nothing ran ahead of it
}

TEST(StagesTest, WhatNoCtaReachedHasNoRow) {
  const std::vector<StageTimes> rows = stage_times({one_run(0)});
  EXPECT_EQ(find(rows, "dispatch", "send", "chunk seen"), nullptr);
  EXPECT_EQ(find(rows, "dispatch", "notify", "start"), nullptr);
  EXPECT_TRUE(stage_times({}).empty());
}

}  // namespace
}  // namespace switchyard::measure
