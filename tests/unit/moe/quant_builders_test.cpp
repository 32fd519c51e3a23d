// SPDX-License-Identifier: Apache-2.0
//
// What each builder makes: dtypes, shapes, where tensors go, predicates, the scheme of its rows.

#include <string>
#include <vector>

#include "switchyard/quant_config.h"

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_error;
using Q = QuantDType;

const std::vector<float> kMemory(16);
TensorView view(std::size_t i) { return TensorView::of(kMemory.data() + i, {1}); }
bool is_view(const TensorView& v, std::size_t i) { return v.data() == kMemory.data() + i; }

struct Expected {
  Q activation;
  Q weight;
  std::optional<GroupShape> activation_shape;
  std::optional<GroupShape> weight_shape;
  std::string predicates;  ///< those that hold, in the order of `predicates_of`
  QuantScheme scheme;
};

std::string predicates_of(const QuantConfig& c) {
  std::string names;
  const auto add = [&](bool holds, const char* name) { names += holds ? name : ""; };
  add(c.use_fp8_w8a8(), "fp8_w8a8 ");
  add(c.use_int8_w8a8(), "int8_w8a8 ");
  add(c.use_int8_w8a16(), "int8_w8a16 ");
  add(c.use_fp8_w8a16(), "fp8_w8a16 ");
  add(c.use_int4_w4a16(), "int4_w4a16 ");
  add(c.use_mxfp4_w4a16(), "mxfp4_w4a16 ");
  add(c.use_mxfp4_w4a4(), "mxfp4_w4a4 ");
  add(c.use_mxfp4_w4a8(), "mxfp4_w4a8 ");
  add(c.use_nvfp4_w4a4(), "nvfp4_w4a4 ");
  add(c.use_nvfp4_w4a16(), "nvfp4_w4a16 ");
  return names;
}

void expect_config(const QuantConfig& config, const Expected& expected) {
  EXPECT_EQ(config.quant_dtype(), expected.activation);
  EXPECT_EQ(config.weight_quant_dtype(), expected.weight);
  EXPECT_EQ(config.is_quantized(), expected.activation != Q::kNone);
  EXPECT_EQ(config.a1().shape, expected.activation_shape);
  EXPECT_EQ(config.a2().shape, expected.activation_shape);
  EXPECT_EQ(config.w1().shape, expected.weight_shape);
  EXPECT_EQ(config.w2().shape, expected.weight_shape);
  EXPECT_EQ(predicates_of(config), expected.predicates);
  EXPECT_EQ(activation_scheme(config), expected.scheme);
}

constexpr GroupShape kTensor = group_shapes::kPerTensor;
constexpr GroupShape kToken = group_shapes::kPerToken;
constexpr GroupShape kBlock{128, 128};
constexpr BlockShape kBlockShape{128, 128};

TEST(QuantBuildersTest, Fp8AndInt8) {
  expect_config(QuantConfig::fp8_w8a8({}),
                {Q::kFp8E4M3, Q::kFp8E4M3, kTensor, {}, "fp8_w8a8 ", schemes::kFp8Tensor});
  expect_config(QuantConfig::fp8_w8a8({.per_act_token_quant = true, .per_out_ch_quant = true}),
                {Q::kFp8E4M3, Q::kFp8E4M3, kToken, kToken, "fp8_w8a8 ", schemes::kFp8Token});
  expect_config(QuantConfig::fp8_w8a8({.block_shape = kBlockShape}),
                {Q::kFp8E4M3, Q::kFp8E4M3, kBlock, kBlock, "fp8_w8a8 ", schemes::kFp8Block});
  expect_config(QuantConfig::int8_w8a8({}),
                {Q::kInt8, Q::kInt8, kTensor, {}, "int8_w8a8 ", schemes::kInt8Tensor});
  expect_config(QuantConfig::int8_w8a8({.per_act_token_quant = true}),
                {Q::kInt8, Q::kInt8, kToken, {}, "int8_w8a8 ", schemes::kInt8Token});
  expect_config(QuantConfig::make({.quant_dtype = Q::kInt8, .block_shape = kBlockShape}),
                {Q::kInt8, Q::kInt8, kBlock, kBlock, "int8_w8a8 ", schemes::kInt8Block});
  expect_config(QuantConfig::int4_w4afp8({.per_act_token_quant = true, .per_out_ch_quant = true}),
                {Q::kFp8E4M3, Q::kInt4, kToken, kToken, "fp8_w8a8 ", schemes::kFp8Token});
}

