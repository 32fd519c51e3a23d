// SPDX-License-Identifier: Apache-2.0
//
// What all experts share: names, refusals, workspace; and "onednn" against "exact".

#include "switchyard/experts.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "expert_problem.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using namespace test;

// Returns the oneDNN experts, or null in a build without oneDNN.
std::unique_ptr<Experts> onednn_or_null(const Problem& problem, const ExpertOptions& options = {}) {
  try {
    return make_onednn_experts(problem.weights(), options);
  } catch (const Error& error) {
    if (error.code() == Errc::kNotAvailable) return nullptr;
    throw;
  }
}

TEST(ExpertsTest, AreMadeByName) {
  const Problem problem(8, 4, {1});
  EXPECT_EQ(make_experts("exact", problem.weights())->name(), "exact");
  expect_invalid("experts are \"cublas\"", [&] { make_experts("cublas", problem.weights()); });
  if (onednn_or_null(problem) != nullptr) {
    EXPECT_EQ(make_experts("onednn", problem.weights())->name(), "onednn");
  }
}

TEST(ExpertsTest, NoRowsIsNoWork) {
  const Problem problem(8, 4, {1, 1});
  const auto experts = make_exact_experts(problem.weights());
  const std::vector<std::int64_t> first_row(2, 0);
  const std::vector<std::int32_t> num_rows(2, 0);
  const TensorView rows(nullptr, DType::kBF16, {0, 8});
  EXPECT_EQ(experts->workspace_bytes(rows), 0U);
  experts->apply({rows, {}, schemes::kNone, test::view_of(first_row), test::view_of(num_rows)},
                 TensorView(nullptr, DType::kBF16, {0, 8}), {});
}

TEST(ExpertsTest, WorkspaceStopsGrowingWithTheBatch) {
  const Problem problem(64, 32, {1});
  const auto experts = make_exact_experts(problem.weights());
  const auto rows = [](std::int64_t n) { return TensorView(nullptr, DType::kBF16, {n, 64}); };
  EXPECT_LT(experts->workspace_bytes(rows(1)), experts->workspace_bytes(rows(96)));
  EXPECT_EQ(experts->workspace_bytes(rows(96)), experts->workspace_bytes(rows(1 << 20)));
  const TensorView batch(nullptr, DType::kBF16, {1, 96, 64});
  EXPECT_EQ(experts->workspace_bytes(batch), experts->workspace_bytes(rows(96)));
  // One scale for all rows of an expert keeps them all: 4 * I bytes more for each row.
  const auto whole = make_exact_experts(problem.weights(), {schemes::kFp8Tensor});
  EXPECT_EQ(whole->workspace_bytes(rows(2000)) - whole->workspace_bytes(rows(1000)),
            1000U * 4 * 32);
  expect_invalid("workspace_bytes: rows is bf16 [64], must be",
                 [&] { experts->workspace_bytes(TensorView(nullptr, DType::kBF16, {64})); });
  expect_invalid("workspace_bytes: rows is absent", [&] { experts->workspace_bytes({}); });
}

TEST(ExpertsTest, AWorkspaceMayStartAnywhereAndIsNeverOverrun) {
  const Problem problem(33, 17, {40}, DType::kBF16, schemes::kFp8Block);
  for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kFp8Tensor}) {
    const auto experts = make_exact_experts(problem.weights(), {scheme});
    const auto expected = oracle_experts(problem, {scheme});
    const std::size_t bytes = experts->workspace_bytes(problem.rows);
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, std::size_t{63}}) {
      std::vector<std::byte> memory(bytes + 128, std::byte{0x5A});
      std::vector<std::uint16_t> out(expected.size(), test::kUntouchedBits);
      experts->apply(problem.input(),
                     TensorView(out.data(), DType::kBF16, {problem.total_rows, 33}),
                     {memory.data() + shift, bytes});
      EXPECT_EQ(out, expected);
      for (std::size_t i = 0; i < memory.size(); ++i) {
        const bool outside = i < shift || i >= shift + bytes;
        ASSERT_TRUE(!outside || memory[i] == std::byte{0x5A}) << i;
      }
    }
  }
}

