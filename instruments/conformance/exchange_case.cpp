// SPDX-License-Identifier: Apache-2.0
//
// The factors of an exchange, their values, and which of them cannot go together.

#include "conformance/exchange_case.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "conformance/pairwise.h"
#include "core/round_up.h"
#include "quant/scheme.h"

namespace switchyard::conformance {
namespace {

constexpr std::int64_t kSlack = 3;  // room beyond the tokens that come

const std::vector<QuantScheme>& wire_schemes() {
  static const std::vector<QuantScheme> kSchemes = [] {
    std::vector<QuantScheme> all = named_schemes();  // the first is none
    all.insert(all.begin() + 1, {QuantScheme{DType::kF16}, QuantScheme{DType::kF32}});
    return all;
  }();
  return kSchemes;
}

const std::vector<QuantScheme>& return_schemes() {
  static const std::vector<QuantScheme> kSchemes{
      schemes::kNone,     QuantScheme{DType::kF16}, QuantScheme{DType::kF32}, schemes::kFp8Block,
      schemes::kFp8Ue8m0, schemes::kInt8Token,      schemes::kMxfp8};
  return kSchemes;
}

const std::vector<BatchShape>& shapes() {
  static const std::vector<BatchShape> kShapes{
      {.num_experts = 8, .num_topk = 2, .hidden = 16},
      {.num_experts = 7, .num_topk = 3, .hidden = 136, .none_share = 0.3},
      {.num_experts = 13, .num_topk = 5, .hidden = 257, .none_share = 0.1},
      {.num_experts = 4, .num_topk = 1, .hidden = 1},
      {.num_experts = 5, .num_topk = 2, .hidden = 40, .none_share = 1.0},
      {.num_experts = 6, .num_topk = 1, .hidden = 24, .only_expert = 4},
      {.num_experts = 2, .num_topk = 2, .hidden = 130},
      {.num_experts = 0, .num_topk = 0, .hidden = 144},
  };
  return kShapes;
}

constexpr std::array kReduces{Reduce::kPerRank, Reduce::kPerExpert, Reduce::kPerHost};
constexpr std::array kFloats{DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<std::int64_t, 3> kAlignments{1, 7, 16};
constexpr std::array<std::int64_t, 3> kCapacities{0, 1, 3};
constexpr std::array<std::int64_t, 4> kTokens{23, 9, 1, 0};

enum Factor : std::size_t {
  kRanks,
  kShape,
  kLayoutOf,
  kScheme,
  kScaleLayoutOf,
  kReduceOf,
  kReturn,
  kSendsWeights,
  kLacksWeights,
  kAlignment,
  kWorstCase,
  kZeroPadding,
  kCapacity,
  kPayloads,
  kInput,
  kResults,
  kOutput,
  kBias,
  kReturnsWeights,
  kLimits,
  kNumTokens,
  kUnevenExperts
};

Levels num_levels(std::size_t num_rank_counts) {
  return {num_rank_counts,
          shapes().size(),
          5,
          wire_schemes().size(),
          4,
          3,
          return_schemes().size(),
          2,
          2,
          3,
          2,
          2,
          3,
          3,
          4,
          3,
          3,
          3,
          2,
          2,
          4,
          2};
}

// Levels that cannot go together give way, in this order.
void make_possible(Levels& levels) {
  if (shapes()[levels[kShape]].num_topk == 0) {
    levels[kLayoutOf] = static_cast<std::size_t>(Layout::kAllGather);
    levels[kCapacity] = levels[kReturnsWeights] = levels[kUnevenExperts] = 0;
  }
  const auto layout = static_cast<Layout>(levels[kLayoutOf]);
  if (!is_expert_major(layout) && levels[kReduceOf] == 1) levels[kReduceOf] = 0;
  if (layout != Layout::kExpanded) levels[kAlignment] = levels[kZeroPadding] = 0;

  const bool is_pair = wire_schemes()[levels[kScheme]].dtype == DType::kE2M1;
  if (is_pair && shapes()[levels[kShape]].hidden % 2 != 0) levels[kScheme] = 0;
  const QuantScheme& scheme = wire_schemes()[levels[kScheme]];
  if (scheme.is_simulated()) levels[kInput] = 0;
  const auto scale_layout = static_cast<ScaleLayout>(levels[kScaleLayoutOf]);
  const bool has_scales =
      scheme.is_quantized() && scheme.group != ScaleGroup::kTensor && !scheme.is_simulated();
  const bool has_bytes = has_scales && bits_of(scale_dtype(scheme)) == 8;
  const bool is_swizzled = scale_layout == ScaleLayout::kSwizzled;
  if (!has_scales || (is_swizzled && !has_bytes)) levels[kScaleLayoutOf] = 0;
  if (!scheme.is_quantized() && levels[kInput] == 3) levels[kInput] = 0;
  if (levels[kSendsWeights] == 1) levels[kReturnsWeights] = levels[kLacksWeights] = 0;
}

// To bf16 no row is narrowed.
DType fitting(const QuantScheme& wire, DType rows) {
  return !wire.is_quantized() && wire.dtype == DType::kBF16 ? DType::kBF16 : rows;
}

ExchangeCase make_case(const Levels& l, const std::vector<int>& rank_counts, std::uint64_t seed) {
  ExchangeCase test;
  test.num_ranks = rank_counts[l[kRanks]];
  test.shape = shapes()[l[kShape]];
  test.layout = static_cast<Layout>(l[kLayoutOf]);
  test.shape.has_duplicates = test.layout != Layout::kBatched && seed % 3 == 0;
  test.num_tokens = kTokens[l[kNumTokens]];
  test.scheme = wire_schemes()[l[kScheme]];
  test.scale_layout = static_cast<ScaleLayout>(l[kScaleLayoutOf]);
  test.reduce = kReduces[l[kReduceOf]];
  test.combine_scheme = return_schemes()[l[kReturn]];
  test.sends_weights = l[kSendsWeights] == 0;
  test.lacks_weights = l[kLacksWeights] == 1;
  test.alignment = kAlignments[l[kAlignment]];
  test.worst_case_rows = l[kWorstCase] == 1;
  test.zero_padding = l[kZeroPadding] == 1;
  test.capacity = kCapacities[l[kCapacity]];
  if (l[kPayloads] == 1) test.payload_bytes = {3};
  if (l[kPayloads] == 2) test.payload_bytes = {8, 1};
  test.is_quantized_input = l[kInput] == 3;
  test.input = fitting(test.scheme, kFloats[l[kInput] % 3]);
  test.results = fitting(test.combine_scheme, kFloats[l[kResults]]);
  test.output = kFloats[l[kOutput]];
  test.num_bias = static_cast<int>(l[kBias]);
  test.returns_weights = l[kReturnsWeights] == 1;
  test.limits_calls = l[kLimits] == 1;
  test.has_uneven_experts = l[kUnevenExperts] == 1;
  test.seed = seed;
  return test;
}

// The order of a sum shows only where three terms are kept in f32.
void add_long_sums(const std::vector<int>& rank_counts, std::vector<ExchangeCase>& cases) {
  for (const int num_ranks : rank_counts) {
    for (int number = 0; number < 10 && num_ranks > 2; ++number) {
      const int layout = number % 5;
      ExchangeCase test;
      test.num_ranks = num_ranks;
      test.shape = {.num_experts = 13, .num_topk = 5, .hidden = 33};
      test.layout = static_cast<Layout>(layout);
      test.reduce = number < 5 ? Reduce::kPerRank : Reduce::kPerHost;
      test.combine_scheme.dtype = test.results = test.output = DType::kF32;
      test.num_bias = 1;
      test.is_long = false;
      test.seed = 1000 + cases.size();
      cases.push_back(test);
    }
  }
}

}  // namespace

// About half of the ranks have experts, one of them at least.
std::vector<std::int32_t> ExchangeCase::experts_per_rank() const {
  if (!has_uneven_experts) return {};
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_ranks), 0);
  std::vector<std::size_t> holders{seed % counts.size()};
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (random_bits(seed, rank) % 2 == 0) holders.push_back(rank);
  }
  for (std::int32_t e = 0; e < shape.num_experts; ++e) {
    const std::uint64_t draw = random_bits(seed, 1000 + static_cast<std::uint64_t>(e));
    ++counts[holders[draw % holders.size()]];
  }
  return counts;
}