TEST(QuantBuildersTest, OnlyTheColumnsOfABlockGroupActivations) {
  const QuantScheme scheme =
      activation_scheme(QuantConfig::fp8_w8a8({.block_shape = BlockShape{128, 64}}));
  EXPECT_EQ(scheme, (QuantScheme{DType::kE4M3, ScaleGroup::kBlock, 64}));
  EXPECT_EQ(activation_scheme(QuantConfig::fp8_w8a8({.block_shape = BlockShape{1, 64}})), scheme);
}

TEST(QuantBuildersTest, FourAndSixBits) {
  expect_config(QuantConfig::nvfp4({}),
                {Q::kNvfp4, Q::kNvfp4, kTensor, {}, "nvfp4_w4a4 ", schemes::kNvfp4});
  expect_config(QuantConfig::mxfp4({}),
                {Q::kMxfp4, Q::kMxfp4, kTensor, {}, "mxfp4_w4a4 ", schemes::kMxfp4});
  expect_config(QuantConfig::ocp_mx({.quant_dtype = Q::kMxfp6E3M2}),
                {Q::kMxfp6E3M2, Q::kMxfp6E3M2, kTensor, {}, "", schemes::kMxfp6E3M2});
  expect_config(QuantConfig::ocp_mx({.quant_dtype = Q::kMxfp6E2M3, .weight_dtype = Q::kMxfp4}),
                {Q::kMxfp6E2M3, Q::kMxfp4, kTensor, {}, "", schemes::kMxfp6E2M3});
  expect_config(
      QuantConfig::ocp_mx({.quant_dtype = Q::kMxfp4, .block_shape = BlockShape{1, 32}}),
      {Q::kMxfp4, Q::kMxfp4, GroupShape{1, 32}, GroupShape{1, 32}, "mxfp4_w4a4 ", schemes::kMxfp4});
  expect_config(QuantConfig::mxfp4_mxfp8({}), {Q::kMxfp8, Q::kMxfp4, {}, {}, "", schemes::kMxfp8});
  expect_config(QuantConfig::mxfp4_w4a8({}),
                {Q::kFp8, Q::kMxfp4, {}, {}, "mxfp4_w4a8 ", schemes::kFp8Tensor});
}

TEST(QuantBuildersTest, WeightsOnly) {
  expect_config(QuantConfig::mxfp4_w4a16({}),
                {Q::kNone, Q::kMxfp4, {}, {}, "mxfp4_w4a16 ", schemes::kNone});
  expect_config(QuantConfig::nvfp4_w4a16({}),
                {Q::kNone, Q::kNvfp4, {}, {}, "nvfp4_w4a16 ", schemes::kNone});
  expect_config(QuantConfig::fp8_w8a16({.block_shape = kBlockShape}),
                {Q::kNone, Q::kFp8E4M3, {}, kBlock, "fp8_w8a16 ", schemes::kNone});
  expect_config(QuantConfig::int4_w4a16({}),
                {Q::kNone, Q::kInt4, {}, {}, "int4_w4a16 ", schemes::kNone});
  expect_config(QuantConfig::biased({}), {Q::kNone, Q::kNone, {}, {}, "", schemes::kNone});
}

TEST(QuantBuildersTest, IntegerWeightsWithABlockHaveABlockWithoutBeingQuantized) {
  for (const auto& build : {&QuantConfig::int4_w4a16, &QuantConfig::int8_w8a16}) {
    for (const BlockShape& block : {BlockShape{0, 64}, BlockShape{1, 128}, BlockShape{128, 128},
                                    BlockShape{0, -1}, BlockShape{-1, 128}}) {
      const QuantConfig config = build({.block_shape = block});
      EXPECT_EQ(config.quant_dtype(), Q::kNone);
      EXPECT_FALSE(config.is_quantized());
      EXPECT_TRUE(config.is_block_quantized());
      EXPECT_EQ(config.block_shape(), block);
      EXPECT_EQ(config.w1().shape, (GroupShape{block[0], block[1]}));
      EXPECT_EQ(config.scale_shape(64, 7168), std::nullopt);
      EXPECT_EQ(activation_scheme(config), schemes::kNone);
    }
  }
  expect_error(Errc::kInvalidArgument, "block_shape is {0, -2}", [] {
    (void)QuantConfig::int8_w8a16({.block_shape = BlockShape{0, -2}});
  });
  expect_error(Errc::kInvalidArgument, "block_shape is {0, 0}", [] {
    (void)QuantConfig::int4_w4a16({.block_shape = BlockShape{0, 0}});
  });
}