TEST(ExpertsTest, BadWeightsAreNamed) {
  const Problem good(130, 40, {1, 1}, DType::kE4M3);
  const Problem other(131, 40, {1, 1}, DType::kE4M3);
  const Problem plain(130, 40, {1, 1});
  const TensorView empty(nullptr, DType::kE4M3, {0, 0, 0});
  const TensorView bytes(nullptr, DType::kU8, {2, 40, 130});
  struct Case {
    const char* phrase;
    std::function<void(ExpertWeights&)> spoil;
  };
  const Case cases[] = {
      {"gate is absent", [](ExpertWeights& w) { w.gate = {}; }},
      {"gate is e4m3 [0, 0, 0]", [&](ExpertWeights& w) { w.gate = empty; }},
      {"up is e4m3 [2, 40, 131], must be [2, 40, 130]",
       [&](ExpertWeights& w) { w.up = other.up.values; }},
      {"down is e4m3 [2, 40, 130], must be [2, 130, 40]",
       [&](ExpertWeights& w) { w.down = good.gate.values; }},
      {"up is u8", [&](ExpertWeights& w) { w.up = bytes; }},
      {"gate_scale is absent, must be [2, 1, 2]", [](ExpertWeights& w) { w.gate_scale = {}; }},
      {"down_scale is f32 [2, 1, 2], must be [2, 2, 1]",
       [&](ExpertWeights& w) { w.down_scale = good.gate.scales; }},
      {"up_scale is f32 [2, 1, 2], but up is bf16",
       [&](ExpertWeights& w) { w.up = plain.up.values; }},
  };
  for (const Case& bad : cases) {
    ExpertWeights weights = good.weights();
    bad.spoil(weights);
    expect_invalid(bad.phrase, [&] { make_exact_experts(weights); });
  }
  expect_invalid("intermediate is f16",
                 [&] { make_exact_experts(good.weights(), {QuantScheme{DType::kF16}}); });
  expect_invalid("scheme is u8", [&] {
    make_exact_experts(good.weights(), {QuantScheme{DType::kU8, ScaleGroup::kToken}});
  });
}

// A bad call leaves the output unchanged.
TEST(ExpertsTest, BadCallsAreNamed) {
  const Problem good(130, 8, {3, 2}, DType::kBF16, schemes::kFp8Block);
  const std::int64_t total = good.total_rows;  // 9: rows 0-2 and 5-6 are owned
  const auto experts = make_exact_experts(good.weights());
  std::vector<std::uint16_t> out(static_cast<std::size_t>(total * 130), test::kUntouchedBits);
  const std::vector<std::uint16_t> untouched = out;
  std::vector<std::byte> memory(experts->workspace_bytes(good.rows));
  const std::int64_t outside[] = {0, 8};
  const std::int64_t before[] = {-1, 5};
  const std::int32_t negative[] = {3, -2};
  const auto of = [&](DType dtype, std::int64_t num_rows, std::int64_t hidden) {
    return TensorView(out.data(), dtype, {num_rows, hidden});
  };
  struct Call {
    ExpertRows input;
    TensorView output;
    std::span<std::byte> workspace;
  };
  struct Case {
    const char* phrase;
    std::function<void(Call&)> spoil;
  };
  const Case cases[] = {
      {"rows is absent", [](Call& c) { c.input.rows = {}; }},
      {"rows is e4m3 [9, 129]", [&](Call& c) { c.input.rows = of(DType::kE4M3, 9, 129); }},
      {"rows is bf16 [9, 130], must be e4m3",
       [&](Call& c) { c.input.rows = of(DType::kBF16, 9, 130); }},
      {"contiguous rows",
       [&](Call& c) {
         c.input.rows = TensorView(out.data(), DType::kE4M3, {9, 130}, {1, 9});
       }},
      {"rows is e4m3 [9, 130], must be bf16", [](Call& c) { c.input.scheme = schemes::kNone; }},
      {"scales is absent, must be f32 [9, 2]", [](Call& c) { c.input.scales = {}; }},
      {"scales is f32 [9, 2], must be f32 [9, 1]",
       [](Call& c) { c.input.scheme = schemes::kFp8Token; }},
      {"scales is f32 [9, 2], must be f32 [1] or [2]",
       [](Call& c) { c.input.scheme = schemes::kFp8Tensor; }},
      {"first_row is i64 [1]",
       [](Call& c) {
         c.input.first_row = TensorView::of(c.input.first_row.as<std::int64_t>(), {1});
       }},
      {"first_row is i32 [2]", [](Call& c) { c.input.first_row = c.input.num_rows; }},
      {"first_row is absent", [](Call& c) { c.input.first_row = {}; }},
      {"num_rows i32 [1], must be contiguous",
       [](Call& c) {
         c.input.num_rows = TensorView::of(c.input.num_rows.as<std::int32_t>(), {1});
       }},
      {"num_rows absent, must be contiguous", [](Call& c) { c.input.num_rows = {}; }},
      {"expert 1 has 2 rows from row 8, but the buffer has 9",
       [&](Call& c) { c.input.first_row = TensorView::of(outside, {2}); }},
      {"expert 0 has 3 rows from row -1",
       [&](Call& c) { c.input.first_row = TensorView::of(before, {2}); }},
      {"expert 1 has -2 rows", [&](Call& c) { c.input.num_rows = TensorView::of(negative, {2}); }},
      {"output is absent", [](Call& c) { c.output = {}; }},
      {"output is f16 [9, 130], must be bf16",
       [&](Call& c) { c.output = of(DType::kF16, 9, 130); }},
      {"output is bf16 [8, 130], must be bf16 [9, 130]",
       [&](Call& c) { c.output = of(DType::kBF16, 8, 130); }},
      {"workspace has", [](Call& c) { c.workspace = c.workspace.first(c.workspace.size() - 1); }},
  };
  for (const Case& bad : cases) {
    Call call{good.input(), TensorView(out.data(), DType::kBF16, {total, 130}), memory};
    bad.spoil(call);
    const bool is_memory = call.workspace.size() < memory.size();
    expect_error(is_memory ? Errc::kWorkspaceTooSmall : Errc::kInvalidArgument, bad.phrase,
                 [&] { experts->apply(call.input, call.output, call.workspace); });
    ASSERT_EQ(out, untouched) << bad.phrase;
  }
}

