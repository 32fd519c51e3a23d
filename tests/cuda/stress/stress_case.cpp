// SPDX-License-Identifier: Apache-2.0

#include "stress_case.h"

#include <algorithm>

#include "core/format.h"

namespace switchyard::test {
namespace {

constexpr Layout kBatched = Layout::kBatched;
constexpr Layout kExpanded = Layout::kExpanded;
constexpr Layout kCompact = Layout::kCompact;

QuantScheme scheme_of(StressForm form) {
  if (form == StressForm::kPlain) return schemes::kNone;
  return form == StressForm::kStoredFp4 ? schemes::kNvfp4 : schemes::kFp8Block;
}

const char* name_of(StressForm form) {
  constexpr const char* kNames[] = {"bf16", "fp8_given", "fp4_given", "fp8_made"};
  return kNames[static_cast<int>(form)];
}

StressCase make(Layout layout, Reduce reduce, StressForm form, int hidden, int max_tokens) {
  StressCase c;
  c.shape.layout = layout;
  c.shape.form = form;
  c.shape.hidden = hidden;
  c.shape.max_tokens = max_tokens;
  c.reduce = reduce;
  return c;
}

std::string name_of(const StressCase& c) {
  std::string name = fmt::format("{}.{}.{}.h{}.t{}", switchyard::name_of(c.shape.layout),
                                 switchyard::name_of(c.reduce), name_of(c.shape.form),
                                 c.shape.hidden, c.shape.max_tokens);
  if (c.uses_graph) name += ".graph";
  if (c.is_cold) name += ".cold";
  if (c.splits_phases) name += ".split";
  if (c.programmatic) name += ".pdl";
  if (c.num_lanes > 1) name += ".two";
  if (c.shape.mixes_turns) name += ".mixed";
  if (c.shape.capacity > 0) name += ".drop";
  if (c.num_ctas > 0) name += fmt::format(".ctas{}", c.num_ctas);
  return name;
}

// Adds one layout and one reduce contract in each way of sending and ordering.
void add_ways(Layout layout, Reduce reduce, std::vector<StressCase>& cases) {
  StressCase decode = make(layout, reduce, StressForm::kStored, 7168, 128);
  decode.uses_graph = true;
  cases.push_back(decode);
  StressCase cold = make(layout, reduce, StressForm::kPlain, 2060, 64);
  cold.is_cold = cold.splits_phases = true;
  cold.shape.ids_are_64_bits = true;
  cases.push_back(cold);
  StressCase two = make(layout, reduce, StressForm::kStored, 1024, 64);
  two.num_lanes = 2;
  two.uses_graph = two.is_cold = true;
  cases.push_back(two);
  StressCase two_calls = make(layout, reduce, StressForm::kMade, 1024, 32);
  two_calls.num_lanes = 2;
  two_calls.splits_phases = true;
  cases.push_back(two_calls);
  StressCase made = make(layout, reduce, StressForm::kMade, 7168, 128);
  made.uses_graph = made.is_cold = true;
  made.shape.outputs_f32 = true;
  cases.push_back(made);
  StressCase fp4 = make(layout, reduce, StressForm::kStoredFp4, 1056, 100);
  fp4.programmatic = fp4.uses_graph = fp4.splits_phases = true;
  cases.push_back(fp4);
  StressCase mixed = make(layout, reduce, StressForm::kPlain, 1040, 48);
  mixed.shape.mixes_turns = mixed.programmatic = mixed.uses_graph = true;
  cases.push_back(mixed);
  StressCase dropping = make(layout, reduce, StressForm::kStored, 640, 12);
  dropping.shape.mixes_turns = dropping.shape.returns_weights = true;
  dropping.shape.capacity = 8;
  dropping.shape.payload_words = 5;
  cases.push_back(dropping);
  // So few that each does all kinds of work.
  StressCase few = make(layout, reduce, StressForm::kPlain, 1024, 128);
  few.shape.mixes_turns = few.uses_graph = true;
  few.num_ctas = 3;
  cases.push_back(few);
}

}  // namespace

std::vector<StressCase> stress_cases(int num_ranks, std::uint32_t seed, bool is_small) {
  std::vector<StressCase> cases;
  // One case for many rows and two for many pairs.
  StressCase rows = make(kExpanded, Reduce::kPerRank, StressForm::kStored, 128, 4096);
  rows.uses_graph = true;
  rows.share = 7;
  cases.push_back(rows);
  StressCase pairs = make(kBatched, Reduce::kPerRank, StressForm::kStored, 512, 8);
  pairs.uses_graph = true;
  pairs.share = 30;
  cases.push_back(pairs);
  StressCase linked = pairs;
  linked.shape.form = StressForm::kPlain;
  linked.programmatic = true;
  linked.share = 10;
  cases.push_back(linked);
  for (const Layout layout : {kBatched, kExpanded, kCompact}) {
    add_ways(layout, Reduce::kPerRank, cases);
    if (layout != kCompact) add_ways(layout, Reduce::kPerExpert, cases);
  }
  std::uint32_t next_seed = seed;
  for (StressCase& c : cases) {
    c.shape.seed = next_seed++;
    c.shape.num_ranks = num_ranks;
    if (is_small) {
      c.shape.max_tokens = std::min(c.shape.max_tokens, c.num_ctas > 0 ? 96 : 24);
      if (c.shape.hidden > 2060) c.shape.hidden = 1280;
    }
    c.name = name_of(c);
  }
  return cases;
}

ExchangeConfig config_of(const StressCase& c) {
  ExchangeConfig config;
  config.num_experts = c.shape.num_experts();
  config.num_topk = c.shape.num_topk;
  config.hidden = c.shape.hidden;
  config.max_tokens_per_rank = c.shape.max_tokens;
  config.layout = c.shape.layout;
  config.scheme = scheme_of(c.shape.form);
  config.reduce = c.reduce;
  config.worst_case_rows = true;
  config.max_in_flight = c.num_lanes;
  config.capacity = c.shape.capacity;
  if (c.shape.capacity > 0) config.overflow = Overflow::kDrop;
  if (c.shape.payload_words > 0) config.payload_bytes = {c.shape.payload_words * 4};
  return config;
}

}  // namespace switchyard::test
