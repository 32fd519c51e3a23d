// SPDX-License-Identifier: Apache-2.0
//
// Experts from a QuantConfig equal those from ExpertWeights, which are compared with the oracle;
// and what a configuration says that no experts do is refused.

#include "switchyard/experts_factory.h"

#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expert_problem.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_error;
using test::Problem;
using test::run_experts;
using test::WeightFormat;

// [L, 2 N, ...]: for each expert the rows of `gate`, then those of `up`.
Tensor joined(const Tensor& gate, const Tensor& up) {
  const TensorView& view = gate.view();
  Tensor both = view.num_dims() == 2
                    ? Tensor(view.dtype(), {view.shape(0), 2 * view.shape(1)})
                    : Tensor(view.dtype(), {view.shape(0), 2 * view.shape(1), view.shape(2)});
  const auto experts = static_cast<std::size_t>(view.shape(0));
  const std::size_t bytes = view.num_bytes() / experts;
  for (std::size_t e = 0; e < experts; ++e) {
    std::memcpy(both.as<std::byte>() + 2 * e * bytes, gate.as<std::byte>() + e * bytes, bytes);
    std::memcpy(both.as<std::byte>() + (2 * e + 1) * bytes, up.as<std::byte>() + e * bytes, bytes);
  }
  return both;
}

constexpr std::int64_t kHidden = 136;
constexpr std::int64_t kIntermediate = 128;

Problem problem_of(const WeightFormat& format) {
  return Problem(kHidden, kIntermediate, {3, 0, 7}, format);
}

void expect_same(const Problem& problem, const ExpertWeights& weights, const ExpertOptions& options,
                 const TensorView& w1, const TensorView& w2, const QuantConfig& quant) {
  const auto want = make_experts("exact", weights, options);
  const auto got = make_experts("exact", w1, w2, quant);
  EXPECT_EQ(run_experts(*got, problem), run_experts(*want, problem));
}

TEST(ExpertsFactoryTest, PlainWeightsWithBiases) {
  Problem problem = problem_of(DType::kBF16);
  problem.add_biases(DType::kF32);
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const Tensor bias = joined(problem.gate_bias, problem.up_bias);
  const QuantConfig quant = QuantConfig::biased({.w1_bias = bias, .w2_bias = problem.down_bias});
  expect_same(problem, problem.weights(), {}, w1, problem.down.values, quant);
}

TEST(ExpertsFactoryTest, ScalesByBlockAndByOutput) {
  for (const WeightBlock block :
       {weight_blocks::k128x128, weight_blocks::kChannel, WeightBlock{1, 32}}) {
    const bool is_int8 = block.inputs == 32;
    const Problem problem = problem_of({is_int8 ? DType::kI8 : DType::kE4M3, DType::kF32, block});
    const Tensor w1 = joined(problem.gate.values, problem.up.values);
    const Tensor scale = joined(problem.gate.scales, problem.up.scales);
    QuantConfig quant = QuantConfig::int8_w8a16({.block_shape = BlockShape{0, 32},
                                                 .w1_scale = scale.view(),
                                                 .w2_scale = problem.down.scales.view()});
    ExpertOptions options;
    if (!is_int8) {
      const bool is_block = block == weight_blocks::k128x128;
      QuantOptions fp8{.w1_scale = scale.view(), .w2_scale = problem.down.scales.view()};
      if (is_block) fp8.block_shape = BlockShape{128, 128};
      fp8.per_act_token_quant = !is_block;
      fp8.per_out_ch_quant = !is_block;
      quant = QuantConfig::fp8_w8a8(fp8);
      options.intermediate = is_block ? schemes::kFp8Block : schemes::kFp8Token;
    }
    expect_same(problem, problem.weights(), options, w1, problem.down.values, quant);
  }
}

