// SPDX-License-Identifier: Apache-2.0
//
// Rows of every scheme, with scales in every layout, give the same results as row-major ones.

#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "expert_problem.h"
#include "quant/scale_layout.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::oracle_experts;
using test::Problem;

std::vector<std::uint16_t> run_on(const Problem& problem, const ExpertRows& input) {
  const auto experts = make_exact_experts(problem.weights());
  std::vector<std::uint16_t> out(static_cast<std::size_t>(problem.total_rows * problem.hidden),
                                 test::kUntouchedBits);
  const AlignedBuffer workspace(experts->workspace_bytes(input.rows));
  experts->apply(input, TensorView(out.data(), DType::kBF16, {problem.total_rows, problem.hidden}),
                 {workspace.data(), workspace.size_bytes()});
  return out;
}

// Moves the scales of a problem to `target`: element (n, s) goes to place(n, s).
template <typename Place>
void move_scales(const Problem& problem, std::byte* target, const Place& place) {
  const TensorView& from = problem.scales;
  const auto bytes = static_cast<std::int64_t>(bits_of(from.dtype()) / 8);
  for (std::int64_t n = 0; n < from.shape(0); ++n) {
    for (std::int64_t s = 0; s < from.shape(1); ++s) {
      std::memcpy(target + place(n, s) * bytes,
                  from.as<std::byte>() + (n * from.shape(1) + s) * bytes,
                  static_cast<std::size_t>(bytes));
    }
  }
}

// Three blocks of 10 rows, as a masked grouped GEMM receives them.
Problem three_blocks(const QuantScheme& scheme, std::int64_t hidden) {
  Problem problem(hidden, 18, {8, 8, 8}, DType::kBF16, scheme);
  problem.num_rows = {8, 0, 3};
  return problem;
}

// DeepEP's low-latency layout: [L, C, S] with strides (S * C, 1, C).
TEST(ExpertInputTest, ScalesByColumnInEachBlock) {
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Ue8m0}) {
    const Problem problem = three_blocks(scheme, 1100);
    const std::int64_t per_row = problem.scales.shape(1);
    const Tensor scales(problem.scales.dtype(), {3, per_row, 10});
    move_scales(problem, scales.as<std::byte>(), [&](std::int64_t n, std::int64_t s) {
      return n / 10 * per_row * 10 + s * 10 + n % 10;
    });
    ExpertRows input = problem.input();
    input.scales =
        TensorView(scales.data(), scales.dtype(), {3, 10, per_row}, {per_row * 10, 1, 10});
    input.scale_layout = ScaleLayout::kColumnMajor;
    EXPECT_EQ(run_on(problem, input), oracle_experts(problem)) << name_of(scheme);
  }
}

TEST(ExpertInputTest, EachExpertMayHaveItsOwnTensorScale) {
  Problem problem(40, 18, {5, 6}, DType::kBF16, schemes::kFp8Tensor);
  const float scales[] = {0.0125f, 0.05f};
  ExpertRows input = problem.input();
  input.scales = TensorView::of(scales, {2});
  for (std::int64_t n = problem.first_row[1]; n < problem.total_rows; ++n) {
    for (std::int64_t h = 0; h < 40; ++h) {
      const std::uint8_t code = problem.rows.as<std::uint8_t>()[n * 40 + h];
      problem.x[static_cast<std::size_t>(n * 40 + h)] = reference::f32_from_e4m3(code) * 0.05f;
    }
  }
  EXPECT_EQ(run_on(problem, input), oracle_experts(problem));
}

TEST(ExpertInputTest, PlainRowsMayBeF16OrF32) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const Problem problem(31, 18, {5, 6}, DType::kBF16, QuantScheme{dtype});
    EXPECT_EQ(run_on(problem, problem.input()), oracle_experts(problem)) << name_of(dtype);
  }
}

TEST(ExpertInputTest, BadScalesAreNamed) {
  const Problem block = three_blocks(schemes::kFp8Block, 300);
  const Problem tensor = three_blocks(schemes::kFp8Tensor, 300);
  const float scalars[] = {1, 1};
  struct Case {
    const char* phrase;
    const Problem& problem;
    std::function<void(ExpertRows&)> spoil;
  };
  const Case cases[] = {
      {"scales is f32 [3, 9, 3], must be f32 [3, 10, 3] for 30 rows", block,
       [&](ExpertRows& r) {
         r.scales = TensorView(block.scales.data(), DType::kF32, {3, 9, 3});
       }},
      {"scales is f32 [4, 30, 3]", block,
       [&](ExpertRows& r) {
         r.scales = TensorView(block.scales.data(), DType::kF32, {4, 30, 3});
       }},
      {"scales is f32 [0, 10, 3]", block,
       [&](ExpertRows& r) {
         r.scales = TensorView(block.scales.data(), DType::kF32, {0, 10, 3});
       }},
      {"scales are f32 and swizzled, must be scales of one byte", block,
       [](ExpertRows& r) { r.scale_layout = ScaleLayout::kSwizzled; }},
      {"tensor_scale is f32 [1], must be absent for fp8_block", block,
       [&](ExpertRows& r) { r.tensor_scale = TensorView::of(scalars, {1}); }},
      {"scales is f32 [2], must be f32 [1] or [3]", tensor,
       [&](ExpertRows& r) { r.scales = TensorView::of(scalars, {2}); }},
      {"scales is absent, must be f32 [1] or [3]", tensor, [](ExpertRows& r) { r.scales = {}; }},
  };
  for (const Case& bad : cases) {
    ExpertRows input = bad.problem.input();
    bad.spoil(input);
    SCOPED_TRACE(bad.phrase);
    test::expect_invalid(bad.phrase, [&] { run_on(bad.problem, input); });
  }
}

}  // namespace
}  // namespace switchyard
