// SPDX-License-Identifier: Apache-2.0
//
// The exchange between GPUs at its limits returns the bits of the exchange between CPUs: many
// tokens, choices and experts, rows of several chunks, words that the wire reserves, and options
// that the cases of instruments/conformance do not have. Everything else is theirs.

#include "exchange_run.h"

namespace switchyard {
namespace {

using namespace test;

constexpr auto kPerRank = Reduce::kPerRank;
constexpr Layout kLayouts[] = {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                               Layout::kByRank, Layout::kAllGather};
const std::vector<std::int64_t> kTokens{37, 5, 0, 1, 20};
const std::vector<std::int64_t> kManyTokens{1500, 3, 700};

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

void add_sizes(Cases& cases) {
  for (const Layout layout : kLayouts) {
    cases.add({"odd_hidden", 2, config_of(layout, schemes::kFp8Block, kPerRank, 1027), kTokens});
    Case ones{"all_ones", 2, config_of(layout, schemes::kNone, kPerRank), kTokens, 0.1};
    ones.all_ones = true;
    cases.add(ones);
    Case many{"many_tokens", 3, config_of(layout, schemes::kFp8Block, kPerRank, 136), kManyTokens};
    many.config.max_tokens_per_rank = 1500;
    cases.add(many);
    Case widest{"widest_topk", 2, config_of(layout, schemes::kNvfp4, kPerRank, 512), kTokens, 0.3};
    widest.config.num_experts = 64;
    widest.config.num_topk = layout == Layout::kCompact ? 31 : 32;
    cases.add(widest);
    Case experts{"max_experts", 2, config_of(layout, schemes::kFp8Block, kPerRank, 128), kTokens};
    experts.config.num_experts = 16384;  // their counts take more than 48 KB of shared memory
    if (layout != Layout::kByRank && layout != Layout::kAllGather) cases.add(experts);
    Case none{"no_tokens_at_all", 2, config_of(layout, schemes::kFp8Block, kPerRank), {0}};
    none.config.max_tokens_per_rank = 0;
    if (layout != Layout::kByRank && layout != Layout::kAllGather) cases.add(none);
    Case in_place{"in_place", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens};
    in_place.in_place = 1;
    cases.add(in_place);
    Case some{"some_in_place", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens};
    some.in_place = 2;
    some.num_calls = 5;
    cases.add(some);
    some.name = "some_in_place_odd";
    some.config.hidden = 1027;
    cases.add(some);
    some.name = "some_in_place_apart";
    some.splits_phases = true;
    cases.add(some);
    Case room{"capacity", 2, config_of(layout, schemes::kNone, kPerRank, 256), kTokens};
    room.config.capacity = 37 * 2 * 4;
    cases.add(room);
  }
  Case real{"real_shape",
            4,
            config_of(Layout::kBatched, schemes::kFp8Block, kPerRank, 7168),
            {128, 100, 1}};
  real.config.num_experts = 256;
  real.config.num_topk = 8;
  real.config.max_tokens_per_rank = 128;
  cases.add(real);
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded}) {
    Case ones{"per_expert_ones", 2, config_of(layout, schemes::kNone, Reduce::kPerExpert), kTokens};
    ones.all_ones = true;
    cases.add(ones);
  }
}

// Notify CTAs count 32 tokens at a time. With many choices, a token block takes several rounds of
// their warps.
void add_token_blocks(Cases& cases) {
  for (const Layout layout : {Layout::kExpanded, Layout::kCompact, Layout::kBatched}) {
    for (const int topk : {5, 17, 31, 32}) {
      if (layout == Layout::kBatched && topk != 32) continue;
      Case c{"blocks_of_top_" + std::to_string(topk), 3,
             config_of(layout, schemes::kNone, kPerRank, topk == 5 ? 64 : 16), kManyTokens,
             topk == 31 ? 0.2 : 0.0};
      c.config.num_experts = topk == 5 ? 12 : 34;  // random: a token often names some of them
      c.config.num_topk = topk;
      c.config.max_tokens_per_rank = 1500;
      c.ids_are_i32 = topk == 31;
      cases.add(c);
    }
  }
}

