// SPDX-License-Identifier: Apache-2.0
//
// Formulas on constants of which one is looked at at a time, so that results can be checked by eye.

#include "plan/cost.h"

#include <cmath>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

PushLayout layout_of(int num_ranks, std::int64_t max_tokens) {
  PushShape shape;
  shape.max_tokens = max_tokens;
  shape.hidden = 7168;
  shape.num_ranks = num_ranks;
  shape.num_topk = 8;
  shape.max_local_experts = 256 / num_ranks;
  shape.element_bits = 8;
  shape.chunk_scale_bytes = 16;
  return make_push_layout(shape);
}

// Everything but the start is free.
PushCosts free_costs() {
  PushCosts costs;
  costs.num_sms = 132;
  costs.start_us = 3;
  costs.saved_us = 1;
  costs.copy_gb_per_second = 1e12;
  costs.wire = {{8, 1e12}};
  return costs;
}

PushWork work_of(double tokens) {
  PushWork work;
  work.tokens = tokens;
  work.stored = 2 * tokens;
  work.arrivals = 2 * tokens;
  work.placed = 8 * tokens;
  work.returned = 2 * tokens;
  work.partials = 2 * tokens;
  work.token_bytes = 14336;
  work.placed_bytes = 7392;
  return work;
}

TEST(CostTest, RatesAreLinearOverTheLogarithm) {
  const std::vector<RateAt> rates{{4, 100}, {16, 200}};
  EXPECT_EQ(rate_at(rates, 1), 100);
  EXPECT_EQ(rate_at(rates, 4), 100);
  EXPECT_DOUBLE_EQ(rate_at(rates, 8), 150);
  EXPECT_EQ(rate_at(rates, 64), 200);
}

TEST(CostTest, ACallWithoutWorkTakesItsStart) {
  PushCosts costs = free_costs();
  costs.dispatch_start_us = 2;
  costs.combine_start_us = 4;
  const PushLayout layout = layout_of(2, 1);
  const GridRequest request{264, true, true, true};
  const CallTime dispatch =
      dispatch_time(costs, {}, layout, dispatch_ctas(request, layout, 1), work_of(1), false);
  EXPECT_NEAR(dispatch.total_us, 5, 1e-6);
  EXPECT_STREQ(dispatch.bound(), "start");
  const CallTime combine =
      combine_time(costs, {}, layout, combine_ctas(request, layout, 1), work_of(1), true);
  EXPECT_NEAR(combine.total_us, 6, 1e-6);
}

TEST(CostTest, WireMemoryAndNetworkTakeBytesOverTheirRates) {
  PushCosts costs = free_costs();
  costs.wire = {{8, 100}};
  costs.copy_gb_per_second = 1000;
  costs.dispatch_memory = 0.5;
  const PushLayout layout = layout_of(2, 4096);
  const GridRequest request{264, true, true, true};
  PushWork work = work_of(4096);
  work.wire_bytes = 1e6;
  work.network_bytes = 2e6;
  const CallTime time =
      dispatch_time(costs, {50, 20}, layout, dispatch_ctas(request, layout, 4096), work, false);
  EXPECT_DOUBLE_EQ(time.wire_us, 10);
  EXPECT_DOUBLE_EQ(time.network_us, 40);
  EXPECT_DOUBLE_EQ(time.start_us, 23);
  const double bytes = 4096.0 * (14336 + 3 * 2 * 7424 + 8 * 7392);
  EXPECT_NEAR(time.memory_us, bytes * 1e-3 / 500, 1e-6);
  // Two resources of equal time with p = 2.
  costs.overlap = 2;
  EXPECT_NEAR(time.total_us - 23, std::hypot(time.wire_us, time.network_us, time.memory_us), 1e-3);
  EXPECT_STREQ(time.bound(), "memory");
}

