// SPDX-License-Identifier: Apache-2.0

#include "forecast/forecast.h"

#include <gtest/gtest.h>

namespace switchyard::forecast {
namespace {

Question question_of(const std::string& machine, std::int64_t tokens) {
  Question question;
  question.machine = find_machine(machine);
  question.shape.workload = measure::find_workload("deepseek-v3");
  question.shape.routing = measure::RoutingPattern::parse("uniform", 256, 8);
  question.shape.num_tokens = tokens;
  question.shape.scheme = schemes::kFp8Block;
  question.experts = {300, 3000, 8};
  return question;
}

const Choice* find(const Forecast& one, Layout layout, Reduce reduce, const std::string& backend) {
  for (const Choice& choice : one.choices) {
    if (choice.layout == layout && choice.reduce == reduce && choice.backend == backend) {
      return &choice;
    }
  }
  return nullptr;
}

double best_layer_us(const Forecast& one) {
  return one.best < 0 ? 0 : one.choices[static_cast<std::size_t>(one.best)].layer_us;
}

TEST(ForecastTest, OneHostIsServedByPush) {
  const Forecast one = forecast(question_of("h200", 128), 1);
  EXPECT_EQ(one.num_ranks, 8);
  EXPECT_EQ(one.crossings_per_token, 0);
  ASSERT_GE(one.best, 0);
  const Choice& best = one.choices[static_cast<std::size_t>(one.best)];
  EXPECT_EQ(best.backend, "push");
  EXPECT_EQ(best.reduce, Reduce::kPerRank);
  const Choice* exact = find(one, best.layout, Reduce::kPerExpert, "push");
  ASSERT_NE(exact, nullptr);
  EXPECT_GT(exact->time.combine.total_us, best.time.combine.total_us);
  EXPECT_EQ(find(one, Layout::kExpanded, Reduce::kPerHost, "push"), nullptr);
  // 128 tokens x 4.3 remote ranks x 7456 bytes.
  EXPECT_NEAR(one.dispatch.busiest_inside, 128 * 4.63 * 7456, 0.1 * 128 * 4.63 * 7456);
  EXPECT_EQ(one.dispatch.across, 0);
}

TEST(ForecastTest, BetweenHostsOneSumPerHostSavesBytes) {
  const Forecast two = forecast(question_of("h200", 128), 4);
  const Choice* per_host = find(two, Layout::kExpanded, Reduce::kPerHost, "hosts");
  const Choice* per_rank = find(two, Layout::kExpanded, Reduce::kPerRank, "hosts");
  ASSERT_TRUE(per_host != nullptr && per_rank != nullptr);
  EXPECT_LT(per_host->time.combine.network_us, per_rank->time.combine.network_us);
  EXPECT_GT(two.crossings_per_token, 2);
  EXPECT_LT(two.crossings_per_token, 3);
  ASSERT_GE(two.best, 0);
  EXPECT_EQ(two.choices[static_cast<std::size_t>(two.best)].reduce, Reduce::kPerHost);
}

// Over NCCL every token goes once to every other host, whatever the routing is, and as many rows
// return as the ranks of a host could make: M x 8, or one sum.
TEST(ForecastTest, GpusSendMessagesOfFixedSizeBetweenHosts) {
  constexpr double kTokens = 128;
  constexpr double kRow = 7168 + 56 * 4 + 8 * 8;  // fp8, scales, ids and weights
  constexpr double kReturned = 7168 * 2;
  constexpr double kReturnedWeights = 8 * 8;  // of a token's choices
  Question question = question_of("h200", 128);
  for (const char* routing : {"uniform", "limited:8:1"}) {
    question.shape.routing = measure::RoutingPattern::parse(routing, 256, 8);
    const Forecast four = forecast(question, 4);
    ASSERT_GE(four.shown, 0);
    ASSERT_EQ(four.choices[static_cast<std::size_t>(four.shown)].reduce, Reduce::kPerHost);
    EXPECT_NEAR(four.dispatch.busiest_across, 3 * kTokens * kRow, 0.01 * 3 * kTokens * kRow);
    EXPECT_EQ(four.dispatch.across, 32 * four.dispatch.busiest_across);
    const double back = 3 * kTokens * (kReturned + kReturnedWeights);
    EXPECT_NEAR(four.combine.busiest_across, back, 0.01 * back);
    const Choice* per_rank = find(four, Layout::kExpanded, Reduce::kPerRank, "hosts");
    ASSERT_NE(per_rank, nullptr);
    EXPECT_GT(per_rank->time.combine.network_us, 3 * kTokens * 8 * kReturned / 50e3);
  }
}

// What an exchange without that limit would take is shown all the same.
TEST(ForecastTest, MoreGpusThanAnExchangeCanHaveAreNotPossible) {
  const Forecast one = forecast(question_of("h200", 16), 16);
  EXPECT_EQ(one.num_ranks, 128);
  EXPECT_EQ(one.best, -1);
  EXPECT_EQ(one.shown, one.best_without_limit);
  EXPECT_NE(one.why.find("; without the limit of 64 ranks: per_host takes"), std::string::npos)
      << one.why;
  EXPECT_NE(one.why.find("128 ranks, must be at most 64"), std::string::npos) << one.why;
  ASSERT_GE(one.shown, 0);
  EXPECT_GT(one.choices[static_cast<std::size_t>(one.shown)].layer_us, 0);
  EXPECT_GT(one.dispatch.across, 0);
  EXPECT_GE(forecast(question_of("h200", 16), 8).best, 0);
  EXPECT_GE(forecast(question_of("cpu", 2), 16).best, 0);
}

// Of choices that take the same memory, the faster one is the best.
TEST(ForecastTest, NoOtherChoiceIsBetterInBoth) {
  for (const char* machine : {"h200", "cpu"}) {
    Question question = question_of(machine, 64);
    question.ranks_per_host = 2;
    const Forecast two = forecast(question, 2);
    ASSERT_GE(two.best, 0);
    const Choice& best = two.choices[static_cast<std::size_t>(two.best)];
    for (const Choice& other : two.choices) {
      if (!is_expert_major(other.layout) || !other.is_timed) continue;
      EXPECT_FALSE(other.layer_us < best.layer_us && other.memory.total() <= best.memory.total())
          << machine << ": " << name_of(other.layout) << " " << name_of(other.reduce);
    }
  }
}

TEST(ForecastTest, MemoryLimitsTheChoice) {
  Question question = question_of("h200", 128);
  question.max_memory_bytes = 1e6;
  const Forecast none = forecast(question, 1);
  EXPECT_EQ(none.best, -1);
  EXPECT_EQ(none.why.rfind("no choice is possible: ", 0), 0u) << none.why;
  ASSERT_GE(none.shown, 0);
  EXPECT_EQ(none.choices[static_cast<std::size_t>(none.shown)].layout, Layout::kExpanded);
  question.max_memory_bytes = 0.2e9;  // batched takes more
  const Forecast some = forecast(question, 1);
  ASSERT_GE(some.best, 0);
  EXPECT_EQ(some.choices[static_cast<std::size_t>(some.best)].layout, Layout::kExpanded);
}

TEST(ForecastTest, MicroBatchesOverlapCallsAndExperts) {
  Question question = question_of("h200", 4096);
  question.shape.num_sms = 24;
  const double serial = best_layer_us(forecast(question, 4));  // calls take as long as experts
  question.shape.num_micro_batches = 2;
  const double overlapped = best_layer_us(forecast(question, 4));
  EXPECT_LT(overlapped, serial);
  EXPECT_GT(overlapped, serial / 2);
}

TEST(ForecastTest, CallsWithoutABudgetHideNothingOfLongExperts) {
  Question question = question_of("h200", 4096);
  const double serial = best_layer_us(forecast(question, 1));
  question.shape.num_micro_batches = 2;
  EXPECT_GT(best_layer_us(forecast(question, 1)), 0.98 * serial);
  question = question_of("cpu", 64);
  question.ranks_per_host = 2;
  const double on_one_core = best_layer_us(forecast(question, 1));
  question.shape.num_micro_batches = 2;
  EXPECT_GT(best_layer_us(forecast(question, 1)), 0.9 * on_one_core);
}

// 10 tokens in 4 micro-batches are 3, 3, 2 and 2. The experts' time is that of 3.
TEST(ForecastTest, MicroBatchesLoseNoToken) {
  Question question = question_of("cpu", 10);
  question.ranks_per_host = 2;
  question.experts = {1e-3, 1e9, 8};  // in proportion to rows
  question.shape.workload.num_topk = 8;
  const auto experts_of = [&](std::int64_t tokens, int num_batches) {
    question.shape.num_tokens = tokens;
    question.shape.num_micro_batches = num_batches;
    return forecast(question, 1).experts_us;
  };
  EXPECT_EQ(experts_of(10, 4), experts_of(3, 1));
  EXPECT_EQ(experts_of(8, 4), experts_of(2, 1));
  question.shape.num_tokens = 10;
  question.shape.num_micro_batches = 4;
  const double split = best_layer_us(forecast(question, 1));
  question.shape.num_micro_batches = 1;
  EXPECT_GT(split, 0.95 * best_layer_us(forecast(question, 1)));
}

TEST(ForecastTest, CpuRanksHaveMessagesToo) {
  Question question = question_of("cpu", 16);
  question.ranks_per_host = 2;
  const Forecast one = forecast(question, 2);
  const Choice* messages = find(one, Layout::kExpanded, Reduce::kPerRank, "messages");
  ASSERT_NE(messages, nullptr);
  EXPECT_FALSE(messages->is_timed);
  EXPECT_GT(messages->memory.total(), 0u);
  ASSERT_GE(one.best, 0);
  EXPECT_EQ(one.choices[static_cast<std::size_t>(one.best)].backend, "hosts");
}

}  // namespace
}  // namespace switchyard::forecast
