// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <limits>
#include <tuple>

#include <gtest/gtest.h>

#include "expert_problem.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

using namespace test;

constexpr QuantScheme kPacked{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kDivide,
                              ScaleFormat::kE8M0Packed};
constexpr QuantScheme kSchemes[] = {schemes::kNone,           schemes::kFp8Block,
                                    schemes::kFp8BlockDeepEp, schemes::kFp8Token,
                                    schemes::kFp8Tensor,      kPacked};
constexpr DType kWeightDTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3};

// One expert, H = 2, I = 1: gate = x0, up = x1, down = (1, -2).
TEST(ExactExpertsTest, KnownAnswer) {
  const float gate[] = {1, 0};
  const float up[] = {0, 1};
  const float down[] = {1, -2};
  const std::uint16_t x[] = {bf16_from_f32(100.0f), bf16_from_f32(3.0f)};
  const auto experts = make_exact_experts({TensorView::of(gate, {1, 1, 2}),
                                           TensorView::of(up, {1, 1, 2}),
                                           TensorView::of(down, {1, 2, 1}),
                                           {},
                                           {},
                                           {}});
  std::uint16_t y[2] = {};
  const std::int64_t first_row = 0;
  const std::int32_t num_rows = 1;
  const TensorView rows(x, DType::kBF16, {1, 2});
  std::vector<std::byte> workspace(experts->workspace_bytes(rows));
  experts->apply(
      {rows, {}, schemes::kNone, TensorView::of(&first_row, {1}), TensorView::of(&num_rows, {1})},
      TensorView(y, DType::kBF16, {1, 2}), workspace);
  // silu(100) is 100 in f32; 100 * 3 = 300 is a bf16.
  EXPECT_EQ(f32_from_bf16(y[0]), 300.0f);
  EXPECT_EQ(f32_from_bf16(y[1]), -600.0f);
}

class ExactShapeTest
    : public ::testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, DType>> {};

