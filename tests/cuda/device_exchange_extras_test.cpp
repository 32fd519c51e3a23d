// SPDX-License-Identifier: Apache-2.0
//
// The GPU exchange beyond the rows of tokens: rows by rank, all-gather, payloads, capacities and
// reused routing; bit for bit as between CPUs.

#include <algorithm>

#include "device_exchange_run.h"
#include "exchange_rank.h"

namespace switchyard {
namespace {

using test::Case;
using test::config_of;
using test::RankRun;
using test::run_ranks;

constexpr auto kPerRank = Reduce::kPerRank;
constexpr Layout kLayouts[] = {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                               Layout::kByRank, Layout::kAllGather};
const std::vector<std::int64_t> kTokens{37, 5, 0, 1, 20};

class Cases {
 public:
  void add(Case c) {
    c.name += std::string("_") + name_of(c.config.layout) + "_" + std::to_string(all_.size());
    all_.push_back(std::move(c));
  }
  const std::vector<Case>& all() const { return all_; }

 private:
  std::vector<Case> all_;
};

void add_layouts(Cases& cases) {
  for (const Layout layout : {Layout::kByRank, Layout::kAllGather}) {
    cases.add({"plain", 2, config_of(layout, schemes::kNone, kPerRank), kTokens});
    cases.add({"fp8", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens, 0.3});
    cases.add({"odd_hidden", 2, config_of(layout, schemes::kFp8Block, kPerRank, 1027), kTokens});
    cases.add({"all_ones", 2, config_of(layout, schemes::kNone, kPerRank), kTokens, 0.1, -1, true});
    cases.add({"nobody", 2, config_of(layout, schemes::kFp8Block, kPerRank), kTokens, 1.0});
    cases.add({"hot", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens, 0.0, 3});
    cases.add({"one_rank", 1, config_of(layout, schemes::kFp8Block, kPerRank), kTokens});
    cases.add({"split", 2, config_of(layout, schemes::kNvfp4, kPerRank), kTokens, 0.1, -1, false,
               DType::kBF16, true});
    Case columns{"columns", 2, config_of(layout, schemes::kFp8Block, kPerRank), {7, 5, 0, 20}};
    columns.config.scale_layout = ScaleLayout::kColumnMajor;
    columns.max_tokens = 21;
    cases.add(columns);
    Case many{
        "many_tokens", 3, config_of(layout, schemes::kFp8Block, kPerRank, 136), {1500, 3, 700}};
    many.config.max_tokens_per_rank = 1500;
    cases.add(many);
    Case widest{"widest_topk", 2, config_of(layout, schemes::kNone, kPerRank, 512), kTokens, 0.3};
    widest.config.num_experts = 64;
    widest.config.num_topk = 32;
    cases.add(widest);
    Case light{"no_weights", 2, config_of(layout, schemes::kNone, kPerRank, 64), kTokens, 0.5};
    light.config.sends_weights = false;
    cases.add(light);
    Case few{"fewer_experts_than_ranks", 3, config_of(layout, schemes::kNone, kPerRank), kTokens};
    few.config.num_experts = 2;
    few.config.num_topk = 2;
    cases.add(few);
  }
  for (const int ranks : {1, 3, 5}) {
    Case no_routing{"no_routing", ranks,
                    config_of(Layout::kAllGather, schemes::kFp8Block, kPerRank), kTokens};
    no_routing.config.num_experts = no_routing.config.num_topk = 0;
    no_routing.splits_phases = ranks == 3;
    no_routing.goes_again = ranks == 3;
    cases.add(no_routing);
  }
  for (const Layout layout : kLayouts) {
    Case c{"max_tokens", 3, config_of(layout, schemes::kFp8Block, kPerRank), {7, 5, 0, 20}};
    c.max_tokens = 20;
    cases.add(c);
  }
}

void add_options(Cases& cases) {
  for (const Layout layout : kLayouts) {
    Case payloads{"payloads", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens, 0.2};
    payloads.config.payload_bytes = {16, 2, 1040, 614};
    cases.add(payloads);
    payloads.name = "payloads_split";
    payloads.splits_phases = true;
    payloads.all_ones = true;
    payloads.config.scheme = schemes::kNone;
    cases.add(payloads);
    for (const bool sends_weights : {true, false}) {
      Case drop{"drop", 3, config_of(layout, schemes::kFp8Block, kPerRank, 256), kTokens, 0.1};
      drop.config.capacity = 9;
      drop.config.overflow = Overflow::kDrop;
      drop.config.sends_weights = sends_weights;
      drop.splits_phases = !sends_weights;
      drop.goes_again = true;
      cases.add(drop);
    }
    Case room{"capacity", 2, config_of(layout, schemes::kNone, kPerRank, 256), kTokens};
    room.config.capacity = 37 * 2 * 4;
    cases.add(room);
    for (const QuantScheme& scheme : {schemes::kNone, schemes::kNvfp4, schemes::kFp8Token}) {
      Case again{"again", 2, config_of(layout, scheme, kPerRank), kTokens, 0.1};
      again.goes_again = true;
      again.splits_phases = scheme == schemes::kNvfp4;
      if (scheme == schemes::kNone) again.config.payload_bytes = {24};
      if (scheme == schemes::kFp8Token) again.config.max_in_flight = 3;
      cases.add(again);
    }
  }
  Case exact{"again_per_expert", 3,
             config_of(Layout::kExpanded, schemes::kFp8Block, Reduce::kPerExpert), kTokens};
  exact.goes_again = true;
  exact.config.payload_bytes = {8};
  cases.add(exact);
  Case zero{"zero_padding", 2, config_of(Layout::kExpanded, schemes::kFp8Block, kPerRank), kTokens};
  zero.config.zero_padding = true;
  zero.config.expert_alignment = 16;
  cases.add(zero);
}

void add_returns(Cases& cases) {
  for (const Layout layout : {Layout::kBatched, Layout::kCompact, Layout::kAllGather}) {
    for (const std::int64_t hidden : {1024, 523}) {
      Case shared{"shared", 2, config_of(layout, schemes::kFp8Block, kPerRank, hidden), kTokens,
                  0.2};
      shared.adds_shared = true;
      shared.splits_phases = hidden == 523;
      shared.config.combine_scheme.dtype = hidden == 523 ? DType::kF32 : DType::kBF16;
      cases.add(shared);
    }
  }
  for (const char* name :
       {"fp8_block", "fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "int8_block", "mxfp8"}) {
    for (const Layout layout : {Layout::kBatched, Layout::kByRank}) {
      Case back{std::string("return_") + name, 3,
                config_of(layout, schemes::kNone, kPerRank, layout == Layout::kByRank ? 700 : 1024),
                kTokens, 0.2};
      back.config.combine_scheme = *scheme_from_name(name);
      back.adds_shared = layout == Layout::kByRank;
      cases.add(back);
    }
    Case exact{std::string("return_") + name, 2,
               config_of(Layout::kExpanded, schemes::kFp8Block, Reduce::kPerExpert, 1040), kTokens};
    exact.config.combine_scheme = *scheme_from_name(name);
    exact.all_ones = true;
    exact.splits_phases = true;
    cases.add(exact);
  }
}

// Rows, returned rows and sums of one type: whole chunks have their own kernels. More choices mean
// more rounds of returned rows and partial sums.
void add_results(Cases& cases) {
  const auto add = [&](const QuantScheme& wire, Reduce reduce, std::int64_t hidden, int topk) {
    Case one{std::string("results_") + name_of(wire.dtype), 3,
             config_of(Layout::kExpanded, schemes::kNone, reduce, hidden), kTokens, 0.2};
    one.config.combine_scheme = wire;
    one.config.num_topk = topk;
    if (!wire.is_quantized()) one.result_dtype = wire.dtype;
    one.has_tiny = true;
    one.splits_phases = topk == 4;
    one.pads_output = topk == 9;
    cases.add(one);
    one.has_tiny = false;
    one.all_ones = true;
    if (topk == 9) cases.add(one);
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    QuantScheme plain = schemes::kNone;
    plain.dtype = dtype;
    for (const Reduce reduce : {kPerRank, Reduce::kPerExpert}) {
      add(plain, reduce, 1024, 9);
      add(plain, reduce, 256, 32);
      add(plain, reduce, 520, 4);
    }
  }
  for (const QuantScheme& wire : {schemes::kFp8Block, schemes::kInt8Block}) {
    add(wire, Reduce::kPerExpert, 1024, 9);
  }
}

void add_weights(Cases& cases) {
  for (const Layout layout : kLayouts) {
    for (const Reduce reduce : {kPerRank, Reduce::kPerExpert}) {
      if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
      for (const int ranks : {1, 3}) {
        Case home{"weights_home", ranks, config_of(layout, schemes::kFp8Block, reduce, 264),
                  kTokens, 0.2};
        home.returns_weights = true;
        home.splits_phases = ranks == 3;
        home.goes_again = ranks == 3;
        home.config.max_in_flight = ranks;
        cases.add(home);
      }
    }
    Case drop{"weights_home_drop", 3, config_of(layout, schemes::kNone, kPerRank, 64), kTokens};
    drop.config.capacity = 9;
    drop.config.overflow = Overflow::kDrop;
    drop.returns_weights = true;
    drop.all_ones = true;
    drop.goes_again = true;
    cases.add(drop);
    Case wide{"weights_home_wide", 2, config_of(layout, schemes::kNone, kPerRank, 24), kTokens,
              0.3};
    wide.config.num_experts = 64;
    wide.config.num_topk = 32;
    wide.returns_weights = true;
    wide.num_calls = 6;
    cases.add(wide);
    Case many{
        "weights_home_many", 3, config_of(layout, schemes::kNone, kPerRank, 16), {1500, 3, 700}};
    many.config.max_tokens_per_rank = 1500;
    many.returns_weights = true;
    cases.add(many);
  }
}

std::vector<Case> cases() {
  Cases cases;
  add_layouts(cases);
  add_options(cases);
  add_results(cases);
  add_returns(cases);
  add_weights(cases);
  return cases.all();
}

class DeviceExchangeExtrasTest : public testing::TestWithParam<Case> {};

TEST_P(DeviceExchangeExtrasTest, EqualsTheCpuExchange) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const DeviceGuard guard(group.rank() % num_gpus);
    RankRun(group, GetParam()).run();
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeviceExchangeExtrasTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

// Everything besides the rows is stream-ordered too.
TEST(DeviceExchangeGraphTest, ReplaysGiveTheSame) {
  REQUIRE_GPU();
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    ExchangeConfig config = test::fault_config(layout);
    config.capacity = 3;  // of 4 rows that choose each expert
    config.overflow = Overflow::kDrop;
    config.combine_scheme = schemes::kFp8Block;
    run_ranks(1, [&](const Group& group) {
      const DeviceGuard guard(0);
      test::ExchangeRank rank(group, config, {.keeps_routing = true});
      rank.pair();
      rank.finish();
      const auto want = test::download(rank.output());
      rank.capture(group);
      for (int i = 0; i < 3; ++i) {
        check_cuda(cudaMemset(rank.output().data(), 0x5A, want.size()), "poison");
        check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "poison");
        rank.replay();
        rank.finish();
        EXPECT_EQ(test::download(rank.output()), want);
      }
    });
  }
}

// Back-to-back calls without host synchronization: weights never arrive later than the sums.
TEST(DeviceExchangeWeightsTest, NoneIsLate) {
  constexpr int kCalls = 150;
  // On one GPU this can hang after other tests; see Heaps in docs/gpu.md.
  if (test::num_gpus() < 2) {
    GTEST_SKIP() << "needs two GPUs: threads that share one may keep each other from launching";
  }
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    SCOPED_TRACE(name_of(layout));
    const bool comes_early = layout != Layout::kExpanded;
    ExchangeConfig config = test::fault_config(layout);
    config.hidden = 16;  // makes rows about as fast as weights
    run_ranks(std::clamp(test::num_gpus(), 2, 4), [&](const Group& group) {
      const DeviceGuard guard(group.rank() % test::num_gpus());
      test::HomeWeights weights(config, kCalls);
      test::ExchangeRank rank(group, config, {.programmatic_launch = comes_early});
      for (int call = 0; call < kCalls; ++call) weights.combine(rank, rank.dispatch(), call);
      rank.finish();
      group.barrier();
      EXPECT_EQ(weights.home(), weights.all_home(0x3F800000u));
      group.barrier();
    });
  }
}

// Each replay sends the weights that the rows have at that time.
TEST(DeviceExchangeGraphTest, ReplaysTakeWeightsHome) {
  REQUIRE_GPU();
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    run_ranks(std::min(2, test::num_gpus()), [&](const Group& group) {
      const DeviceGuard guard(group.rank());
      test::HomeWeights weights(test::fault_config(layout));
      test::ExchangeRank rank(group, test::fault_config(layout));
      const auto call = [&] { weights.combine(rank, rank.dispatch()); };
      call();
      rank.finish();
      group.barrier();  // a capture allocates
      rank.capture(group, call);
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t bits = 0x3F000000u + static_cast<std::uint32_t>(i);
        weights.set(bits);
        group.barrier();
        rank.replay();
        rank.finish();
        EXPECT_EQ(weights.home(), weights.all_home(bits));
        group.barrier();
      }
    });
  }
}

}  // namespace
}  // namespace switchyard