ExchangeConfig ExchangeCase::config() const {
  ExchangeConfig config;
  config.num_experts = shape.num_experts;
  config.experts_per_rank = experts_per_rank();
  config.num_topk = shape.num_topk;
  config.hidden = shape.hidden;
  config.max_tokens_per_rank = num_tokens + kSlack;
  config.layout = layout;
  config.scheme = scheme;
  config.scale_layout = scale_layout;
  config.payload_bytes = payload_bytes;
  config.reduce = reduce;
  config.combine_scheme = combine_scheme;
  config.sends_weights = sends_weights;
  config.expert_alignment = alignment;
  config.worst_case_rows = worst_case_rows;
  config.zero_padding = zero_padding;
  config.capacity = capacity;
  config.overflow = overflow;
  config.max_in_flight = max_in_flight;
  return config;
}

std::string ExchangeCase::describe() const {
  return fmt::format(
      "P {} E {}{} K {} H {} T {} layout {} scheme {} scales {} reduce {} combine {} weights {} "
      "lacking {} alignment {} worst {} zero {} capacity {} payloads {} input {}{} results {} "
      "output {} bias {} returns {} limits {} keeps {} none {} duplicates {} "
      "only {} seed {}",
      num_ranks, shape.num_experts, has_uneven_experts ? ", uneven" : "", shape.num_topk,
      shape.hidden, num_tokens, name_of(layout), name_of(scheme), static_cast<int>(scale_layout),
      name_of(reduce), name_of(combine_scheme), sends_weights, lacks_weights, alignment,
      worst_case_rows, zero_padding, capacity, payload_bytes.size(), name_of(input),
      is_quantized_input ? ", quantized" : "", name_of(results), name_of(output), num_bias,
      returns_weights, limits_calls, keeps_routing, shape.none_share, shape.has_duplicates,
      shape.only_expert, seed);
}

