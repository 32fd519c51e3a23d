// SPDX-License-Identifier: Apache-2.0
//
// "cublas" and "cutlass" experts agree with the CPU's exact experts within the tolerances of its
// "onednn" experts. Needs a GPU, and cuBLAS or a Hopper GPU; skips with a reason otherwise.

#include "core/settings.h"
#include "cuda_graph.h"
#include "experts_case.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using namespace test;

// Of a kind of experts.
class TensorCoreExpertsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    REQUIRE_GPU();
    const Problem problem(8, 8, {1});
    try {
      make_experts(GetParam(), problem.weights(), {}, kGpu);
    } catch (const Error& error) {
      if (error.code() != Errc::kNotAvailable) throw;
      GTEST_SKIP() << error.what();
    }
  }
  static bool is_cublas() { return GetParam() == "cublas"; }

  static std::unique_ptr<Experts> make(const Problem& problem, bool is_batched,
                                       const ExpertOptions& options) {
    auto experts = make_experts(GetParam(), problem.weights(), options, kGpu);
    EXPECT_EQ(experts->name(), GetParam());
    EXPECT_FALSE(experts->is_batch_invariant());
    EXPECT_EQ(experts->is_capturable(is_batched), is_batched || !is_cublas());
    return experts;
  }

  // Returns the error of the GPU's experts relative to `expected`.
  static double error_against(const std::vector<std::uint16_t>& expected, const Problem& problem,
                              bool is_batched, const ExpertOptions& options = {}) {
    const auto on_gpu = make(problem, is_batched, options);
    const auto out = valid_part(problem, run_on_gpu(*on_gpu, problem.input(), is_batched));
    return test::worst_row_error(out, valid_part(problem, expected),
                                 static_cast<std::size_t>(problem.hidden));
  }

  static double error_of(const Problem& problem, bool is_batched,
                         const ExpertOptions& options = {}) {
    const auto on_cpu = make_exact_experts(problem.weights(), options);
    return error_against(test::run_experts(*on_cpu, problem), problem, is_batched, options);
  }

  static double error_of_sums(const Problem& problem, bool is_batched);
  static void replay(const Problem& problem, bool is_batched);
};

Tensor rounded(const std::vector<float>& values, const TensorView& shaped) {
  Tensor narrow(DType::kBF16, {shaped.shape(0), shaped.shape(1), shaped.shape(2)});
  f32_to_bf16(values.data(), static_cast<std::int64_t>(values.size()), narrow.as<std::uint16_t>());
  return narrow;
}

// The same against exact experts whose rows and weights were rounded to bf16 first. What remains is
// the order of sums, and values that it moves to the other side of a bf16 rounding boundary.
double TensorCoreExpertsTest::error_of_sums(const Problem& problem, bool is_batched) {
  const Tensor gate = rounded(problem.gate.wide, problem.gate.values);
  const Tensor up = rounded(problem.up.wide, problem.up.values);
  const Tensor down = rounded(problem.down.wide, problem.down.values);
  ExpertWeights weights;
  weights.gate = gate;
  weights.up = up;
  weights.down = down;
  Tensor rows(DType::kBF16, {problem.total_rows, problem.hidden});
  f32_to_bf16(problem.x.data(), problem.total_rows * problem.hidden, rows.as<std::uint16_t>());
  const ExpertRows input{
      rows, {}, schemes::kNone, test::view_of(problem.first_row), test::view_of(problem.num_rows)};
  const auto exact = make_exact_experts(weights);
  std::vector<std::uint16_t> expected(problem.x.size());
  const AlignedBuffer workspace(exact->workspace_bytes(rows));
  exact->apply(input,
               TensorView(expected.data(), DType::kBF16, {problem.total_rows, problem.hidden}),
               {workspace.data(), workspace.size_bytes()});
  return error_against(expected, problem, is_batched);
}

const std::vector<std::int32_t> kCounts = {1, 0, 15, 17, 111, 255, 300};

// Quantized rows and weights are rounded to bf16 after scaling: an error of 2^-9 per element.
TEST_P(TensorCoreExpertsTest, AgreesWithExactWithinATolerance) {
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " weights, rows " + name_of(scheme));
      EXPECT_LT(error_of(Problem(136, 72, kCounts, dtype, scheme), false), 1e-2);
      EXPECT_LT(error_of(batch_problem(136, 72, 302, kCounts, dtype, scheme), true), 1e-2);
    }
  }
}

// A term of the down projection that crosses a rounding boundary changes by 2^-8 of its value.
TEST_P(TensorCoreExpertsTest, OperandsAreThoseRoundedToBF16) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3}) {
    for (const QuantScheme& scheme : {schemes::kNone, schemes::kFp8Block, schemes::kNvfp4,
                                      QuantScheme{DType::kF16}, QuantScheme{DType::kF32}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " weights, rows " + name_of(scheme));
      EXPECT_LT(error_of_sums(Problem(136, 72, kCounts, dtype, scheme), false), 4e-3);
      EXPECT_LT(error_of_sums(batch_problem(136, 72, 302, kCounts, dtype, scheme), true), 4e-3);
    }
  }
}