// vLLM writes {0, group_size} with group_size -1 for channelwise scales; (1, -1) and (-1, -1) are
// the shapes of a token and a tensor there, so they are no blocks.
TEST(QuantBuildersTest, ChannelwiseIntegerWeights) {
  for (const auto& build : {&QuantConfig::int4_w4a16, &QuantConfig::int8_w8a16}) {
    for (const BlockShape& block : {BlockShape{-1, -1}, BlockShape{1, -1}}) {
      const QuantConfig config = build({.block_shape = block});
      EXPECT_EQ(config.w1().shape, (GroupShape{block[0], block[1]}));
      EXPECT_EQ(config.w2().shape, config.w1().shape);
      EXPECT_FALSE(config.is_quantized());
      EXPECT_FALSE(config.is_block_quantized());
      EXPECT_EQ(config.block_shape(), std::nullopt);
      EXPECT_EQ(config.per_out_ch_quant(), block[0] == 1);
      EXPECT_EQ(config.scale_shape(64, 7168), std::nullopt);
      EXPECT_EQ(activation_scheme(config), schemes::kNone);
    }
  }
}

TEST(QuantBuildersTest, GptqMarlin) {
  expect_config(
      QuantConfig::gptq_marlin({.weight_bits = 4, .group_size = 128}),
      {Q::kNone, Q::kInt4, GroupShape{1, 128}, GroupShape{1, 128}, "int4_w4a16 ", schemes::kNone});
  expect_config(QuantConfig::gptq_marlin({.weight_bits = 8, .group_size = -1}),
                {Q::kNone, Q::kInt8, {}, {}, "int8_w8a16 ", schemes::kNone});
  expect_error(Errc::kInvalidArgument, "weight_bits is 3, must be 4 or 8",
               [] { (void)QuantConfig::gptq_marlin({.weight_bits = 3}); });
  expect_error(Errc::kInvalidArgument, "group_size is 0",
               [] { (void)QuantConfig::gptq_marlin({.group_size = 0}); });
}

TEST(QuantBuildersTest, EveryTensorGoesToItsSlot) {
  const QuantConfig config = QuantConfig::make({.quant_dtype = Q::kFp8E4M3,
                                                .w1_scale = view(0),
                                                .w2_scale = view(1),
                                                .a1_scale = view(2),
                                                .a2_scale = view(3),
                                                .g1_alphas = view(4),
                                                .g2_alphas = view(5),
                                                .a1_gscale = view(6),
                                                .a2_gscale = view(7),
                                                .w1_bias = view(8),
                                                .w2_bias = view(9),
                                                .w1_zp = view(10),
                                                .w2_zp = view(11)});
  const std::vector<TensorView> slots{config.w1_scale(),  config.w2_scale(),  config.a1_scale(),
                                      config.a2_scale(),  config.g1_alphas(), config.g2_alphas(),
                                      config.a1_gscale(), config.a2_gscale(), config.w1_bias(),
                                      config.w2_bias(),   config.w1_zp(),     config.w2_zp()};
  for (std::size_t i = 0; i < slots.size(); ++i) EXPECT_TRUE(is_view(slots[i], i)) << i;
}