std::vector<ExchangeCase> exchange_cases(const std::vector<int>& rank_counts) {
  std::vector<ExchangeCase> cases;
  for (const Levels& levels : cover_pairs(num_levels(rank_counts.size()), make_possible)) {
    cases.push_back(make_case(levels, rank_counts, cases.size() + 1));
  }
  add_long_sums(rank_counts, cases);
  std::stable_sort(cases.begin(), cases.end(), [](const ExchangeCase& a, const ExchangeCase& b) {
    return a.num_ranks < b.num_ranks;
  });
  return cases;
}

ExchangeCase random_exchange_case(std::uint64_t seed, const std::vector<int>& rank_counts) {
  std::uint64_t counter = 0;
  const auto draw = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random_bits(seed, counter++) %
                                     static_cast<std::uint64_t>(count));
  };
  Levels levels;
  for (const std::size_t count : num_levels(rank_counts.size())) {
    levels.push_back(static_cast<std::size_t>(draw(static_cast<std::int64_t>(count))));
  }
  make_possible(levels);
  ExchangeCase test = make_case(levels, rank_counts, random_bits(seed, counter++) >> 32);
  BatchShape& shape = test.shape;
  if (shape.num_topk > 0) {
    shape.num_experts = static_cast<std::int32_t>(1 + draw(40));
    shape.num_topk = static_cast<std::int32_t>(1 + draw(std::min(8, shape.num_experts)));
    if (shape.only_expert >= 0) {
      shape.only_expert = static_cast<std::int32_t>(draw(shape.num_experts));
      shape.num_topk = 1;
    }
  }
  shape.hidden = 1 + draw(draw(4) == 0 ? 16 : 600);
  if (draw(2) == 0) shape.hidden = align_up(shape.hidden, std::int64_t{16});
  if (test.scheme.dtype == DType::kE2M1) shape.hidden = align_up(shape.hidden, std::int64_t{2});
  test.num_tokens = draw(draw(8) == 0 ? 4 : 48);
  if (test.alignment > 1) test.alignment = 1 + draw(32);
  if (test.capacity > 0) test.capacity = 1 + draw(8);
  for (std::int64_t& bytes : test.payload_bytes) bytes = 1 + draw(40);
  test.max_in_flight = draw(3) == 0 ? 2 : 1;
  return test;
}

std::vector<ExchangeCase> two_in_flight_cases(int num_ranks) {
  std::vector<ExchangeCase> cases;
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather}) {
    for (const Reduce reduce : kReduces) {
      if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
      ExchangeCase test;
      test.num_ranks = num_ranks;
      test.shape = {.num_experts = 9, .num_topk = 4, .hidden = 72, .none_share = 0.2};
      test.layout = layout;
      test.reduce = reduce;
      test.returns_weights = true;
      test.max_in_flight = 2;
      test.seed = cases.size() + 1;
      cases.push_back(test);
    }
  }
  return cases;
}

}  // namespace switchyard::conformance
