// SPDX-License-Identifier: Apache-2.0
//
// Activations and biases of experts: known answers, then exact experts against the oracle.

#include <limits>

#include <gmock/gmock.h>

#include "expert_problem.h"
#include "support/errors.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

using namespace test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Activation kActivations[] = {
    activations::kSiluMul,
    activations::kGptOss,
    {ActivationKind::kClampedSwiGlu, 1.0f, 0.0f, 0.75f},
    {ActivationKind::kClampedSwiGlu, -0.5f, -2.0f, kInfinity},
};

// One expert, H = I = 1, down = 1: the result is the activation of x * 1 + bias.
std::vector<float> activation_of(const Activation& activation, float gate_bias, float up_bias,
                                 float down_bias, float x) {
  const float one[] = {1.0f};
  const std::uint16_t row[] = {bf16_from_f32(x)};
  ExpertWeights weights;
  weights.gate = weights.up = weights.down = TensorView::of(one, {1, 1, 1});
  weights.gate_bias = TensorView::of(&gate_bias, {1, 1});
  weights.up_bias = TensorView::of(&up_bias, {1, 1});
  weights.down_bias = TensorView::of(&down_bias, {1, 1});
  const auto experts = make_exact_experts(weights, {schemes::kNone, activation});
  std::uint16_t y[1] = {};
  const std::int64_t first_row = 0;
  const std::int32_t num_rows = 1;
  const TensorView rows(row, DType::kBF16, {1, 1});
  std::vector<std::byte> workspace(experts->workspace_bytes(rows));
  experts->apply(
      {rows, {}, schemes::kNone, TensorView::of(&first_row, {1}), TensorView::of(&num_rows, {1})},
      TensorView(y, DType::kBF16, {1, 1}), workspace);
  return {f32_from_bf16(y[0])};
}

TEST(ExpertActivationTest, KnownAnswers) {
  using ::testing::ElementsAre;
  // silu(1 + 99) * (1 + 2) - 44 = 300 - 44.
  EXPECT_THAT(activation_of(activations::kSiluMul, 99, 2, -44, 1), ElementsAre(256.0f));
  // Both limits apply: 7 * sigmoid(11.9) * 8 = 55.9996, which is 56 in bf16.
  EXPECT_THAT(activation_of(activations::kGptOss, 50, 50, 0, 1), ElementsAre(56.0f));
  // up is clamped to -7: 7 * (-7 + 1); the bias of down is not clamped.
  EXPECT_THAT(activation_of(activations::kGptOss, 50, -50, 100, 1), ElementsAre(58.0f));
  // up + beta is 0.
  EXPECT_THAT(activation_of(activations::kGptOss, 2, -2, 3, 1), ElementsAre(3.0f));
  // The bias of down is added before the only rounding: 256 + 1 is a tie, 256 + 1.01 is not.
  EXPECT_THAT(activation_of(activations::kSiluMul, 255, 0, 1.0f, 1), ElementsAre(256.0f));
  EXPECT_THAT(activation_of(activations::kSiluMul, 255, 0, 1.01f, 1), ElementsAre(258.0f));
}

TEST(ExpertActivationTest, EveryActivationEqualsTheOracleOverOddSizes) {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1}, {1, 33}, {37, 1}, {67, 41}};
  for (const Activation& activation : kActivations) {
    for (const auto& [hidden, intermediate] : sizes) {
      for (const bool has_biases : {false, true}) {
        Problem problem(hidden, intermediate, {0, 5, 100, 1});
        if (has_biases) problem.add_biases(DType::kBF16);
        const ExpertOptions options{schemes::kNone, activation};
        const auto experts = make_exact_experts(problem.weights(), options);
        const auto expected = oracle_experts(problem, options);
        test::for_each_target([&] { EXPECT_EQ(run_experts(*experts, problem), expected); });
      }
    }
  }
}

TEST(ExpertActivationTest, F32StaysF32) {
  for (const Activation& activation : kActivations) {
    for (const DType weights : {DType::kBF16, DType::kF32}) {
      Problem problem(67, 41, {0, 5, 100, 1}, weights, {DType::kF32});
      problem.add_biases(DType::kF32);
      const ExpertOptions options{{DType::kF32}, activation};
      const auto experts = make_exact_experts(problem.weights(), options);
      EXPECT_EQ(experts->output_dtype(), DType::kF32);
      EXPECT_TRUE(experts->is_batch_invariant());
      const std::vector<float> expected = oracle_values(problem, options);
      EXPECT_EQ(run_experts_as(*experts, problem, f32_from_bf16(kUntouchedBits)), expected);
      EXPECT_NE(oracle_values(problem, {schemes::kNone, activation}), expected);
    }
  }
}

TEST(ExpertActivationTest, F32OutputIsForExpertsThatGiveIt) {
  const Problem problem(4, 4, {1});
  const auto apply = [&](const ExpertOptions& options, DType dtype) {
    const Tensor out(dtype, {problem.total_rows, 4});
    const auto experts = make_exact_experts(problem.weights(), options);
    std::vector<std::byte> workspace(experts->workspace_bytes(problem.rows));
    experts->apply(problem.input(), out, workspace);
  };
  test::expect_invalid("output is f32 [3, 4], must be bf16 [3, 4]",
                       [&] { apply({}, DType::kF32); });
  test::expect_invalid("output is bf16 [3, 4], must be f32 [3, 4]",
                       [&] { apply({{DType::kF32}}, DType::kBF16); });
  test::expect_invalid(
      "intermediate is f16, not quantized, must be bf16, f32 or a quantized scheme",
      [&] { apply({{DType::kF16}}, DType::kBF16); });
}