// One scale for gate and up of an expert; a static scale for the activation between the GEMMs.
TEST(ExpertsFactoryTest, ScalesByTensor) {
  const Problem problem = problem_of({DType::kE4M3, DType::kF32, weight_blocks::kTensor});
  ExpertWeights weights = problem.weights();
  weights.up_scale = weights.gate_scale;
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const TensorView flat1(problem.gate.scales.data(), DType::kF32, {3});
  const TensorView flat2(problem.down.scales.data(), DType::kF32, {3});
  const std::vector<float> a2{0.01f, 0.02f, 0.04f};
  for (const bool is_static : {false, true}) {
    for (const bool is_token : {false, true}) {
      QuantOptions fp8{.w1_scale = flat1, .w2_scale = flat2};
      fp8.per_act_token_quant = is_token;
      ExpertOptions options;
      options.intermediate = is_token ? schemes::kFp8Token : schemes::kFp8Tensor;
      if (is_static) {
        fp8.a2_scale = TensorView::of(a2.data(), {3, 1, 1});
        options.intermediate = schemes::kFp8Tensor;  // a static scale wins
        options.intermediate_scale = TensorView::of(a2.data(), {3});
      }
      expect_same(problem, weights, options, w1, problem.down.values, QuantConfig::fp8_w8a8(fp8));
    }
  }
}

// vLLM's alphas contain the scale of the activations, which the weight's own factor does not.
TEST(ExpertsFactoryTest, AlphasOfNvfp4) {
  const Problem problem = problem_of({DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true});
  ExpertWeights weights = problem.weights();
  weights.up_alpha = weights.gate_alpha;
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const Tensor scale = joined(problem.gate.scales, problem.up.scales);
  const float gscale = 512.0f;
  const Tensor g1(DType::kF32, {3});
  const Tensor g2(DType::kF32, {3});
  for (std::int64_t e = 0; e < 3; ++e) {
    g1.as<float>()[e] = problem.gate.alpha.as<float>()[e] / gscale;
    g2.as<float>()[e] = problem.down.alpha.as<float>()[e] / gscale;
  }
  const TensorView one = TensorView::of(&gscale, {1});
  ExpertOptions options;
  options.intermediate = schemes::kNvfp4;
  options.intermediate_scale = one;
  expect_same(problem, weights, options, w1, problem.down.values,
              QuantConfig::nvfp4({.w1_scale = scale.view(),
                                  .w2_scale = problem.down.scales.view(),
                                  .g1_alphas = g1,
                                  .g2_alphas = g2,
                                  .a1_gscale = one,
                                  .a2_gscale = one}));
  expect_same(problem, weights, {}, w1, problem.down.values,
              QuantConfig::nvfp4_w4a16({.w1_scale = scale.view(),
                                        .w2_scale = problem.down.scales.view(),
                                        .g1_alphas = problem.gate.alpha,
                                        .g2_alphas = problem.down.alpha}));
}

TEST(ExpertsFactoryTest, AlphasNeedTheScaleOfTheActivations) {
  const Problem problem = problem_of({DType::kE2M1, DType::kE4M3, weight_blocks::kNvfp4, true});
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const Tensor scale = joined(problem.gate.scales, problem.up.scales);
  const TensorView alphas = problem.gate.alpha;
  const TensorView three(alphas.data(), DType::kF32, {1, 3});
  const TensorView two(alphas.data(), DType::kF32, {2});
  const auto refuse = [&](const char* words, const TensorView& g1, const TensorView& a1) {
    const QuantConfig quant = QuantConfig::nvfp4({.w1_scale = scale.view(),
                                                  .w2_scale = problem.down.scales.view(),
                                                  .g1_alphas = g1,
                                                  .a1_gscale = a1,
                                                  .a2_gscale = three});
    expect_error(Errc::kInvalidArgument, words,
                 [&] { make_experts("exact", w1, problem.down.values, quant); });
  };
  refuse("g1_alphas comes without a global scale of the activations", alphas, {});
  refuse("g1_alphas is f32 [2], must be f32 [1] or [3]", two, three);
}

