// SPDX-License-Identifier: Apache-2.0
//
// Every named scheme for the rows and for the activation, and swizzled scales.

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "expert_problem.h"
#include "quant/scale_layout.h"
#include "support/errors.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

using namespace test;

constexpr const char* kNames[] = {"none",       "fp8_block",  "fp8_ue8m0",       "fp8_ue8m0_deepep",
                                  "fp8_token",  "fp8_tensor", "int8_token",      "int8_tensor",
                                  "int8_block", "nvfp4",      "mxfp4",           "mxfp6_e3m2",
                                  "mxfp6_e2m3", "mxfp8",      "fp8_block_deepep"};

// nvfp4 needs a scale for the tensor; the other schemes must not get one.
ExpertOptions options_of(const QuantScheme& intermediate) {
  static const float global = 300.0f;
  ExpertOptions options{intermediate, activations::kGptOss};
  if (intermediate.needs_tensor_scale()) options.intermediate_scale = TensorView::of(&global, {1});
  return options;
}

TEST(ExpertSchemesTest, EverySchemeOfRowsEqualsTheOracle) {
  for (const char* name : kNames) {
    for (const std::int64_t hidden : {2, 34, 200, 518}) {
      const Problem problem(hidden, 6, {3, 0, 14}, DType::kBF16, scheme_from_name(name).value());
      EXPECT_EQ(run_experts(*make_exact_experts(problem.weights()), problem),
                oracle_experts(problem))
          << name << ", " << hidden;
    }
  }
}

TEST(ExpertSchemesTest, EverySchemeOfTheActivationEqualsTheOracle) {
  for (const char* name : kNames) {
    for (const std::int64_t intermediate : {2, 38, 300}) {
      const Problem problem(24, intermediate, {3, 0, 30});
      const ExpertOptions options = options_of(scheme_from_name(name).value());
      const auto experts = make_exact_experts(problem.weights(), options);
      const auto expected = oracle_experts(problem, options);
      test::for_each_target([&] {
        EXPECT_EQ(run_experts(*experts, problem), expected) << name << ", " << intermediate;
      });
    }
  }
}

// Scales of 130 rows, and of two blocks of 65 rows, in tiles of 128 x 4.
TEST(ExpertSchemesTest, SwizzledScalesChangeNothing) {
  for (const QuantScheme& scheme : {schemes::kNvfp4, schemes::kMxfp4, schemes::kMxfp8}) {
    const Problem problem(300, 6, {63, 63}, DType::kBF16, scheme);
    const auto expected = oracle_experts(problem);
    const std::int64_t per_row = problem.scales.shape(1);
    for (const std::int64_t blocks : {1, 2}) {
      const std::int64_t rows = 130 / blocks;
      const std::int64_t tiles = (rows + 127) / 128;
      const std::int64_t across = (per_row + 3) / 4;
      const Tensor scales(problem.scales.dtype(), {blocks, tiles, across, 32, 4, 4});
      for (std::int64_t n = 0; n < 130; ++n) {
        for (std::int64_t s = 0; s < per_row; ++s) {
          // Index by dimension: block, tile, tile, m % 32, m / 32, s % 4.
          const std::int64_t m = n % rows % 128;
          const std::int64_t tile = (n / rows * tiles + n % rows / 128) * across + s / 4;
          scales.as<std::uint8_t>()[((tile * 32 + m % 32) * 4 + m / 32) * 4 + s % 4] =
              problem.scales.as<std::uint8_t>()[n * per_row + s];
        }
      }
      ExpertRows input = problem.input();
      input.scale_layout = ScaleLayout::kSwizzled;
      input.scales = scales;
      if (blocks == 1) {
        input.scales = TensorView(scales.data(), scales.dtype(), {tiles, across, 32, 4, 4});
      }
      const auto experts = make_exact_experts(problem.weights());
      std::vector<std::uint16_t> out(expected.size(), test::kUntouchedBits);
      const AlignedBuffer workspace(experts->workspace_bytes(input.rows));
      experts->apply(input, TensorView(out.data(), DType::kBF16, {130, 300}),
                     {workspace.data(), workspace.size_bytes()});
      EXPECT_EQ(out, expected) << name_of(scheme) << ", " << blocks << " blocks";
    }
  }
}

TEST(ExpertSchemesTest, BadRowsAndOptionsAreNamed) {
  const Problem nvfp4(64, 6, {3}, DType::kBF16, schemes::kNvfp4);
  const auto experts = make_exact_experts(nvfp4.weights());
  const Tensor out(DType::kBF16, {nvfp4.total_rows, 64});
  std::vector<std::byte> workspace(experts->workspace_bytes(nvfp4.rows));
  const auto expect_refusal = [&](const char* phrase,
                                  const std::function<void(ExpertRows&)>& spoil) {
    ExpertRows input = nvfp4.input();
    spoil(input);
    test::expect_invalid(phrase, [&] { experts->apply(input, out, workspace); });
  };
  expect_refusal("tensor_scale is absent, must be f32 [1] or [L] for nvfp4",
                 [](ExpertRows& r) { r.tensor_scale = {}; });
  expect_refusal("scales is e4m3 [5, 4], must be contiguous e4m3 [1, 1, 32, 4, 4] for 5 rows",
                 [](ExpertRows& r) { r.scale_layout = ScaleLayout::kSwizzled; });
  expect_refusal("e2m1 elements are 63 apart, must be even numbers", [&](ExpertRows& r) {
    r.rows = TensorView(nvfp4.rows.data(), DType::kE2M1, {5, 64}, {63, 1});
  });
  test::expect_invalid("intermediate_scale is absent, must be f32",
                       [&] { make_exact_experts(nvfp4.weights(), {schemes::kNvfp4}); });
  const float infinite = HUGE_VALF;
  test::expect_invalid("intermediate_scale is inf, must be a positive number", [&] {
    make_exact_experts(nvfp4.weights(), {schemes::kNvfp4, {}, TensorView::of(&infinite, {1})});
  });
  const Problem odd(64, 7, {3});
  test::expect_invalid("intermediate is mxfp4 of 7 elements",
                       [&] { make_exact_experts(odd.weights(), {schemes::kMxfp4}); });
}

}  // namespace
}  // namespace switchyard