TEST(OneDnnExpertsTest, AgreeWithExactWithinATolerance) {
  // Partial tiles, more than a tile, and an expert without rows.
  const std::vector<std::int32_t> counts = {1, 0, 15, 17, 111, 255, 300};
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3}) {
    for (const QuantScheme& input : {schemes::kNone, schemes::kFp8Block}) {
      const Problem problem(136, 72, counts, dtype, input);
      const auto fast = onednn_or_null(problem);
      if (fast == nullptr) GTEST_SKIP() << "this build has no oneDNN";
      EXPECT_FALSE(fast->is_batch_invariant());
      const auto out = run_experts(*fast, problem);
      const auto expected = run_experts(*make_exact_experts(problem.weights()), problem);
      // Quantized rows and weights are rounded to bf16 after scaling: an error of 2^-9 per element.
      EXPECT_LT(test::worst_row_error(out, expected, 136), 1e-2)
          << name_of(dtype) << " weights, input " << name_of(input);
    }
  }
}

TEST(OneDnnExpertsTest, QuantizedWeightsBiasesAndActivationsAgreeWithinATolerance) {
  const test::WeightFormat formats[] = {{DType::kI8, DType::kF32, weight_blocks::kChannel},
                                        {DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true},
                                        {DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4}};
  for (const test::WeightFormat& format : formats) {
    Problem problem(136, 72, {1, 0, 40, 257}, format);
    problem.add_biases(DType::kF32);
    const ExpertOptions options{schemes::kNone, activations::kGptOss};
    const auto fast = onednn_or_null(problem, options);
    if (fast == nullptr) GTEST_SKIP() << "this build has no oneDNN";
    const auto out = run_experts(*fast, problem);
    const auto expected = run_experts(*make_exact_experts(problem.weights(), options), problem);
    EXPECT_LT(test::worst_row_error(out, expected, 136), 1e-2) << name_of(format.dtype);
  }
}

TEST(OneDnnExpertsTest, IntermediateSchemesAgreeWithinTheirStep) {
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Token, schemes::kFp8Tensor}) {
    const Problem problem(136, 72, {300, 5});
    const auto fast = onednn_or_null(problem, {scheme});
    if (fast == nullptr) GTEST_SKIP() << "this build has no oneDNN";
    const auto out = run_experts(*fast, problem);
    const auto expected = run_experts(*make_exact_experts(problem.weights(), {scheme}), problem);
    // A sum that crosses an e4m3 rounding boundary changes one of 72 terms by up to 2^-3.
    EXPECT_LT(test::worst_row_error(out, expected, 136), 4e-2) << name_of(scheme);
  }
}

TEST(OneDnnExpertsTest, BadArgumentsAreRefusedAsByExact) {
  const Problem problem(8, 4, {1});
  if (onednn_or_null(problem) == nullptr) {
    expect_error(Errc::kNotAvailable, "no oneDNN", [&] { make_onednn_experts(problem.weights()); });
    return;
  }
  ExpertWeights weights = problem.weights();
  weights.up = {};
  expect_invalid("make_onednn_experts: up is absent", [&] { make_onednn_experts(weights); });
}

}  // namespace
}  // namespace switchyard
