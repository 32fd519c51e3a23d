// SPDX-License-Identifier: Apache-2.0
//
// Every prepare/finalize class around experts of fixed order, bit for bit: prepare, experts,
// weights, sums and the way back at once; whole, and in micro-batches. Over CPUs and over GPUs.

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
  result.name = fmt::format("{}/{}/P{}/{}/{}/{}/T{}/{}", result.group, place.name(), test.num_ranks,
                            switchyard::name_of(test.kind), switchyard::name_of(test.scheme),
                            switchyard::name_of(test.reduce), test.num_tokens, number);
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
  kDuplicates
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
  return test;
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
                          2};
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
}

}  // namespace switchyard::conformance