// Rows of two whole chunks, and of one and a part.
void add_chunks(Cases& cases) {
  for (const char* name : {"fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token",
                           "fp8_tensor", "int8_token", "int8_tensor", "int8_block", "nvfp4",
                           "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}) {
    for (const std::int64_t hidden : {1024, 612}) {
      cases.add({name, 2, config_of(Layout::kExpanded, *scheme_from_name(name), kPerRank, hidden),
                 kTokens});
    }
  }
  for (QuantScheme powers : {schemes::kFp8Block, schemes::kFp8BlockDeepEp}) {
    powers.scale_format = ScaleFormat::kF32PowerOfTwo;
    cases.add({"fp8_powers", 2, config_of(Layout::kExpanded, powers, kPerRank), kTokens});
    Case odd{"fp8_powers_odd", 2, config_of(Layout::kBatched, powers, kPerRank, 612), kTokens};
    odd.config.scale_layout = ScaleLayout::kColumnMajorAligned;
    cases.add(odd);
  }
}

// Rows of which a lane reads more than four pieces before it knows their largest magnitude, and
// whose last piece is not whole; half of the f16 and bf16 elements are zeros and denormals in turn.
void add_long_rows(Cases& cases) {
  for (const char* name : {"fp8_token", "int8_token", "int8_tensor", "fp8_tensor"}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      Case c{std::string("long_rows_") + name + "_" + name_of(dtype), 2,
             config_of(Layout::kExpanded, *scheme_from_name(name), kPerRank, 4104), kTokens};
      c.token_dtype = dtype;
      c.num_calls = 2;
      c.tiny_tokens = dtype != DType::kF32;
      cases.add(c);
    }
  }
}