TEST(ExpertActivationTest, BiasesOfEveryDTypeAndSubsetEqualTheOracle) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int subset = 0; subset < 8; ++subset) {
      Problem problem(34, 21, {4, 3}, DType::kE4M3, schemes::kFp8Block);
      problem.add_biases(dtype);
      if ((subset & 1) == 0) problem.gate_bias = {};
      if ((subset & 2) == 0) problem.up_bias = {};
      if ((subset & 4) == 0) problem.down_bias = {};
      const ExpertOptions options{schemes::kFp8Token, activations::kGptOss};
      EXPECT_EQ(run_experts(*make_exact_experts(problem.weights(), options), problem),
                oracle_experts(problem, options))
          << name_of(dtype) << ", subset " << subset;
    }
  }
}

TEST(ExpertActivationTest, StridedBiasesAreReadWhereTheyLie) {
  Problem problem(34, 20, {4, 3});
  problem.add_biases(DType::kF32);
  const auto expected = oracle_experts(problem);
  const Tensor fused(DType::kF32, {2, 40});  // gate, up, gate, up, ...
  for (std::int64_t i = 0; i < 40; ++i) {
    fused.as<float>()[2 * i] = problem.gate_bias.as<float>()[i];
    fused.as<float>()[2 * i + 1] = problem.up_bias.as<float>()[i];
  }
  ExpertWeights weights = problem.weights();
  weights.gate_bias = TensorView(fused.data(), DType::kF32, {2, 20}, {40, 2});
  weights.up_bias = TensorView(fused.as<float>() + 1, DType::kF32, {2, 20}, {40, 2});
  EXPECT_EQ(run_experts(*make_exact_experts(weights), problem), expected);
}

TEST(ExpertActivationTest, ARowAloneEqualsTheRowInABatch) {
  const float scale[] = {0.02f};
  for (const QuantScheme& intermediate :
       {schemes::kNone, schemes::kFp8Block, schemes::kFp8Tensor}) {
    Problem problem(50, 37, {120});
    problem.add_biases(DType::kF32);
    ExpertOptions options{intermediate, activations::kGptOss};
    // A static scale does not depend on the batch.
    if (intermediate == schemes::kFp8Tensor) {
      options.intermediate_scale = TensorView::of(scale, {1});
    }
    const auto experts = make_exact_experts(problem.weights(), options);
    EXPECT_TRUE(experts->is_batch_invariant());
    const auto batch = run_experts(*experts, problem);
    EXPECT_EQ(batch, oracle_experts(problem, options));
    for (const std::int64_t row : {0, 13, 95, 96, 119}) {
      problem.first_row = {row};
      problem.num_rows = {1};
      const auto alone = run_experts(*experts, problem);
      for (auto i = static_cast<std::size_t>(row * 50); i < static_cast<std::size_t>(row + 1) * 50;
           ++i) {
        ASSERT_EQ(alone[i], batch[i]) << "row " << row;
      }
    }
  }
}

TEST(ExpertActivationTest, EachExpertMayHaveItsOwnIntermediateScale) {
  const Problem problem(32, 24, {5, 5});
  const float scales[] = {0.001f, 0.05f};
  const auto both =
      run_experts(*make_exact_experts(problem.weights(),
                                      {schemes::kFp8Tensor, {}, TensorView::of(scales, {2})}),
                  problem);
  for (std::size_t e = 0; e < 2; ++e) {
    const ExpertOptions one{schemes::kFp8Tensor, {}, TensorView::of(scales + e, {1})};
    const auto expected = oracle_experts(problem, one);
    const auto first = static_cast<std::size_t>(problem.first_row[e] * 32);
    for (std::size_t i = first; i < first + 5 * 32; ++i) ASSERT_EQ(both[i], expected[i]) << e;
  }
}

TEST(ExpertActivationTest, BadOptionsAndBiasesAreNamed) {
  Problem problem(32, 24, {5, 5});
  const float scale[] = {1, 2, 3};
  const auto expect_refusal = [&](const ExpertOptions& options, const char* phrase) {
    SCOPED_TRACE(phrase);
    test::expect_invalid(phrase, [&] { make_exact_experts(problem.weights(), options); });
  };
  const auto clamped = [](float alpha, float beta, float limit) {
    return ExpertOptions{schemes::kNone, {ActivationKind::kClampedSwiGlu, alpha, beta, limit}};
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_refusal(clamped(kInfinity, 0, 1), "alpha inf, beta 0 and limit 1");
  expect_refusal(clamped(1, nan, 1), "beta nan");
  expect_refusal(clamped(1, 1, 0), "limit 0, must be finite ones and a limit above 0");
  expect_refusal(clamped(1, 1, nan), "limit nan");
  expect_refusal({schemes::kNone, {static_cast<ActivationKind>(9)}}, "activation is 9");
  expect_refusal({schemes::kFp8Tensor, {}, TensorView::of(scale, {3})},
                 "intermediate_scale is f32 [3], must be f32 [1] or [2]");
  expect_refusal({schemes::kFp8Token, {}, TensorView::of(scale, {1})}, "must be absent");
  problem.add_biases(DType::kF32);
  std::swap(problem.gate_bias, problem.down_bias);
  expect_refusal({}, "gate_bias is f32 [2, 32], must be bf16, f16 or f32 [2, 24]");
}

}  // namespace
}  // namespace switchyard
