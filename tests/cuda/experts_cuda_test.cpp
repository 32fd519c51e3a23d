// SPDX-License-Identifier: Apache-2.0
//
// "exact" experts on a GPU return the same bits as on the CPU. Needs a GPU; skips without one.

#include "cuda_graph.h"
#include "experts_case.h"
#include "quant/scale_layout.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using namespace test;

// Runs consecutive experts and, where all experts have the same room, a batch.
void expect_same_bits(const Problem& problem, const std::string& what,
                      const ExpertOptions& options = {}, const ExpertRows* given = nullptr) {
  SCOPED_TRACE(what);
  const auto on_cpu = make_exact_experts(problem.weights(), options);
  const auto on_gpu = make_exact_experts(problem.weights(), options, kGpu);
  EXPECT_EQ(on_gpu->is_batch_invariant(), on_cpu->is_batch_invariant());
  const auto expected = valid_part(problem, test::run_experts(*on_cpu, problem));
  const ExpertRows input = given == nullptr ? problem.input() : *given;
  const auto experts = static_cast<std::int64_t>(problem.num_rows.size());
  bool are_equal_places = true;
  for (std::int64_t e = 0; e < experts; ++e) {
    are_equal_places =
        are_equal_places &&
        problem.first_row[static_cast<std::size_t>(e)] * experts == e * problem.total_rows;
  }
  for (const bool is_batched : {false, true}) {
    if (is_batched && !are_equal_places) continue;
    const auto got = valid_part(problem, run_on_gpu(*on_gpu, input, is_batched));
    if (got == expected) continue;
    std::size_t i = 0;
    while (got[i] == expected[i]) ++i;
    ADD_FAILURE() << (is_batched ? "batch" : "one after another") << ": element " << i << " of "
                  << expected.size() << " is " << got[i] << ", want " << expected[i];
  }
}

const WeightFormat kFormats[] = {
    DType::kBF16,
    DType::kF16,
    DType::kF32,
    DType::kE4M3,
    {DType::kE4M3, DType::kBF16, {7, 5}},
    {DType::kI8, DType::kF32, weight_blocks::kChannel},
    {DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true},
    {DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4},
};

TEST(ExpertsCudaTest, EveryFormatOfWeightsOverOddSizes) {
  REQUIRE_GPU();
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{2, 2}, {130, 34}, {38, 290}, {256, 128}};
  for (const WeightFormat& format : kFormats) {
    for (const auto& [hidden, intermediate] : sizes) {
      const std::string what = std::string(name_of(format.dtype)) + ", " + std::to_string(hidden) +
                               " x " + std::to_string(intermediate);
      expect_same_bits(Problem(hidden, intermediate, {1, 0, 7, 3}, format), what);
      expect_same_bits(batch_problem(hidden, intermediate, 40, {1, 0, 40, 33}, format), what);
    }
  }
}

// Odd rows start at any address; tiles are full, partial, and of every kernel's size.
TEST(ExpertsCudaTest, EveryNumberOfRows) {
  REQUIRE_GPU();
  expect_same_bits(Problem(31, 17, {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 97, 0}),
                   "31 x 17");
  expect_same_bits(Problem(192, 70, {32, 64, 16, 8}), "192 x 70");
  expect_same_bits(Problem(48, 20, {100}), "one expert");
  expect_same_bits(Problem(48, 20, {0}), "no rows");
  expect_same_bits(batch_problem(48, 20, 5, {0, 0, 0}), "a batch without rows");
  std::vector<std::int32_t> many(70, 0);
  many[33] = 3;
  many[69] = 40;
  expect_same_bits(Problem(40, 12, many), "70 experts");
  expect_same_bits(batch_problem(40, 12, 44, many), "a batch of 70 experts");
}

constexpr const char* kNames[] = {"none",       "fp8_block",  "fp8_ue8m0",       "fp8_ue8m0_deepep",
                                  "fp8_token",  "fp8_tensor", "int8_token",      "int8_tensor",
                                  "int8_block", "nvfp4",      "mxfp4",           "mxfp6_e3m2",
                                  "mxfp6_e2m3", "mxfp8",      "fp8_block_deepep"};

// The named schemes are cases of instruments/conformance.
TEST(ExpertsCudaTest, UnquantizedRowsOfOtherDTypes) {
  REQUIRE_GPU();
  expect_same_bits(Problem(31, 18, {5, 6}, DType::kBF16, QuantScheme{DType::kF16}), "f16");
  expect_same_bits(Problem(31, 18, {5, 6}, DType::kBF16, QuantScheme{DType::kF32}), "f32");
}

TEST(ExpertsCudaTest, EverySchemeOfTheActivation) {
  REQUIRE_GPU();
  const float global = 300.0f;
  const float given[] = {0.02f, 0.01f, 0.04f};
  for (const char* name : kNames) {
    ExpertOptions options{scheme_from_name(name).value(), activations::kGptOss};
    if (options.intermediate.needs_tensor_scale()) {
      options.intermediate_scale = TensorView::of(&global, {1});
    }
    for (const std::int64_t width : {2, 38, 300}) {
      const std::string what = std::string(name) + ", " + std::to_string(width);
      expect_same_bits(Problem(24, width, {3, 0, 30}), what, options);
      expect_same_bits(batch_problem(24, width, 20, {3, 20, 0}), what, options);
    }
    if (options.intermediate.group != ScaleGroup::kTensor) continue;
    options.intermediate_scale = TensorView::of(given, {3});
    expect_same_bits(Problem(24, 38, {3, 0, 30}), std::string(name) + ", given", options);
  }
}