TEST_P(ExactShapeTest, EqualsTheOracleOnEveryTarget) {
  const auto [hidden, intermediate, dtype] = GetParam();
  const Problem problem(hidden, intermediate, {0, 1, 5, 98}, dtype);
  const auto expected = oracle_experts(problem);
  const auto experts = make_exact_experts(problem.weights());
  test::for_each_target([&] { EXPECT_EQ(run_experts(*experts, problem), expected); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExactShapeTest,
                         ::testing::Combine(::testing::Values(1, 7, 16, 33, 128, 257),
                                            ::testing::Values(1, 7, 16, 33, 128, 257),
                                            ::testing::Values(DType::kBF16, DType::kF32)));

TEST(ExactExpertsTest, DepthBeyondOneBlockKeepsTheChain) {
  const Problem problem(700, 600, {7, 24, 25});
  const auto expected = oracle_experts(problem);
  const auto experts = make_exact_experts(problem.weights());
  test::for_each_target([&] { EXPECT_EQ(run_experts(*experts, problem), expected); });
}

void expect_oracle(const Problem& problem, const QuantScheme& intermediate) {
  const auto experts = make_exact_experts(problem.weights(), {intermediate});
  const auto expected = oracle_experts(problem, {intermediate});
  test::for_each_target([&] {
    EXPECT_EQ(run_experts(*experts, problem), expected)
        << name_of(problem.gate.values.dtype()) << " weights, input " << name_of(problem.scheme)
        << ", intermediate " << name_of(intermediate);
  });
}

TEST(ExactExpertsTest, EveryWeightDTypeAndSchemeEqualsTheOracle) {
  for (const QuantScheme& scheme : kSchemes) {
    for (const DType dtype : kWeightDTypes) {
      expect_oracle(Problem(136, 72, {3, 0, 14}, dtype, scheme), schemes::kNone);
    }
    expect_oracle(Problem(136, 72, {3, 0, 14}), scheme);
  }
}

// One scale for all rows of an expert, which are more than a tile.
TEST(ExactExpertsTest, IntermediateScaleOfATensorSpansTiles) {
  const Problem problem(40, 70, {250, 1, 97});
  const auto experts = make_exact_experts(problem.weights(), {schemes::kFp8Tensor});
  EXPECT_EQ(run_experts(*experts, problem), oracle_experts(problem, {schemes::kFp8Tensor}));
  EXPECT_FALSE(experts->is_batch_invariant());
}

TEST(ExactExpertsTest, ARowAloneEqualsTheRowInABatch) {
  for (const QuantScheme& intermediate : {schemes::kNone, schemes::kFp8Block, schemes::kFp8Token}) {
    Problem problem(130, 65, {100});
    const auto experts = make_exact_experts(problem.weights(), {intermediate});
    EXPECT_TRUE(experts->is_batch_invariant());
    const auto batch = run_experts(*experts, problem);
    for (const std::int64_t row : {0, 1, 12, 57, 95, 96, 99}) {
      problem.first_row = {row};
      problem.num_rows = {1};
      const auto alone = run_experts(*experts, problem);
      for (auto i = static_cast<std::size_t>(row * 130);
           i < static_cast<std::size_t>(row + 1) * 130; ++i) {
        ASSERT_EQ(alone[i], batch[i]) << "row " << row;
      }
    }
  }
}

TEST(ExactExpertsTest, NotANumberStaysInItsRow) {
  Problem problem(65, 33, {20});
  const auto experts = make_exact_experts(problem.weights());
  const auto clean = run_experts(*experts, problem);
  std::vector<float> values = problem.x;
  values[3 * 65 + 7] = std::numeric_limits<float>::quiet_NaN();
  values[13 * 65 + 64] = std::numeric_limits<float>::infinity();
  problem.set_rows(values);
  const auto expected = oracle_experts(problem);
  test::for_each_target([&] {
    const auto out = run_experts(*experts, problem);
    EXPECT_EQ(out, expected);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (i / 65 == 3) {
        EXPECT_EQ(out[i], 0x7FC0) << i;
      } else if (i / 65 != 13) {
        EXPECT_EQ(out[i], clean[i]) << i;
      }
    }
  });
}

// gate and up are halves of one tensor, rows have gaps, and scales are column-major.
TEST(ExactExpertsTest, StridesChangeNothing) {
  const Problem problem(150, 40, {5, 9}, DType::kF32, schemes::kFp8Block);
  const auto expected = run_experts(*make_exact_experts(problem.weights()), problem);
  const std::int64_t rows = problem.total_rows;
  const Tensor fused(DType::kF32, {2, 80, 150});
  for (std::int64_t e = 0; e < 2; ++e) {
    for (std::int64_t i = 0; i < 40 * 150; ++i) {
      fused.as<float>()[e * 12000 + i] = problem.gate.values.as<float>()[e * 6000 + i];
      fused.as<float>()[e * 12000 + 6000 + i] = problem.up.values.as<float>()[e * 6000 + i];
    }
  }
  const Tensor down(DType::kF32, {2, 40, 150});  // transposed: depth first
  for (std::int64_t i = 0; i < 12000; ++i) {
    down.as<float>()[i / 6000 * 6000 + i % 40 * 150 + i % 6000 / 40] =
        problem.down.values.as<float>()[i];
  }
  const Tensor padded(DType::kE4M3, {rows, 160});
  const Tensor scales(DType::kF32, {2, rows});
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(padded.as<std::byte>() + r * 160, problem.rows.as<std::byte>() + r * 150, 150);
    for (std::int64_t s = 0; s < 2; ++s) {
      scales.as<float>()[s * rows + r] = problem.scales.as<float>()[r * 2 + s];
    }
  }
  const Tensor out(DType::kBF16, {rows, 152});
  const auto experts = make_exact_experts(
      {TensorView(fused.data(), DType::kF32, {2, 40, 150}, {12000, 150, 1}),
       TensorView(fused.as<float>() + 6000, DType::kF32, {2, 40, 150}, {12000, 150, 1}),
       TensorView(down.data(), DType::kF32, {2, 150, 40}, {6000, 1, 150}),
       {},
       {},
       {}});
  std::vector<std::byte> workspace(experts->workspace_bytes(problem.rows));
  experts->apply({TensorView(padded.data(), DType::kE4M3, {rows, 150}, {160, 1}),
                  TensorView(scales.data(), DType::kF32, {rows, 2}, {1, rows}), problem.scheme,
                  test::view_of(problem.first_row), test::view_of(problem.num_rows)},
                 TensorView(out.data(), DType::kBF16, {rows, 150}, {152, 1}), workspace);
  for (std::int64_t e = 0; e < 2; ++e) {
    const auto at = static_cast<std::size_t>(e);
    for (std::int64_t r = problem.first_row[at]; r < problem.first_row[at] + problem.num_rows[at];
         ++r) {
      for (std::int64_t h = 0; h < 150; ++h) {
        ASSERT_EQ(out.as<std::uint16_t>()[r * 152 + h],
                  expected[static_cast<std::size_t>(r * 150 + h)]);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
