// SPDX-License-Identifier: Apache-2.0
//
// Every prepare/finalize class around experts of fixed order, bit for bit: prepare, experts,
// weights, sums, the way back and a shared expert at once; whole, and in micro-batches. Over CPUs
// and over GPUs.

#include <array>

#include <fmt/format.h>

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/layer_run.h"
#include "conformance/pairwise.h"
#include "conformance/scheme_list.h"

namespace switchyard::conformance {
namespace {

constexpr std::array kKinds{PrepareKind::kLowLatency,     PrepareKind::kElasticDecode,
                            PrepareKind::kElasticPrefill, PrepareKind::kAllGather,
                            PrepareKind::kAllToAll,       PrepareKind::kAllToAllOneSided,
                            PrepareKind::kLocal};
constexpr std::array<int, 4> kRanks{1, 2, 3, 5};
constexpr std::array<std::int64_t, 4> kTokens{0, 1, 13, 40};

const std::array<BatchShape, 5>& shapes() {
  static const std::array<BatchShape, 5> kShapes{{
      {.num_experts = 7, .num_topk = 3, .hidden = 136, .none_share = 0.2},
      {.num_experts = 8, .num_topk = 2, .hidden = 64},
      {.num_experts = 4, .num_topk = 1, .hidden = 258},
      {.num_experts = 6, .num_topk = 4, .hidden = 18, .none_share = 1.0},
      {.num_experts = 9, .num_topk = 1, .hidden = 32, .only_expert = 5},
  }};
  return kShapes;
}

bool serves_both_contracts(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill ||
         kind == PrepareKind::kLocal;
}

void add(Cases& cases, const Place& place, const LayerCase& test, int number) {
  const bool is_split = test.num_micro_batches > 1;
  CheckCase result;
  result.group = is_split ? "micro_batches" : "classes";
  result.name =
      fmt::format("{}/{}/P{}/{}/{}/{}/T{}/{}{}", result.group, place.name(), test.num_ranks,
                  switchyard::name_of(test.kind), switchyard::name_of(test.scheme),
                  switchyard::name_of(test.reduce), test.num_tokens, test.name, number);
  result.row = switchyard::name_of(test.kind);
  result.column = fmt::format("{} {}", place.name(), switchyard::name_of(test.reduce));
  result.device = place.device;
  result.engine = place.engine;
  result.num_ranks = test.num_ranks;
  result.is_quick = !place.has_gpus() || place.is_local() || test.num_ranks < 4;
  result.body = [test, place](const Group& group, std::uint64_t seed) {
    const LayerRun layer(group, test, seed * 1000);
    Agreement agreement;
    const Tensor output = layer.run(group, device_of(place.device, group), agreement);
    if (agreement.skipped.empty()) expect_same_bits("output", output, layer.exact());
    return agreement;
  };
  cases.push_back(std::move(result));
}

enum Factor : std::size_t {
  kKind,
  kScheme,
  kReduceOf,
  kRanksOf,
  kShape,
  kTokensOf,
  kLayout,
  kWeighsInput,
  kStatic,
  kActivation,
  kWideIds,
  kDuplicates,
  kSharedOf
};

void make_possible(const std::vector<QuantScheme>& schemes, bool is_split, Levels& l) {
  const PrepareKind kind = kKinds[l[kKind]];
  if (!serves_both_contracts(kind)) l[kReduceOf] = 0;
  const QuantScheme& scheme = schemes[l[kScheme]];
  l[kLayout] %= layouts_of(scheme).size();
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  if (!is_tensor) l[kStatic] = 0;
  // One scale for all rows would depend on the split; the experts would want another given scale.
  if (is_split && is_tensor) l[kStatic] = 1;
  if (scheme.needs_tensor_scale() || (is_split && is_tensor)) l[kActivation] = 0;
  if (shapes()[l[kShape]].num_topk != 1) l[kWeighsInput] = 0;
  if (kind == PrepareKind::kLowLatency) l[kDuplicates] = 0;
}

LayerCase make_case(const std::vector<QuantScheme>& schemes, const Levels& l) {
  LayerCase test;
  test.kind = kKinds[l[kKind]];
  test.scheme = schemes[l[kScheme]];
  test.reduce = l[kReduceOf] == 0 ? Reduce::kPerRank : Reduce::kPerExpert;
  test.num_ranks = kRanks[l[kRanksOf]];
  test.shape = shapes()[l[kShape]];
  test.shape.has_duplicates = l[kDuplicates] == 1;
  test.num_tokens = kTokens[l[kTokensOf]];
  test.scale_layout = layouts_of(test.scheme)[l[kLayout]];
  test.weighs_input = l[kWeighsInput] == 1;
  test.has_static_scale = l[kStatic] == 1;
  test.quantizes_activation = l[kActivation] == 1;
  test.has_wide_ids = l[kWideIds] == 1;
  test.shared = static_cast<SharedKind>(l[kSharedOf]);
  return test;
}

// ---- further options, each with every class ----------------------------------------------------

struct WireCase {
  QuantScheme wire;
  QuantScheme experts;
  ScaleLayout layout = ScaleLayout::kRowMajor;
};

// Rows are quantized again where they arrive.
const std::vector<WireCase>& wire_cases() {
  static const std::vector<WireCase> kCases{
      {schemes::kFp8Block, schemes::kNvfp4},
      {schemes::kFp8Block, schemes::kNone},
      {schemes::kNone, schemes::kFp8Token},
      {schemes::kNone, schemes::kFp8Block, ScaleLayout::kColumnMajor},
      {schemes::kNone, schemes::kNvfp4, ScaleLayout::kSwizzled},
      {schemes::kNone, schemes::kFp8Ue8m0, ScaleLayout::kColumnMajorAligned},
      {schemes::kFp8BlockDeepEp, schemes::kFp8Token},
      {schemes::kFp8BlockDeepEp, schemes::kFp8Tensor},
      {schemes::kFp8Ue8m0, schemes::kInt8Block, ScaleLayout::kColumnMajorAligned},
      {schemes::kNvfp4, schemes::kFp8Token},
      {schemes::kInt8Token, schemes::kMxfp6E2M3},
      {{DType::kF32}, schemes::kFp8Block},
      {{DType::kF32}, schemes::kNone},
      {{DType::kF16}, schemes::kMxfp6E3M2},
      {{DType::kF16}, schemes::kMxfp8, ScaleLayout::kSwizzled},
  };
  return kCases;
}

LayerCase option_case(const char* name, PrepareKind kind, const QuantScheme& scheme) {
  LayerCase test;
  test.name = std::string(name) + "/";
  test.kind = kind;
  test.scheme = scheme;
  const bool is_exact = kind == PrepareKind::kLowLatency || kind == PrepareKind::kLocal;
  test.reduce = is_exact ? Reduce::kPerExpert : Reduce::kPerRank;
  test.num_ranks = 3;
  test.shape = {.num_experts = 7, .num_topk = 3, .hidden = 136, .none_share = 0.2};
  test.quantizes_activation = false;
  return test;
}

void add_wires(PrepareKind kind, std::vector<LayerCase>& tests) {
  for (const WireCase& wire : wire_cases()) {
    LayerCase test = option_case("wire", kind, wire.experts);
    test.name += switchyard::name_of(wire.wire) + "/";
    test.wire_scheme = wire.wire;
    test.scale_layout = wire.layout;
    if (wire.experts.group == ScaleGroup::kTensor) test.shape.none_share = 0;
    if (!wire.wire.is_quantized()) test.input = wire.wire.dtype;
    tests.push_back(test);
  }
  // More rows than one tile of scales, quantized before and after they travel.
  for (const bool is_late : {false, true}) {
    for (const int num_ranks : {1, 3}) {
      LayerCase test = option_case(is_late ? "late_tiles" : "tiles", kind, schemes::kNvfp4);
      test.num_ranks = num_ranks;
      test.shape.hidden = 80;
      test.num_tokens = 90;
      test.scale_layout = ScaleLayout::kSwizzled;
      if (is_late) test.wire_scheme = schemes::kNone;
      tests.push_back(test);
    }
  }
}

void add_options(PrepareKind kind, std::vector<LayerCase>& tests) {
  for (const int num_ranks : {2, 4}) {  // of 9 experts 4 ranks have 3, 2, 2 and 2
    LayerCase renamed = option_case("renamed", kind, schemes::kFp8Block);
    renamed.num_ranks = num_ranks;
    renamed.shape.num_experts = num_ranks == 2 ? 8 : 9;
    renamed.renames = true;
    tests.push_back(renamed);
  }
  for (const bool in_place : {false, true}) {
    LayerCase weighed =
        option_case(in_place ? "weighed_in_place" : "weighed_f32", kind, schemes::kFp8Token);
    weighed.shape.num_topk = 1;
    weighed.weighs_input = true;
    weighed.weighs_in_place = in_place;
    weighed.input = DType::kF32;
    tests.push_back(weighed);
  }
  for (const bool is_weighed : {false, true}) {  // nothing is rounded to 16 bits anywhere
    LayerCase plain = option_case(is_weighed ? "f32_weighed" : "f32", kind, {DType::kF32});
    plain.input = DType::kF32;
    plain.quantizes_activation = true;
    plain.shared = SharedKind::kGated;
    plain.weighs_input = is_weighed;
    if (is_weighed) plain.shape.num_topk = 1;
    tests.push_back(plain);
  }
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Tensor, schemes::kNvfp4}) {
    LayerCase deferred = option_case("deferred", kind, scheme);
    deferred.defers = true;
    if (scheme.needs_tensor_scale()) deferred.wire_scheme = schemes::kNone;
    tests.push_back(deferred);
  }
  LayerCase few = option_case("fewer_experts_than_ranks", kind, schemes::kFp8Block);
  few.shape = {.num_experts = 2, .num_topk = 2, .hidden = 136, .none_share = 0.2};
  few.wire_scheme = schemes::kNone;
  tests.push_back(few);
  for (const std::int64_t num_tokens : {9, 23}) {
    LayerCase small = option_case("small_calls", kind, schemes::kFp8Block);
    small.num_tokens = num_tokens;
    small.limits_calls = true;
    tests.push_back(small);
    small.wire_scheme = schemes::kNone;
    small.name += "late/";
    tests.push_back(small);
  }
  for (const std::int64_t alignment : {2, 3, 16}) {
    for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert}) {
      if (kind != PrepareKind::kElasticPrefill) continue;
      LayerCase aligned = option_case("aligned", kind, schemes::kFp8Block);
      aligned.reduce = reduce;
      aligned.alignment = alignment;
      aligned.scale_layout = ScaleLayout::kColumnMajorAligned;
      tests.push_back(aligned);
    }
    if (kind != PrepareKind::kElasticPrefill) continue;
    LayerCase gaps = option_case("gaps", kind, schemes::kInt8Tensor);
    gaps.alignment = alignment;
    tests.push_back(gaps);
  }
}

