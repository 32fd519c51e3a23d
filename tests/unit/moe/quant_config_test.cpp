// SPDX-License-Identifier: Apache-2.0
//
// The flags table, derived properties, names and refusals of QuantConfig.

#include "switchyard/quant_config.h"

#include <limits>

#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using Q = QuantDType;
using Shape2 = std::array<std::int64_t, 2>;
using Shape3 = std::array<std::int64_t, 3>;

constexpr std::optional<BlockShape> kNoBlock;

TEST(GroupShapeTest, PredicatesTellTheConstantsApart) {
  EXPECT_TRUE(group_shapes::kPerTensor.is_per_tensor());
  EXPECT_TRUE(group_shapes::kPerToken.is_per_token());
  EXPECT_TRUE(group_shapes::kPerChannel.is_per_channel());
  EXPECT_FALSE(group_shapes::kPerToken.is_per_group());
  EXPECT_FALSE(group_shapes::kPerToken.is_per_tensor());
  EXPECT_TRUE((GroupShape{1, 128}.is_per_group()));
  EXPECT_FALSE((GroupShape{128, 128}.is_per_group()));
}

TEST(QuantFlagsTest, ABlockExcludesBothFlags) {
  for (const bool per_token : {false, true}) {
    expect_invalid(per_token ? "{128, 128} and per_act_token_quant is set"
                             : "{128, 128} and per_out_ch_quant is set",
                   [&] {
                     (void)QuantConfig::fp8_w8a8({.per_act_token_quant = per_token,
                                                  .per_out_ch_quant = !per_token,
                                                  .block_shape = BlockShape{128, 128}});
                   });
  }
}

TEST(QuantFlagsTest, ABlockHasSides) {
  constexpr auto kMin = std::numeric_limits<std::int32_t>::min();
  for (const BlockShape block : {BlockShape{-1, -1}, BlockShape{1, -1}, BlockShape{0, 128},
                                 BlockShape{128, 0}, BlockShape{kMin, kMin}}) {
    expect_invalid("must be sides of at least 1", [&] {
      (void)QuantConfig::make({.quant_dtype = Q::kFp8E4M3, .block_shape = block});
    });
  }
}

TEST(QuantConfigTest, UnquantizedHasNothing) {
  for (const QuantConfig& config :
       {QuantConfig(), QuantConfig::unquantized(), QuantConfig::make({})}) {
    EXPECT_EQ(config.quant_dtype(), Q::kNone);
    EXPECT_FALSE(config.is_quantized());
    EXPECT_FALSE(config.a1().shape.has_value());
    EXPECT_FALSE(config.is_per_tensor());
    EXPECT_FALSE(config.per_act_token_quant());
    EXPECT_EQ(config.block_shape(), kNoBlock);
    EXPECT_EQ(config.scale_shape(5, 7168), std::nullopt);
    EXPECT_EQ(config.batched_scale_shape(2, 5, 7168), std::nullopt);
    EXPECT_FALSE(config.a1_scale().has_value());
    EXPECT_EQ(config.w1_precision(), nullptr);
    EXPECT_EQ(config.config_name(DType::kF32), "float32");
    EXPECT_EQ(config.config_name(DType::kBF16), std::nullopt);
    EXPECT_EQ(activation_scheme(config), schemes::kNone);
  }
}

TEST(QuantConfigTest, ScaleShapesFollowTheGroups) {
  const auto block = QuantConfig::fp8_w8a8({.block_shape = BlockShape{128, 128}});
  EXPECT_EQ(block.scale_shape(64, 7168), (Shape2{64, 56}));
  EXPECT_EQ(block.scale_shape(64, 129), (Shape2{64, 2}));
  EXPECT_EQ(block.scale_shape(0, 0), (Shape2{0, 0}));
  EXPECT_EQ(block.batched_scale_shape(8, 64, 7168), (Shape3{8, 64, 56}));
  const auto token = QuantConfig::fp8_w8a8({.per_act_token_quant = true});
  EXPECT_EQ(token.scale_shape(64, 7168), (Shape2{64, 1}));
  const auto tensor = QuantConfig::fp8_w8a8({});
  EXPECT_EQ(tensor.scale_shape(64, 7168), (Shape2{1, 1}));
  EXPECT_EQ(tensor.batched_scale_shape(8, 64, 7168), (Shape3{8, 1, 1}));
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(block.scale_shape(kMax, kMax), (Shape2{kMax, kMax / 128 + 1}));
  expect_invalid("max_tokens is -1 and hidden is 8", [&] { (void)block.scale_shape(-1, 8); });
  expect_invalid("num_experts is -2", [&] { (void)block.batched_scale_shape(-2, 1, 8); });
}

TEST(QuantConfigTest, TheScaleSlotHoldsScalesOrAPrecisionObject) {
  const float scale = 2.0f;
  bool was_deleted = false;
  {
    const std::shared_ptr<void> precision(new int(7), [&](void* object) {
      delete static_cast<int*>(object);
      was_deleted = true;
    });
    const auto config =
        QuantConfig::mxfp4_w4a16({.w1_scale = precision, .w2_scale = TensorView::of(&scale, {1})});
    EXPECT_EQ(*static_cast<int*>(config.w1_precision().get()), 7);
    EXPECT_EQ(config.w2_scale().data(), &scale);
    expect_invalid("w1_scale: the slot holds a precision object", [&] { (void)config.w1_scale(); });
    expect_invalid("w2_precision: the slot holds scales", [&] { (void)config.w2_precision(); });
  }
  EXPECT_TRUE(was_deleted);
}