TEST(ExpertsCudaTest, BiasesOfEveryDType) {
  REQUIRE_GPU();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Problem problem(130, 34, {5, 0, 33});
    problem.add_biases(dtype);
    expect_same_bits(problem, name_of(dtype));
    expect_same_bits(problem, name_of(dtype), {schemes::kFp8Block, activations::kGptOss});
  }
}

// NaN and infinity stay in their rows and become the same codes.
TEST(ExpertsCudaTest, RowsThatAreNoNumbers) {
  REQUIRE_GPU();
  for (const char* name : kNames) {
    Problem problem(64, 40, {9}, DType::kBF16, QuantScheme{DType::kF32});
    auto* x = problem.rows.as<float>();
    x[0] = std::nanf("");
    x[64 + 3] = HUGE_VALF;
    x[2 * 64 + 5] = -HUGE_VALF;
    x[3 * 64] = 3e38f;
    x[4 * 64] = -0.0f;
    ExpertOptions options{scheme_from_name(name).value()};
    const float global = 300.0f;
    if (options.intermediate.needs_tensor_scale()) {
      options.intermediate_scale = TensorView::of(&global, {1});
    }
    expect_same_bits(problem, name, options);
  }
}

// [L, C, S] with strides (S * C, 1, C), as masked grouped fp8 GEMMs read it; and tiles.
TEST(ExpertsCudaTest, ScalesInEveryLayout) {
  REQUIRE_GPU();
  const auto layouts = [](const QuantScheme& scheme) {
    std::vector<ScaleLayout> all{ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned};
    if (bits_of(scale_dtype(scheme)) == 8) all.push_back(ScaleLayout::kSwizzled);
    return all;
  };
  for (const char* name : {"fp8_block", "fp8_ue8m0", "nvfp4", "mxfp4", "mxfp8"}) {
    const QuantScheme scheme = scheme_from_name(name).value();
    const Problem problem = batch_problem(1100, 6, 133, {8, 0, 133}, DType::kBF16, scheme);
    const std::int64_t per_row = num_scales(scheme, 1100);
    for (const ScaleLayout layout : layouts(scheme)) {
      const ScaleGeometry geometry{layout, 133, per_row, bits_of(scale_dtype(scheme)) / 8};
      const std::int64_t elements = geometry.num_elements();
      const Tensor scales(problem.scales.dtype(), {3 * elements});
      const auto bytes = static_cast<std::size_t>(geometry.element_bytes);
      for (std::int64_t n = 0; n < problem.total_rows; ++n) {
        for (std::int64_t s = 0; s < per_row; ++s) {
          const std::int64_t to = n / 133 * elements + geometry.index(n % 133, s);
          std::memcpy(scales.as<std::byte>() + to * geometry.element_bytes,
                      problem.scales.as<std::byte>() + (n * per_row + s) * geometry.element_bytes,
                      bytes);
        }
      }
      ExpertRows input = problem.input();
      input.scale_layout = layout;
      input.scales =
          layout == ScaleLayout::kSwizzled
              ? TensorView(scales.data(), scales.dtype(), {3, 2, geometry.tiles_in_row(), 32, 4, 4})
              : TensorView(scales.data(), scales.dtype(), {3, 133, per_row},
                           {elements, 1, geometry.column_stride()});
      expect_same_bits(problem,
                       std::string(name) + ", layout " + std::to_string(static_cast<int>(layout)),
                       {}, &input);
    }
  }
}

TEST(ExpertsCudaTest, EachExpertMayHaveItsOwnScales) {
  REQUIRE_GPU();
  const float scales[] = {0.0125f, 0.05f, 0.1f};
  Problem problem = batch_problem(40, 18, 20, {5, 6, 20}, DType::kBF16, schemes::kFp8Tensor);
  problem.scales = Tensor(DType::kF32, {3});
  std::memcpy(problem.scales.data(), scales, sizeof scales);
  expect_same_bits(problem, "fp8_tensor");
  Problem nvfp4 = batch_problem(64, 18, 20, {5, 6, 20}, DType::kBF16, schemes::kNvfp4);
  const float globals[] = {700.0f, 300.0f, 1000.0f};
  nvfp4.tensor_scale = Tensor(DType::kF32, {3});
  std::memcpy(nvfp4.tensor_scale.data(), globals, sizeof globals);
  expect_same_bits(nvfp4, "nvfp4");
}

