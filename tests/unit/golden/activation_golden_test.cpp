// SPDX-License-Identifier: Apache-2.0
//
// Gated activations on CPUs, for every Highway target, and their scalar definitions, which the
// oracle uses, against the golden vectors.

#include "quant/activation.h"
#include "quant/exp.h"
#include "support/for_each_target.h"
#include "support/golden_activation.h"

namespace switchyard {
namespace {

using namespace test;

TEST(ActivationGoldenTest, EveryProcessorIsWithinTheErrorOfExp) {
  const Golden golden("activation");
  const auto* gate = golden("gate").as<float>();
  const auto* up = golden("up").as<float>();
  const std::int64_t count = golden("gate").num_elements();
  std::vector<float> got(static_cast<std::size_t>(count));
  test::for_each_target([&] {
    for (const NamedActivation& test : kGoldenActivations) {
      activate(test.activation, gate, up, count, got.data());
      test::expect_golden_activation(golden, test, got.data());
    }
    test::expect_golden_silu_quantize(golden, Stream::host());
  });
  golden.expect_all_taken();
}

TEST(ActivationGoldenTest, DefinitionsAreWithinTheErrorOfExp) {
  const Golden golden("activation");
  const auto* gate = golden("gate").as<float>();
  const auto* up = golden("up").as<float>();
  for (const NamedActivation& test : kGoldenActivations) {
    std::vector<float> got(static_cast<std::size_t>(golden("gate").num_elements()));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const Activation& a = test.activation;
      got[i] = a.kind == ActivationKind::kSiluMul
                   ? silu_mul(gate[i], up[i])
                   : clamped_swiglu(gate[i], up[i], a.alpha, a.beta, a.limit);
    }
    test::expect_golden_activation(golden, test, got.data());
  }
}

}  // namespace
}  // namespace switchyard