TEST(QuantConfigTest, NamesOfTunedConfigs) {
  EXPECT_EQ(QuantConfig::fp8_w8a8({}).config_name(DType::kF32), "fp8_w8a8");
  EXPECT_EQ(QuantConfig::int4_w4afp8({}).config_name(DType::kBF16), "fp8_w8a8");
  EXPECT_EQ(QuantConfig::fp8_w8a16({}).config_name(DType::kBF16), "fp8_w8a16");
  EXPECT_EQ(QuantConfig::int8_w8a16({}).config_name(DType::kBF16), "int8_w8a16");
  EXPECT_EQ(QuantConfig::int4_w4a16({}).config_name(DType::kBF16), "int4_w4a16");
  EXPECT_EQ(QuantConfig::int8_w8a8({}).config_name(DType::kBF16), std::nullopt);
  EXPECT_EQ(QuantConfig::int8_w8a8({}).config_name(DType::kF32), "float32");
  EXPECT_EQ(QuantConfig::mxfp4({}).config_name(DType::kF32), std::nullopt);
  EXPECT_EQ(QuantConfig::mxfp4_w4a16({}).config_name(DType::kF32), std::nullopt);
  EXPECT_EQ(QuantConfig::nvfp4({}).config_name(DType::kF32), "float32");
}

TEST(QuantConfigTest, FileNamesOfTunedConfigs) {
  const auto name = get_config_file_name;
  EXPECT_EQ(name(8, 14336, "fp8_w8a8", BlockShape{128, 128}, "NVIDIA H100 80GB HBM3"),
            "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128]"
            ".json");
  EXPECT_EQ(name(8, 7168, std::nullopt, kNoBlock, "NVIDIA H200 NVL"),
            "E=8,N=7168,device_name=NVIDIA_H200.json");
  EXPECT_EQ(name(8, 7168, "int4_w4a16", BlockShape{0, 64}, "NVIDIA GH200 480GB"),
            "E=8,N=7168,device_name=NVIDIA_GH200_480GB,dtype=int4_w4a16.json");
  EXPECT_EQ(name(1, 1, std::nullopt, BlockShape{1, 0}, "H200"),
            "E=1,N=1,device_name=NVIDIA_H200.json");
  expect_invalid("num_experts is 0", [&] { (void)name(0, 1, std::nullopt, kNoBlock, "H200"); });
  expect_invalid("device name is empty", [&] { (void)name(1, 1, std::nullopt, kNoBlock, ""); });
}

TEST(QuantConfigTest, DescriptorsMustAgree) {
  const QuantDesc fp8{Q::kFp8E4M3, group_shapes::kPerTensor, {}, {}, {}, {}};
  const QuantDesc fp8_token{Q::kFp8E4M3, group_shapes::kPerToken, {}, {}, {}, {}};
  const QuantDesc int4{Q::kInt4, {}, {}, {}, {}, {}};
  const QuantDesc odd{Q::kInt8, GroupShape{-1, 1}, {}, {}, {}, {}};
  const auto build = [](const QuantDesc& a1, const QuantDesc& a2, const QuantDesc& w1,
                        const QuantDesc& w2) { return [=] { (void)QuantConfig(a1, a2, w1, w2); }; };
  EXPECT_NO_THROW(build(fp8, fp8, int4, int4)());
  expect_invalid("a1 is fp8_e4m3 with shape {-1, -1} and a2 is fp8_e4m3 with shape {1, -1}",
                 build(fp8, fp8_token, fp8, fp8));
  expect_invalid("w1 is fp8_e4m3", build(fp8, fp8, fp8, int4));
  expect_invalid("activations are int4, which is for weights only", build(int4, int4, int4, int4));
  expect_invalid("int8 activations with shape {-1, 1}", build(odd, odd, fp8, fp8));
}

TEST(QuantConfigTest, PowerOfTwoScalesWantBlocksOf128) {
  const QuantExtras packed{.scale_format = ScaleFormat::kE8M0Packed};
  const auto config =
      QuantConfig::fp8_w8a8({.block_shape = BlockShape{128, 128}, .extras = packed});
  EXPECT_EQ(activation_scheme(config), schemes::kFp8Ue8m0);
  for (const std::optional<BlockShape>& block :
       {kNoBlock, std::optional(BlockShape{128, 64}), std::optional(BlockShape{1, 256})}) {
    expect_invalid("must be fp8_e4m3 in blocks of 128 columns",
                   [&] { (void)QuantConfig::fp8_w8a8({.block_shape = block, .extras = packed}); });
  }
  expect_invalid("must be kF32, kF32PowerOfTwo or kE8M0Packed", [&] {
    (void)QuantConfig::fp8_w8a8({.extras = {.scale_format = ScaleFormat::kE8M0}});
  });
  expect_invalid("mx_alignment is -1",
                 [&] { (void)QuantConfig::mxfp4_mxfp8({.extras = {.mx_alignment = -1}}); });
}

}  // namespace
}  // namespace switchyard
