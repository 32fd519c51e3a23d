// SPDX-License-Identifier: Apache-2.0
//
// Whole layers of the sizes in vLLM's tests/kernels/moe (test_deepep_moe), with its tolerances. The
// larger ones have a quarter of the hidden and intermediate elements, so that the oracle ends
// today; one of each pair of a class and a scheme. Over CPUs and over GPUs.

#include <array>

#include <fmt/format.h>

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/layer_run.h"
#include "conformance/pairwise.h"

namespace switchyard::conformance {
namespace {

struct Size {
  std::int64_t num_tokens;
  std::int64_t intermediate;
  std::int64_t hidden;
};

constexpr std::array<Size, 7> kSizes{{{1, 128, 128},
                                      {2, 128, 512},
                                      {3, 256, 512},
                                      {32, 128, 256},
                                      {45, 128, 512},
                                      {64, 256, 256},
                                      {222, 256, 512}}};
constexpr std::array<std::int32_t, 3> kTopk{1, 2, 6};
constexpr std::array kKinds{PrepareKind::kLowLatency,     PrepareKind::kElasticDecode,
                            PrepareKind::kElasticPrefill, PrepareKind::kAllGather,
                            PrepareKind::kAllToAll,       PrepareKind::kAllToAllOneSided};
constexpr std::array kSchemes{schemes::kNone, schemes::kFp8Tensor, schemes::kFp8Token,
                              schemes::kFp8Block, schemes::kNvfp4};

double bound_of(const QuantScheme& scheme) { return scheme.needs_tensor_scale() ? 1e-1 : 6e-2; }

void add(Cases& cases, const Place& place, LayerCase test, bool is_quick) {
  test.experts = place.has_gpus() || has_onednn() ? "onednn" : "exact";
  test.magnitude = 0.1f;
  // Given, so that the oracle rounds tokens with the same scale.
  test.has_static_scale = test.scheme.group == ScaleGroup::kTensor;
  test.quantizes_activation = !test.scheme.needs_tensor_scale();
  CheckCase result;
  result.group = "layers";
  result.name =
      fmt::format("layers/{}/P{}/{}/{}/E{}/K{}/M{}N{}H{}", place.name(), test.num_ranks,
                  name_of(test.kind), name_of(test.scheme), test.shape.num_experts,
                  test.shape.num_topk, test.num_tokens, test.intermediate, test.shape.hidden);
  result.row = name_of(test.kind);
  result.column = column_part(place.device) + name_of(test.scheme);
  result.device = place.device;
  result.engine = place.engine;
  result.num_ranks = test.num_ranks;
  result.is_quick = is_quick;
  result.body = [test, place](const Group& group, std::uint64_t seed) {
    const LayerRun layer(group, test, seed * 1000);
    Agreement agreement;
    const Tensor output = layer.run(group, device_of(place.device, group), agreement);
    if (!agreement.skipped.empty()) return agreement;
    const Agreement reached = expect_close("output", output, layer.plain(), bound_of(test.scheme));
    agreement.is_exact = reached.is_exact;
    agreement.max_error = reached.max_error;
    agreement.bound = reached.bound;
    return agreement;
  };
  cases.push_back(std::move(result));
}

}  // namespace

void add_layer_cases(Cases& cases) {
  enum Factor : std::size_t { kSize, kK, kKind, kScheme };
  int number = 0;
  for (const Levels& l :
       cover_pairs({kSizes.size(), kTopk.size(), kKinds.size(), kSchemes.size()})) {
    const Size& size = kSizes[l[kSize]];
    LayerCase test;
    test.kind = kKinds[l[kKind]];
    test.scheme = kSchemes[l[kScheme]];
    test.reduce = test.kind == PrepareKind::kLowLatency ? Reduce::kPerExpert : Reduce::kPerRank;
    test.shape = {.num_experts = 32, .num_topk = kTopk[l[kK]], .hidden = size.hidden};
    test.num_tokens = size.num_tokens;
    test.intermediate = size.intermediate;
    const char* engine = ++number % 2 == 0 ? "shm" : "local";
    for (const char* device : kDevices) add(cases, {device, engine}, test, size.num_tokens < 100);
  }
  // One at its full size.
  for (const QuantScheme& scheme : kSchemes) {
    LayerCase test;
    test.kind = PrepareKind::kElasticPrefill;
    test.scheme = scheme;
    test.reduce = Reduce::kPerRank;
    test.shape = {.num_experts = 4, .num_topk = 2, .hidden = 2048};
    test.num_tokens = 3;
    test.intermediate = 1024;
    for (const char* device : kDevices) add(cases, {device, "local"}, test, false);
  }
}

}  // namespace switchyard::conformance