// Three CTAs share the work of the rank with many tokens and take three chunks of a row at a time,
// the last of which is not whole.
void add_streamed_chunks(Cases& cases) {
  constexpr Layout kSome[] = {Layout::kBatched, Layout::kExpanded, Layout::kCompact};
  int nth = 0;
  for (const char* name :
       {"none", "fp8_block", "fp8_ue8m0", "fp8_token", "int8_block", "nvfp4", "mxfp8"}) {
    Case c{std::string("few_ctas_") + name,
           2,
           config_of(kSome[nth++ % 3], *scheme_from_name(name), kPerRank, 1152),
           {150, 40},
           0.1};
    c.config.max_tokens_per_rank = 150;
    c.num_ctas = 3;
    c.num_calls = 2;
    if (c.config.scheme == schemes::kNvfp4) c.config.scale_layout = ScaleLayout::kSwizzled;
    cases.add(c);
  }
  Case odd{
      "few_ctas_odd", 2, config_of(Layout::kExpanded, schemes::kNone, kPerRank, 1100), {150, 149}};
  odd.config.max_tokens_per_rank = 150;
  odd.num_ctas = 3;
  odd.goes_again = true;
  odd.all_ones = true;
  cases.add(odd);
  // So many CTAs that some only receive.
  for (const bool splits : {false, true}) {
    Case many{"many_ctas_share",
              2,
              config_of(Layout::kExpanded, schemes::kFp8Block, kPerRank, 1152),
              {2800, 2900},
              0.1};
    many.config.max_tokens_per_rank = 2900;
    many.num_ctas = 130;
    many.num_calls = 2;
    many.splits_phases = splits;
    cases.add(many);
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
    // Three CTAs share the work on ranks with many tokens, and not on those with few.
    Case few{"payloads_few_ctas", 2, config_of(layout, schemes::kFp8Block, kPerRank), {100, 3}};
    few.config.payload_bytes = {614, 16};
    few.config.max_tokens_per_rank = 100;
    few.num_ctas = 3;
    few.goes_again = true;
    cases.add(few);
    // The same for combine.
    Case streams{"streams", 2, config_of(layout, schemes::kNone, kPerRank, 1536), {5, 64}, 0.3};
    streams.config.max_tokens_per_rank = 64;
    streams.num_ctas = 3;
    streams.num_calls = 2;
    streams.splits_phases = layout == Layout::kExpanded;
    streams.has_tiny = true;
    cases.add(streams);
    // Also routing that travels alone, and three handles.
    for (const QuantScheme& scheme : {schemes::kNone, schemes::kNvfp4, schemes::kFp8Token}) {
      Case again{"again", 2, config_of(layout, scheme, kPerRank), kTokens, 0.1};
      again.goes_again = true;
      again.splits_phases = scheme == schemes::kNvfp4;
      if (scheme == schemes::kNone) again.config.payload_bytes = {24};
      if (scheme == schemes::kFp8Token) again.config.max_in_flight = 3;
      cases.add(again);
    }
    Case drop{"again_drop", 3, config_of(layout, schemes::kFp8Block, kPerRank, 256), kTokens, 0.1};
    drop.config.capacity = 9;
    drop.config.overflow = Overflow::kDrop;
    drop.goes_again = true;
    drop.returns_weights = true;
    cases.add(drop);
  }
  Case exact{"again_per_expert", 3,
             config_of(Layout::kExpanded, schemes::kFp8Block, Reduce::kPerExpert), kTokens};
  exact.goes_again = true;
  exact.config.payload_bytes = {8};
  cases.add(exact);
  Case no_routing{"again_no_routing", 3,
                  config_of(Layout::kAllGather, schemes::kFp8Block, kPerRank), kTokens};
  no_routing.config.num_experts = no_routing.config.num_topk = 0;
  no_routing.splits_phases = true;
  no_routing.goes_again = true;
  cases.add(no_routing);
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

// Some ranks have no experts, and one has most of them.
void add_own_numbers(Cases& cases) {
  for (const Layout layout : kLayouts) {
    for (const auto& counts : {std::vector<std::int32_t>{0, 7, 5}, {9, 0, 3}}) {
      Case c{"experts_per_rank", 3, config_of(layout, schemes::kFp8Block, kPerRank), kTokens, 0.2};
      c.config.experts_per_rank = counts;
      c.goes_again = true;
      c.returns_weights = true;
      if (counts[0] > 0) c.config.payload_bytes = {16};
      cases.add(c);
      c.config.capacity = 9;
      c.config.overflow = Overflow::kDrop;
      cases.add(c);
    }
  }
  Case exact{"experts_per_rank_exact", 3,
             config_of(Layout::kExpanded, schemes::kNone, Reduce::kPerExpert), kTokens};
  exact.config.experts_per_rank = {5, 0, 7};
  cases.add(exact);
}

// Rows, returned rows and sums of the same type; whole chunks have their own kernels. More choices
// make more rounds of returned rows and of partial sums.
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
    Case again{"returned_weights", 3, config_of(layout, schemes::kFp8Block, kPerRank, 264), kTokens,
               0.2};
    again.returns_weights = true;
    again.splits_phases = true;
    again.goes_again = true;
    again.config.max_in_flight = 3;
    cases.add(again);
    Case wide{"returned_weights_wide", 2, config_of(layout, schemes::kNone, kPerRank, 24), kTokens,
              0.3};
    wide.config.num_experts = 64;
    wide.config.num_topk = 32;
    wide.returns_weights = true;
    wide.num_calls = 6;
    cases.add(wide);
    Case many{"returned_weights_many", 3, config_of(layout, schemes::kNone, kPerRank, 16),
              kManyTokens};
    many.config.max_tokens_per_rank = 1500;
    many.returns_weights = true;
    cases.add(many);
  }
}

std::vector<Case> cases() {
  Cases cases;
  add_sizes(cases);
  add_token_blocks(cases);
  add_chunks(cases);
  add_long_rows(cases);
  add_streamed_chunks(cases);
  add_options(cases);
  add_results(cases);
  add_returns(cases);
  add_weights(cases);
  add_own_numbers(cases);
  return cases.all();
}

class ExchangeCudaTest : public testing::TestWithParam<Case> {};

TEST_P(ExchangeCudaTest, EqualsTheCpuExchange) {
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks,
            [&](const Group& group) { ExchangeRun(group, GetParam()).run(); });
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeCudaTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace switchyard