// More and fewer ranks than choices, with slices of uneven size.
void add_slices(PrepareKind kind, std::vector<LayerCase>& tests) {
  if (kind != PrepareKind::kAllGather) return;
  for (const int num_ranks : {1, 2, 3, 5}) {
    for (const QuantScheme& scheme :
         {schemes::kNone, schemes::kFp8Block, schemes::kFp8Tensor, schemes::kNvfp4}) {
      LayerCase test = option_case("slices", kind, scheme);
      test.num_ranks = num_ranks;
      test.slices_experts = true;
      test.renames = num_ranks == 2;
      test.limits_calls = num_ranks == 3;
      if (num_ranks == 5) test.intermediate = 7;
      test.shared = num_ranks == 2 ? SharedKind::kGated : SharedKind::kNone;
      tests.push_back(test);
    }
  }
}

void add_option_cases(Cases& cases) {
  int number = 0;
  for (const PrepareKind kind : kKinds) {
    std::vector<LayerCase> tests;
    add_wires(kind, tests);
    add_options(kind, tests);
    add_slices(kind, tests);
    for (const LayerCase& test : tests) {
      ++number;
      add(cases, {"cpu", "local"}, test, number);
      if (test.output() == DType::kF32) continue;  // results of GPUs are bf16
      add(cases, {"cuda", "local"}, test, number);
      cases.back().is_quick = false;
    }
  }
}

}  // namespace

void add_class_cases(Cases& cases) {
  std::vector<QuantScheme> schemes = quantized_schemes();
  schemes.insert(schemes.begin(), schemes::kNone);
  const Levels num_levels{kKinds.size(),
                          schemes.size(),
                          2,
                          kRanks.size(),
                          shapes().size(),
                          kTokens.size(),
                          4,
                          2,
                          2,
                          2,
                          2,
                          2,
                          4};
  for (const bool is_split : {false, true}) {
    int number = 0;
    for (const Levels& levels :
         cover_pairs(num_levels, [&](Levels& l) { make_possible(schemes, is_split, l); })) {
      LayerCase test = make_case(schemes, levels);
      ++number;
      if (is_split) test.num_micro_batches = 2 + number % 2;
      for (const Place& place : kPlaces) {
        if (place.is_local() || test.num_ranks > 1) add(cases, place, test, number);
      }
    }
  }
  add_option_cases(cases);
}

}  // namespace switchyard::conformance