// Sizes that are multiples of nothing, which cuBLAS's grouped call does not support and CUTLASS
// neither.
TEST_P(TensorCoreExpertsTest, OddSizesAgreeToo) {
  if (!is_cublas()) GTEST_SKIP() << "odd sizes are refused";
  for (const auto& [hidden, intermediate] :
       {std::pair<std::int64_t, std::int64_t>{31, 17}, {130, 34}, {258, 100}, {256, 128}}) {
    SCOPED_TRACE(std::to_string(hidden) + " x " + std::to_string(intermediate));
    EXPECT_LT(error_of(Problem(hidden, intermediate, {3, 0, 33}), false), 1e-2);
    EXPECT_LT(error_of(batch_problem(hidden, intermediate, 40, {3, 0, 33}), true), 1e-2);
  }
  EXPECT_EQ(error_of(Problem(48, 20, {0}), false), 0);
  EXPECT_EQ(error_of(batch_problem(48, 20, 5, {0, 0}), true), 0);
  EXPECT_LT(error_of(Problem(48, 24, {100}), false), 1e-2);
}

TEST_P(TensorCoreExpertsTest, QuantizedWeightsBiasesAndActivationsAgreeWithinATolerance) {
  const test::WeightFormat formats[] = {{DType::kI8, DType::kF32, weight_blocks::kChannel},
                                        {DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true},
                                        {DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4}};
  const ExpertOptions options{schemes::kNone, activations::kGptOss};
  for (const test::WeightFormat& format : formats) {
    SCOPED_TRACE(name_of(format.dtype));
    Problem problem(136, 72, {1, 0, 40, 257}, format);
    problem.add_biases(DType::kF32);
    EXPECT_LT(error_of(problem, false, options), 1e-2);
    Problem batch = batch_problem(136, 72, 260, {1, 0, 40, 257}, format);
    batch.add_biases(DType::kF32);
    EXPECT_LT(error_of(batch, true, options), 1e-2);
  }
}

// A sum that crosses an e4m3 rounding boundary changes one of 72 terms by up to 2^-3.
TEST_P(TensorCoreExpertsTest, IntermediateSchemesAgreeWithinTheirStep) {
  for (const QuantScheme& scheme : {schemes::kFp8Block, schemes::kFp8Token, schemes::kFp8Tensor}) {
    SCOPED_TRACE(name_of(scheme));
    EXPECT_LT(error_of(Problem(136, 72, {300, 5}), false, {scheme}), 4e-2);
    EXPECT_LT(error_of(batch_problem(136, 72, 302, {300, 5}), true, {scheme}), 4e-2);
  }
}

void TensorCoreExpertsTest::replay(const Problem& problem, bool is_batched) {
  const auto experts = make_experts(GetParam(), problem.weights(), {}, kGpu);
  const GpuInput input(problem.input(), is_batched);
  GpuCall call(*experts, input.input);
  const cuda::OwnedStream own_stream;
  const Stream stream = Stream::cuda(own_stream.get(), kGpu.index);
  call.apply(stream);
  const auto expected = valid_part(problem, call.result());
  cuda::check_cuda(cudaMemset(call.output().data(), 0xAB, call.output().num_bytes()), "fill");
  const test::CudaGraph graph(stream.get(), [&] { call.apply(stream); });
  for (int round = 0; round < 3; ++round) {
    graph.replay(stream.get());
    EXPECT_EQ(valid_part(problem, call.result()), expected);
  }
}

TEST_P(TensorCoreExpertsTest, MayBeCaptured) {
  replay(batch_problem(136, 72, 140, {7, 0, 12, 139}, DType::kBF16, schemes::kFp8Block), true);
  if (is_cublas()) return;
  replay(Problem(136, 72, {7, 0, 12, 139}, DType::kBF16, schemes::kFp8Block), false);
}

// Counts on both sides of the tiles of either GEMM, and rows from many tiles.
TEST_P(TensorCoreExpertsTest, EveryNumberOfRows) {
  const std::vector<std::int32_t> counts = {31, 32, 33, 64, 1, 0, 255, 256, 257, 513};
  EXPECT_LT(error_of(Problem(264, 136, counts), false), 1e-2);
  EXPECT_LT(error_of(batch_problem(264, 136, 520, counts), true), 1e-2);
  EXPECT_LT(error_of(batch_problem(264, 136, 32, {32, 0, 3}), true), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TensorCoreExpertsTest, ::testing::Values("cublas", "cutlass"),
                         [](const auto& kind) { return kind.param; });

TEST(CutlassExpertsTest, OddSizesAreRefused) {
  REQUIRE_GPU();
  const Problem problem(136, 68, {3});
  test::expect_error(Errc::kNotSupported, "hidden is 136, intermediate 68",
                     [&] { make_cutlass_experts(problem.weights(), {}, kGpu); });
}

// Tests the setting, which is read once, in a process that has not loaded cuBLAS.
TEST(CublasExpertsDeathTest, SaysWhatItLookedFor) {
  REQUIRE_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [] {
    set_setting("SWITCHYARD_CUBLAS", "/no/such/libcublas.so");
    const Problem problem(8, 4, {1});
    try {
      make_cublas_experts(problem.weights(), {}, kGpu);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      std::exit(error.code() == Errc::kNotAvailable ? 3 : 4);
    }
    std::exit(5);
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(3),
              "cuBLAS cannot be loaded .*/no/such/libcublas.so.*SWITCHYARD_CUBLAS");
}

}  // namespace
}  // namespace switchyard
