// SPDX-License-Identifier: Apache-2.0
//
// The GPU exchange produces the same bits as the CPU exchange: rows, scales, places, counts,
// weights and sums.

#include "device_exchange_run.h"

namespace switchyard {
namespace {

using test::Case;
using test::config_of;
using test::RankRun;
using test::run_ranks;

// Notify CTAs count 32 tokens at a time; with many choices that takes their warps several rounds.
std::vector<Case> many_chunks() {
  std::vector<Case> all;
  for (const Layout layout : {Layout::kExpanded, Layout::kCompact, Layout::kBatched}) {
    for (const int topk : {5, 17, 31, 32}) {
      if (layout == Layout::kBatched && topk != 32) continue;
      Case c{"chunks_of_top_" + std::to_string(topk),
             3,
             config_of(layout, schemes::kNone, Reduce::kPerRank, topk == 5 ? 64 : 16),
             {1500, 3, 700},
             topk == 31 ? 0.2 : 0.0};
      c.config.num_experts = topk == 5 ? 12 : 34;  // random ids: some repeat within a token
      c.config.num_topk = topk;
      c.config.max_tokens_per_rank = 1500;
      c.ids_are_i32 = topk == 31;
      all.push_back(c);
    }
  }
  return all;
}

std::vector<Case> narrow_ids() {
  const std::vector<std::int64_t> tokens{37, 5, 0, 1, 20};
  std::vector<Case> all;
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    Case c{"i32_ids", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.2};
    c.ids_are_i32 = true;
    all.push_back(c);
  }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Case c) {
    c.name += "_" + std::to_string(all.size());
    all.push_back(std::move(c));
  };
  constexpr auto kBatched = Layout::kBatched;
  constexpr auto kExpanded = Layout::kExpanded;
  constexpr auto kCompact = Layout::kCompact;
  const std::vector<std::int64_t> tokens{37, 5, 0, 1, 20};
  for (const Layout layout : {kBatched, kExpanded, kCompact}) {
    add({"plain", 2, config_of(layout, schemes::kNone, Reduce::kPerRank), tokens});
    add({"fp8", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.2});
    add({"odd_hidden", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank, 1027), tokens});
    add({"one_rank", 1, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens});
    add({"all_ones", 2, config_of(layout, schemes::kNone, Reduce::kPerRank), tokens, 0.1, -1,
         true});
    add({"hot", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.0, 3});
    add({"nobody", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 1.0});
    add({"split", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), tokens, 0.1, -1,
         false, DType::kBF16, true});
  }
  for (const Layout layout : {kBatched, kExpanded}) {
    add({"per_expert", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerExpert), tokens, 0.2});
    add({"per_expert_ones", 2, config_of(layout, schemes::kNone, Reduce::kPerExpert), tokens, 0.0,
         -1, true});
  }
  for (const char* name : {"fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token",
                           "fp8_tensor", "int8_token", "int8_tensor", "int8_block", "nvfp4",
                           "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}) {
    for (const std::int64_t hidden : {1024, 612}) {
      add({name, 2, config_of(kExpanded, *scheme_from_name(name), Reduce::kPerRank, hidden),
           tokens});
    }
  }
  for (QuantScheme powers : {schemes::kFp8Block, schemes::kFp8BlockDeepEp}) {
    powers.scale_format = ScaleFormat::kF32PowerOfTwo;
    add({"fp8_powers", 2, config_of(kExpanded, powers, Reduce::kPerRank), tokens});
    Case odd{"fp8_powers_odd", 2, config_of(kBatched, powers, Reduce::kPerRank, 612), tokens};
    odd.config.scale_layout = ScaleLayout::kColumnMajorAligned;
    add(odd);
  }
  for (const ScaleLayout scales : {ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned}) {
    Case c{"columns", 2, config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank), tokens};
    c.config.scale_layout = scales;
    add(c);
  }
  for (const Layout layout : {kBatched, kExpanded}) {
    Case c{"swizzled", 2, config_of(layout, schemes::kNvfp4, Reduce::kPerRank), tokens};
    c.config.scale_layout = ScaleLayout::kSwizzled;
    c.num_calls = 1;
    add(c);
  }
  Case aligned{"aligned", 2, config_of(kExpanded, schemes::kFp8Block, Reduce::kPerRank), tokens};
  aligned.config.expert_alignment = 16;
  add(aligned);
  Case f32{"f32_tokens", 2, config_of(kExpanded, schemes::kFp8Block, Reduce::kPerRank), tokens};
  f32.token_dtype = DType::kF32;
  add(f32);
  for (const Layout layout : {kBatched, kExpanded, kCompact}) {
    Case few{"fewer_experts_than_ranks", 3, config_of(layout, schemes::kFp8Block, Reduce::kPerRank),
             tokens};
    few.config.num_experts = 2;
    few.config.num_topk = 2;
    add(few);
    Case most{"most_experts", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank, 128),
              tokens};
    most.config.num_experts = 16384;  // the counts need more than 48 KB of shared memory
    add(most);
    Case widest{"widest_topk", 2, config_of(layout, schemes::kNvfp4, Reduce::kPerRank, 512), tokens,
                0.3};
    widest.config.num_experts = 64;
    widest.config.num_topk = layout == kCompact ? 31 : 32;
    add(widest);
    Case one{"top_1", 2, config_of(layout, schemes::kNone, Reduce::kPerRank, 16), tokens};
    one.config.num_topk = 1;
    add(one);
    Case longer{"many_tokens",
                3,
                config_of(layout, schemes::kFp8Block, Reduce::kPerRank, 136),
                {1500, 3, 700}};
    longer.config.max_tokens_per_rank = 1500;
    add(longer);
    Case none{"no_tokens_at_all", 2, config_of(layout, schemes::kFp8Block, Reduce::kPerRank), {0}};
    none.config.max_tokens_per_rank = 0;
    add(none);
  }
  Case many{"many_ranks", 7, config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank), tokens};
  many.config.num_experts = 61;
  many.config.num_topk = 9;
  add(many);
  Case real{"real_shape",
            4,
            config_of(kBatched, schemes::kFp8Block, Reduce::kPerRank, 7168),
            {128, 100, 1}};
  real.config.num_experts = 256;
  real.config.num_topk = 8;
  real.config.max_tokens_per_rank = 128;
  add(real);
  for (const Case& c : many_chunks()) add(c);
  for (const Case& c : narrow_ids()) add(c);
  return all;
}

class DeviceExchangeTest : public testing::TestWithParam<Case> {};

TEST_P(DeviceExchangeTest, EqualsTheCpuExchange) {
  const int num_gpus = test::num_gpus();
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) {
    const DeviceGuard guard(group.rank() % num_gpus);
    RankRun(group, GetParam()).run();
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeviceExchangeTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace switchyard
