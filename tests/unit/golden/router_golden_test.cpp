// SPDX-License-Identifier: Apache-2.0
//
// The router and its oracle against router.safetensors: logits and ids are equal, weights lie
// within the error of exp and of the sums.

#include <cmath>
#include <string>
#include <vector>

#include "switchyard/router.h"

#include "quant/scalar.h"
#include "reference/reference.h"
#include "support/for_each_target.h"
#include "support/golden.h"

namespace switchyard {
namespace {

using reference::Table;
using test::expect_bytes;
using test::Golden;

struct RouterCase {
  const char* name;
  RouterConfig config;
  bool has_bias = false;
};

std::vector<RouterCase> cases() {
  using S = Scoring;
  using G = GroupSelection;
  return {{"mixtral", {16, 2, S::kSoftmax, true, 1.0f, G::kNone, 1, 1}},
          {"qwen", {16, 4, S::kSoftmax, false, 1.0f, G::kNone, 1, 1}},
          {"v2", {16, 3, S::kSoftmax, false, 16.0f, G::kMax, 4, 2}},
          {"v3", {16, 4, S::kSigmoid, true, 2.5f, G::kTop2Sum, 4, 2}, true},
          {"biased", {16, 5, S::kSigmoid, false, 1.0f, G::kNone, 1, 1}, true},
          {"all", {16, 16, S::kSigmoid, true, 1.0f, G::kNone, 1, 1}}};
}

// Each exp is wrong by less than 0.9 ulp, the sum of E scores rounds E times, then quotient and
// product round; K and E are at most 16.
void expect_close(const float* got, const TensorView& want) {
  for (std::int64_t i = 0; i < want.num_elements(); ++i) {
    const double exact = want.as<float>()[i];
    EXPECT_LE(std::fabs(double{got[i]} - exact), 24 * 0x1p-24 * std::fabs(exact) + 0x1p-147)
        << "weight " << i << " is " << got[i] << ", want " << exact;
  }
}

void expect_choices(const Golden& golden) {
  for (const RouterCase& test : cases()) {
    SCOPED_TRACE(test.name);
    const std::string path = std::string(test.name) + "/";
    const TensorView logits = golden(path + "logits");
    const std::int64_t num_tokens = logits.shape(0);
    const TensorView bias = test.has_bias ? golden("bias") : TensorView{};
    const Tensor ids(DType::kI32, {num_tokens, test.config.num_topk});
    const Tensor weights(DType::kF32, {num_tokens, test.config.num_topk});
    select_experts(test.config, logits, bias, ids, weights);
    expect_bytes(path + "ids", ids, golden(path + "ids"));
    expect_close(weights.as<float>(), golden(path + "weights"));

    const Table<float> table(num_tokens, 16,
                             {logits.as<float>(), logits.as<float>() + logits.num_elements()});
    const std::span<const float> biases(test.has_bias ? bias.as<float>() : nullptr,
                                        test.has_bias ? 16u : 0u);
    const reference::Routing oracle = reference::select_experts(test.config, table, biases);
    expect_bytes("oracle",
                 TensorView::of(oracle.topk_ids.data.data(), {num_tokens, test.config.num_topk}),
                 golden(path + "ids"));
    expect_close(oracle.topk_weights.data.data(), golden(path + "weights"));
  }
}

Table<float> floats(const TensorView& x) {
  Table<float> values(x.shape(0), x.shape(1));
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    values.data[static_cast<std::size_t>(i)] = scalar::load(x.data(), x.dtype(), i);
  }
  return values;
}

void expect_logits(const Golden& golden) {
  const TensorView hidden = golden("logits/hidden");
  for (const std::string name : {"f32", "bf16"}) {
    const TensorView gate = golden("logits/" + name + "/gate");
    const TensorView want = golden("logits/" + name + "/out");
    const Tensor logits(DType::kF32, {hidden.shape(0), gate.shape(0)});
    test::for_each_target([&] {
      router_logits(hidden, gate, logits);
      expect_bytes(name, logits, want);
    });
    const Table<float> oracle = reference::router_logits(floats(hidden), floats(gate));
    expect_bytes("oracle", TensorView::of(oracle.data.data(), {oracle.rows, oracle.cols}), want);
  }
}

TEST(RouterGoldenTest, LogitsAndIdsAreEqualAndWeightsClose) {
  const Golden golden("router");
  expect_logits(golden);
  expect_choices(golden);
  golden.expect_all_taken();
}

}  // namespace
}  // namespace switchyard
