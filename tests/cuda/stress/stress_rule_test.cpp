// SPDX-License-Identifier: Apache-2.0
//
// What the rule of the stress test says of turns, delays, dropped choices and reserved words.

#include "stress_rule.h"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace switchyard::test {
namespace {

TEST(StressRuleTest, EveryTurnAndDelayComes) {
  StressShape s;
  for (std::uint32_t step = 0; step < 100; ++step) {
    EXPECT_EQ(stress_turn(s, step), StressTurn::kPair);
    EXPECT_EQ(stress_delay_ns(s, step, StressPause::kHost), 0u);
  }
  s.mixes_turns = true;
  s.max_delay_ns = 50'000;
  std::array<int, 4> turns{};
  int num_zero = 0;
  int num_differ = 0;
  std::uint32_t longest = 0;
  for (std::uint32_t step = 0; step < 1000; ++step) {
    ++turns[static_cast<std::size_t>(stress_turn(s, step))];
    s.rank = 0;
    const std::uint32_t delay = stress_delay_ns(s, step, StressPause::kInput);
    s.rank = 1;
    num_differ += stress_delay_ns(s, step, StressPause::kInput) != delay ? 1 : 0;
    num_zero += delay == 0 ? 1 : 0;
    longest = std::max(longest, delay);
  }
  for (const int turn : turns) EXPECT_GT(turn, 80);
  EXPECT_NEAR(num_zero, 500, 80);
  EXPECT_GT(num_differ, 600);
  EXPECT_GT(longest, 45'000u);
  EXPECT_LE(longest, 50'000u);
}

TEST(StressRuleTest, AnExpertKeepsTheLargestWeights) {
  StressShape s;
  s.num_ranks = 2;
  s.max_tokens = 20;
  s.capacity = 5;
  int num_full = 0;
  for (std::uint32_t step = 0; step < 16; ++step) {
    for (int expert = 0; expert < s.num_experts(); ++expert) {
      std::vector<float> kept, dropped;
      for (int i = 0; i < s.num_ranks * s.max_tokens * s.num_topk; ++i) {
        const int k = i % s.num_topk;
        const int token = i / s.num_topk % s.max_tokens;
        const int source = i / s.num_topk / s.max_tokens;
        if (token >= stress_tokens(s, step, source)) continue;
        if (stress_id(s, step, source, token, k) != expert) continue;
        const bool is_kept = stress_kept_id(s, {step, step}, source, token, k) == expert;
        (is_kept ? kept : dropped).push_back(stress_weight(s, step, source, token, k));
      }
      ASSERT_EQ(kept.size(), std::min<std::size_t>(5, kept.size() + dropped.size()));
      if (dropped.empty()) continue;
      ++num_full;
      ASSERT_GE(*std::min_element(kept.begin(), kept.end()),
                *std::max_element(dropped.begin(), dropped.end()));
    }
  }
  EXPECT_GT(num_full, 10);
}

TEST(StressRuleTest, ReservedWordsComeAllTheTime) {
  StressShape s;
  std::int64_t reserved = 0;
  for (std::uint32_t w = 0; w < 4000; ++w) {
    const std::uint32_t word = stress_word(s, step_key(s, 1, StressSalt::kWords), 1, 0, 3, w, true);
    reserved += word >= 0xFFFFFFFEu ? 1 : 0;
  }
  EXPECT_GT(reserved, 200);
}

}  // namespace
}  // namespace switchyard::test