// Packed bytes, as checkpoints have them, and GPT-OSS's constants.
TEST(ExpertsFactoryTest, Mxfp4WithAClampedActivation) {
  const Problem problem = problem_of({DType::kE2M1, DType::kE8M0, weight_blocks::kMxfp4});
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const Tensor scale = joined(problem.gate.scales, problem.up.scales);
  const auto bytes = [](const Tensor& t, std::int64_t per_byte) {
    return TensorView(t.data(), DType::kU8, {t.shape(0), t.shape(1), t.shape(2) / per_byte});
  };
  const QuantConfig quant = QuantConfig::mxfp4_w4a16(
      {.w1_scale = bytes(scale, 1),
       .w2_scale = bytes(problem.down.scales, 1),
       .extras = {.gemm1_alpha = 1.702f, .gemm1_beta = 1.0f, .gemm1_clamp_limit = 7.0f}});
  ExpertOptions options;
  options.activation = activations::kGptOss;
  expect_same(problem, problem.weights(), options, bytes(w1, 2), bytes(problem.down.values, 2),
              quant);
  const auto make = [&](const Activation& activation) {
    return make_experts("exact", bytes(w1, 2), bytes(problem.down.values, 2), quant, activation);
  };
  EXPECT_NE(make(activations::kGptOss), nullptr);
  expect_error(Errc::kInvalidArgument, "must be the clamped one with 1.702, 1 and 7",
               [&] { make(activations::kSiluMul); });
}

TEST(ExpertsFactoryTest, WhatDoesNotFitIsRefused) {
  const Problem problem = problem_of({DType::kE4M3, DType::kF32, weight_blocks::kTensor});
  const Tensor w1 = joined(problem.gate.values, problem.up.values);
  const TensorView scale(problem.gate.scales.data(), DType::kF32, {3});
  const auto refuse = [&](Errc code, const char* words, const QuantConfig& quant) {
    expect_error(code, words, [&] { make_experts("exact", w1, problem.down.values, quant); });
  };
  const auto fp8 = [&](auto&& change) {
    QuantOptions options{.w1_scale = scale, .w2_scale = scale};
    change(options);
    return QuantConfig::fp8_w8a8(options);
  };
  constexpr Errc kInvalid = Errc::kInvalidArgument;
  refuse(kInvalid, "w1_scale is ", fp8([](auto& o) { o.w1_scale = TensorView(); }));
  refuse(kInvalid, "w1_scale is f32 [3], must be [3, 2, 2]", fp8([](auto& o) {
           o.block_shape = BlockShape{128, 128};
         }));
  refuse(kInvalid, "half of them must be a multiple", fp8([](auto& o) {
           o.block_shape = BlockShape{96, 128};
         }));
  refuse(kInvalid, "w1_bias is f32 [3], must be [3, 256]",
         fp8([&](auto& o) { o.w1_bias = scale; }));
  refuse(kInvalid, "a2_gscale is given without a2_scale",
         fp8([&](auto& o) { o.a2_gscale = scale; }));
  refuse(Errc::kNotSupported, "g1_alphas is given for weights of fp8_e4m3",
         fp8([&](auto& o) { o.g1_alphas = scale; }));
  refuse(kInvalid, "w1 is e4m3 [3, 256, 136], must be i8",
         QuantConfig::int8_w8a16({.w1_scale = scale, .w2_scale = scale}));
  refuse(Errc::kNotSupported, "zero points are given",
         QuantConfig::int8_w8a16({.w1_scale = scale, .w2_scale = scale, .w1_zp = scale}));
  refuse(Errc::kNotSupported, "weights are int4, must be none",
         QuantConfig::int4_w4a16({.w1_scale = scale, .w2_scale = scale}));
  refuse(kInvalid, "holds a precision object",
         fp8([](auto& o) { o.w1_scale = std::make_shared<int>(1); }));
  refuse(kInvalid, "w1_scale is f32 [3], must be absent", QuantConfig::make({.w1_scale = scale}));
}

}  // namespace
}  // namespace switchyard