// 4096 tokens of 14 chunks on 16 CTAs: 16 warps each take 16 rows, and receive 32.
TEST(CostTest, WhereAllCtasDoAllSendingComesBeforeReceiving) {
  PushCosts costs = free_costs();
  costs.instruction_us = 1e-3;
  costs.shared_start_us = 7;
  const PushLayout layout = layout_of(2, 4096);
  const DispatchCtas grid = dispatch_ctas({16, true, true, false}, layout, 4096);
  ASSERT_TRUE(grid.shares_work);
  ASSERT_EQ(grid.chunks_per_item, 14);
  PushWork work = work_of(4096);
  work.quantizes = true;
  const CallTime time = dispatch_time(costs, {}, layout, grid, work, false);
  const double send = 124 + 14 * (190 + 53 * 2);
  const double receive = 43 + 14 * (37 + 10 * 4);
  EXPECT_NEAR(time.sm_us, (16 * send + 32 * receive) * 1e-3, 1e-9);
  EXPECT_EQ(time.rounds_us, 0);
  EXPECT_DOUBLE_EQ(time.start_us, 10);
  work.quantizes = false;
  EXPECT_NEAR(time.sm_us - dispatch_time(costs, {}, layout, grid, work, false).sm_us,
              16 * 14 * 190 * 1e-3, 1e-9);
}

// 128 tokens on 48 CTAs: 8 of them send, 128 warps for 1792 chunks.
TEST(CostTest, WhereRolesAreFixedWarpsTakeChunkAfterChunk) {
  PushCosts costs = free_costs();
  costs.send_chunk_us = 2;
  costs.receive_chunk_us = 0.1;
  const PushLayout layout = layout_of(2, 128);
  const DispatchCtas grid = dispatch_ctas({48, true, true, false}, layout, 128);
  ASSERT_FALSE(grid.shares_work);
  ASSERT_EQ(grid.num_senders, 8);
  EXPECT_DOUBLE_EQ(dispatch_time(costs, {}, layout, grid, work_of(128), false).rounds_us, 13 * 2);
}

TEST(CostTest, AStreamedCombineSumsWhatItReturnsAndThenItsOwn) {
  PushCosts costs = free_costs();
  costs.stream_item_us = 1;
  costs.stream_chunk_us = 0.5;
  costs.stream_row_us = 0.25;
  const PushLayout layout = layout_of(2, 4096);
  const CombineCtas grid = combine_ctas({16, true, true, false, 0, true}, layout, 4096);
  ASSERT_TRUE(grid.streams);
  ASSERT_EQ(grid.chunks_per_item, 28);
  const CallTime time = combine_time(costs, {}, layout, grid, work_of(4096), false);
  // 32 items of four rows each, 16 of two.
  EXPECT_DOUBLE_EQ(time.sm_us, 32 * (1 + 28 * (0.5 + 0.25 * 4)) + 16 * (1 + 28 * (0.5 + 0.5)));
}

TEST(CostTest, MoreSmsNeverTakeLongerWhereSmsAreTheLimit) {
  PushCosts costs = free_costs();
  costs.instruction_us = 6e-3;
  const PushLayout layout = layout_of(8, 4096);
  double before = 1e9;
  for (const int sms : {8, 16, 24, 48, 64}) {
    const DispatchCtas grid = dispatch_ctas({2 * sms, true, true, false}, layout, 4096);
    const double us = dispatch_time(costs, {}, layout, grid, work_of(4096), false).total_us;
    EXPECT_LT(us, before) << sms;
    before = us;
  }
}

TEST(CostTest, CpuRanksCopyHalfOfWhatTheyReadAndWrite) {
  PullCosts costs;
  costs.copy = {{1024, 10}};
  costs.overlap = 1;
  costs.dispatch_start_us = 5;
  costs.dispatch_copy = 0.5;
  costs.dispatch_row_us = 0.125;
  costs.quantize_gb_per_second = 4;
  PullWork work;
  work.bytes_read = 30'000;
  work.bytes_written = 10'000;
  work.rows = 8;
  EXPECT_DOUBLE_EQ(pull_dispatch_time(costs, {}, work).total_us, 5 + 4 + 1);
  work.quantized_bytes = 8000;
  EXPECT_DOUBLE_EQ(pull_dispatch_time(costs, {}, work).total_us, 5 + 4 + 1 + 2);
  work.network_bytes = 1000;
  EXPECT_DOUBLE_EQ(pull_dispatch_time(costs, {1, 7}, work).total_us, 5 + 4 + 1 + 2 + 8);
}

}  // namespace
}  // namespace switchyard