// A capture waits for nothing; a replay reads the current counts.
TEST(ExpertsCudaTest, CallsMayBeCaptured) {
  REQUIRE_GPU();
  Problem problem = batch_problem(130, 34, 40, {7, 0, 12}, DType::kBF16, schemes::kFp8Block);
  for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Tensor}) {
    const auto on_cpu = make_exact_experts(problem.weights(), {scheme});
    const auto experts = make_exact_experts(problem.weights(), {scheme}, kGpu);
    ASSERT_TRUE(experts->is_capturable(true));
    ASSERT_TRUE(experts->is_capturable(false));
    const GpuInput input(problem.input(), true);
    GpuCall call(*experts, input.input);
    const cuda::OwnedStream own_stream;
    const Stream stream = Stream::cuda(own_stream.get(), kGpu.index);
    const test::CudaGraph graph(stream.get(), [&] { call.apply(stream); });
    for (const std::vector<std::int32_t>& counts :
         {std::vector{7, 0, 12}, {40, 40, 1}, {0, 0, 0}}) {
      problem.num_rows = counts;
      cuda::check_cuda(cudaMemcpy(input.num_rows.data(), counts.data(), 12, cudaMemcpyHostToDevice),
                       "counts");
      cuda::check_cuda(cudaDeviceSynchronize(), "counts");
      graph.replay(stream.get());
      EXPECT_EQ(valid_part(problem, call.result()),
                valid_part(problem, test::run_experts(*on_cpu, problem)));
    }
  }
}

// Kernels stay inside the buffer whatever the counts say.
TEST(ExpertsCudaTest, CountsAreHeldToTheRowsThatThereAre) {
  REQUIRE_GPU();
  Problem problem = batch_problem(64, 18, 20, {20, 0, 20});
  const auto on_cpu = make_exact_experts(problem.weights());
  const auto expected = valid_part(problem, test::run_experts(*on_cpu, problem));
  const auto experts = make_exact_experts(problem.weights(), {}, kGpu);
  const std::vector<std::int32_t> wrong = {1000, -5, 0x7FFFFFFF};
  ExpertRows input = problem.input();
  input.num_rows = test::view_of(wrong);
  EXPECT_EQ(valid_part(problem, run_on_gpu(*experts, input, true)), expected);
  const std::vector<std::int64_t> first = {-1, std::int64_t{1} << 62, 40};
  input.first_row = test::view_of(first);
  const auto out = run_on_gpu(*experts, input, false);
  EXPECT_EQ(std::vector(out.begin() + 40 * 64, out.end()),
            std::vector(expected.begin() + 20 * 64, expected.end()));
}

TEST(ExpertsCudaTest, BadArgumentsAreNamed) {
  const Problem problem = batch_problem(64, 18, 20, {20, 0, 20});
  test::expect_invalid(
      "experts are \"onednn\" on cuda:0, must be \"exact\", \"cublas\" or \"cutlass\"",
      [&] { make_experts("onednn", problem.weights(), {}, kGpu); });
  ExpertWeights weights = problem.weights();
  weights.up = {};
  test::expect_invalid("make_exact_experts: up is absent",
                       [&] { make_exact_experts(weights, {}, kGpu); });
  REQUIRE_GPU();
  const auto experts = make_exact_experts(problem.weights(), {}, kGpu);
  const GpuInput good(problem.input(), true);
  const GpuCall call(*experts, good.input);
  const auto refused =
      [&](Errc code, const char* phrase,
          const std::function<void(ExpertRows&, TensorView&, std::span<std::byte>&)>& spoil) {
        ExpertRows input = good.input;
        TensorView output = call.output();
        std::span<std::byte> workspace = call.workspace();
        spoil(input, output, workspace);
        test::expect_error(code, phrase,
                           [&] { experts->apply(input, output, workspace, kGpuStream); });
      };
  constexpr Errc kBad = Errc::kInvalidArgument;
  refused(kBad, "num_rows is absent, must be contiguous i32 [3]",
          [](auto& input, auto&, auto&) { input.num_rows = {}; });
  refused(kBad, "rows is bf16 [2, 20, 64] on cuda:0, must be 3 experts",
          [&](auto& input, auto& output, auto&) {
            input.rows = output = TensorView(good.rows.data(), DType::kBF16, {2, 20, 64}, kGpu);
          });
  refused(kBad, "alike", [&](auto&, auto& output, auto&) {
    output = TensorView(output.data(), DType::kBF16, {60, 64}, kGpu);
  });
  refused(kBad, "first_row is absent", [&](auto& input, auto& output, auto&) {
    input.rows = TensorView(good.rows.data(), DType::kBF16, {60, 64}, kGpu);
    output = TensorView(output.data(), DType::kBF16, {60, 64}, kGpu);
  });
  refused(
      kBad, "experts of rows are 1281 apart, must be 20 rows of 64",
      [&](auto& input, auto&, auto&) {
        input.rows = TensorView(good.rows.data(), DType::kBF16, {3, 20, 64}, {1281, 64, 1}, kGpu);
      });
  refused(kBad, "rows is bf16 [60, 64] on cuda:0, must be e4m3",
          [](auto& input, auto&, auto&) { input.scheme = schemes::kFp8Block; });
  refused(Errc::kWorkspaceTooSmall, "ask workspace_bytes()",
          [](auto&, auto&, auto& workspace) { workspace = workspace.first(workspace.size() - 1); });
}

}  // namespace
}  // namespace switchyard