TEST(QuantBuildersTest, NamedBuildersPassTheirTensorsOn) {
  const auto nvfp4 = QuantConfig::nvfp4({.w1_scale = view(4),
                                         .w2_scale = view(5),
                                         .g1_alphas = view(0),
                                         .g2_alphas = view(1),
                                         .a1_gscale = view(2),
                                         .a2_gscale = view(3),
                                         .extras = {.is_scale_swizzled = false}});
  EXPECT_TRUE(is_view(nvfp4.g1_alphas(), 0) && is_view(nvfp4.g2_alphas(), 1));
  EXPECT_TRUE(is_view(nvfp4.a1_gscale(), 2) && is_view(nvfp4.a2_gscale(), 3));
  EXPECT_TRUE(is_view(nvfp4.w1_scale(), 4) && is_view(nvfp4.w2_scale(), 5));
  EXPECT_FALSE(nvfp4.is_scale_swizzled());

  const auto int4 = QuantConfig::int4_w4a16(
      {.a1_gscale = view(3), .w2_bias = view(2), .w1_zp = view(0), .w2_zp = view(1)});
  EXPECT_TRUE(is_view(int4.w1_zp(), 0) && is_view(int4.w2_zp(), 1));
  EXPECT_TRUE(is_view(int4.w2_bias(), 2) && is_view(int4.a1_gscale(), 3));
  EXPECT_FALSE(int4.w1_bias().has_value());

  const auto w4a8 = QuantConfig::mxfp4_w4a8({.a1_scale = view(0), .a2_scale = view(1)});
  EXPECT_TRUE(is_view(w4a8.a1_scale(), 0) && is_view(w4a8.a2_scale(), 1));
  const auto biased = QuantConfig::biased({.w1_bias = view(0), .extras = {.gemm1_alpha = 1.5f}});
  EXPECT_TRUE(is_view(biased.w1_bias(), 0));
  EXPECT_EQ(biased.extras().gemm1_alpha, 1.5f);
  EXPECT_TRUE(biased.is_scale_swizzled());
  EXPECT_EQ(QuantConfig::mxfp4_mxfp8({.extras = {.mx_alignment = 256}}).mx_alignment(), 256);
}

TEST(QuantBuildersTest, MakeRefusesWordsThatAreNotItsOwn) {
  for (const Q dtype : {Q::kFp8, Q::kInt4, Q::kMxfp8E4M3, Q::kMxfp8E5M2, Q::kMxint8}) {
    expect_error(Errc::kInvalidArgument, std::string("quant_dtype is ") + name_of(dtype),
                 [&] { (void)QuantConfig::make({.quant_dtype = dtype}); });
    if (dtype == Q::kInt4) continue;
    expect_error(Errc::kInvalidArgument, std::string("weight_dtype is ") + name_of(dtype),
                 [&] { (void)QuantConfig::make({.weight_dtype = dtype}); });
  }
  expect_error(Errc::kInvalidArgument, "ocp_mx: quant_dtype is mxfp8, must be one of the OCP set",
               [] { (void)QuantConfig::ocp_mx({.quant_dtype = Q::kMxfp8}); });
  expect_error(Errc::kInvalidArgument, "make: quant_dtype is mxint8",
               [] { (void)QuantConfig::ocp_mx({.quant_dtype = Q::kMxint8}); });
  EXPECT_EQ(QuantConfig::make({.quant_dtype = Q::kMxfp8}).weight_quant_dtype(), Q::kMxfp8);
}

TEST(QuantBuildersTest, FormatsWithScalesOfTheirOwnTakeNoGrouping) {
  for (const Q dtype : {Q::kNvfp4, Q::kMxfp4, Q::kMxfp6E3M2, Q::kMxfp6E2M3, Q::kMxfp8}) {
    expect_error(Errc::kInvalidArgument, "the format has scales of its own", [&] {
      (void)QuantConfig::make({.quant_dtype = dtype, .per_act_token_quant = true});
    });
    expect_error(Errc::kInvalidArgument, "with shape {128, 128}, but the format", [&] {
      (void)QuantConfig::make({.quant_dtype = dtype, .block_shape = kBlockShape});
    });
  }
  expect_error(Errc::kInvalidArgument, "nvfp4 activations with shape {1, 32}", [] {
    (void)QuantConfig::make({.quant_dtype = Q::kNvfp4, .block_shape = BlockShape{1, 32}});
  });
  expect_error(Errc::kInvalidArgument, "block_shape is given, but mxfp4", [] {
    (void)QuantConfig::mxfp4_w4a16({.block_shape = BlockShape{1, 32}});
  });
  expect_error(Errc::kInvalidArgument, "a static scale for mxfp8",
               [] { (void)QuantConfig::make({.quant_dtype = Q::kMxfp8, .a2_scale = view(0)}); });
}

}  // namespace
}  // namespace switchyard
