// SPDX-License-Identifier: Apache-2.0

#include "switchyard/quantize_input.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.h"
#include "tensors.h"

namespace switchyard {
namespace {

using namespace test;

QuantizeInputConfig config_of(const std::string& quant_dtype) {
  QuantizeInputConfig config;
  config.quant_dtype = quant_dtype;
  return config;
}

// Compares with the result of quantize for the same rows.
void expect_as_quantize(const QuantizedInput& got, const TensorView& x, const QuantScheme& scheme,
                        const TensorView& static_scale = {}) {
  const std::int64_t num_rows = scheme.group == ScaleGroup::kTensor ? 1 : x.shape(0);
  const Tensor q(scheme.dtype, {x.shape(0), x.shape(1)});
  const Tensor scales(scale_dtype(scheme), {num_rows, num_scales(scheme, x.shape(1))});
  quantize(x, scheme, q, scales, Stream::host(), static_scale);
  EXPECT_EQ(got.values.describe(), q.view().describe());
  EXPECT_EQ(bytes_of(got.values), bytes_of(q)) << name_of(scheme);
  ASSERT_TRUE(got.scales.has_value());
  const TensorView rows = normalize_scales_shape(got.scales);
  const Tensor linear(scale_dtype(scheme), {num_rows, scales.shape(1)});
  relayout_scales(got.scales.num_dims() == 5 ? got.scales : rows, linear);
  EXPECT_EQ(bytes_of(linear), bytes_of(scales)) << name_of(scheme);
}

TEST(QuantizeInputTest, NoneReturnsWhatItWasGiven) {
  const Tensor x = normal_tensor(DType::kBF16, {3, 128});
  const Tensor scale(DType::kF32, {1});
  for (const char* name : {"", "none"}) {
    QuantizeInputConfig config = config_of(name);
    config.per_act_token_quant = true;
    config.block_shape = {{128, 128}};
    const QuantizedInput out = quantize_input(x, scale, config);
    EXPECT_EQ(out.values.data(), x.data());
    EXPECT_EQ(out.scales.data(), scale.data());
    EXPECT_FALSE(quantize_input(x, {}, config).scales.has_value());
  }
}

TEST(QuantizeInputTest, PlainDtypesTakeTensorTokenOrBlockScales) {
  const Tensor x = normal_tensor(DType::kBF16, {5, 300});
  struct Plain {
    const char* name;
    QuantScheme tensor, token, block;
  };
  for (const Plain& plain :
       {Plain{"fp8_e4m3", schemes::kFp8Tensor, schemes::kFp8Token, schemes::kFp8Block},
        Plain{"int8", schemes::kInt8Tensor, schemes::kInt8Token, schemes::kInt8Block}}) {
    QuantizeInputConfig config = config_of(plain.name);
    expect_as_quantize(quantize_input(x, {}, config), x, plain.tensor);
    const Tensor given(DType::kF32, {1});
    *given.as<float>() = 0.25f;
    const QuantizedInput out = quantize_input(x, given, config);
    expect_as_quantize(out, x, plain.tensor, given);
    EXPECT_EQ(out.scales.data(), given.data());  // returns the same tensor
    config.per_act_token_quant = true;
    expect_as_quantize(quantize_input(x, {}, config), x, plain.token);
    config.block_shape = {{128, 128}};
    expect_invalid("per_act_token_quant with block_shape [128, 128]",
                   [&] { (void)quantize_input(x, {}, config); });
    config.per_act_token_quant = false;
    expect_as_quantize(quantize_input(x, {}, config), x, plain.block);
    config.block_shape = {{64, 64}};
    QuantScheme block = plain.block;
    block.block = 64;
    expect_as_quantize(quantize_input(x, {}, config), x, block);
    config.block_shape = {{128, 0}};
    expect_invalid("block_shape[1] is 0, must be from 1",
                   [&] { (void)quantize_input(x, {}, config); });
  }
}

// A static scale takes precedence over per_act_token_quant; x / 2^s is exact.
TEST(QuantizeInputTest, StaticFp8ScalesMayBeOneForEachRowOrPart) {
  const std::vector<float> x{1, 2, 3, 4, 1, 2, 3, 4};
  QuantizeInputConfig config = config_of("fp8_e4m3");
  config.per_act_token_quant = true;
  const std::vector<float> by_row{1.0f, 0.5f};
  const TensorView view = TensorView::of(x.data(), {2, 4});
  const QuantizedInput rows = quantize_input(view, TensorView::of(by_row.data(), {2, 1}), config);
  EXPECT_EQ(bytes_of(rows.values),
            (std::vector<std::uint8_t>{0x38, 0x40, 0x44, 0x48, 0x40, 0x48, 0x4C, 0x50}));
  EXPECT_EQ(rows.scales.data(), by_row.data());
  const std::vector<float> by_part{1.0f, 0.5f, 0.5f, 1.0f};
  config.per_act_token_quant = false;
  const QuantizedInput parts = quantize_input(view, TensorView::of(by_part.data(), {2, 2}), config);
  EXPECT_EQ(bytes_of(parts.values),
            (std::vector<std::uint8_t>{0x38, 0x40, 0x4C, 0x50, 0x40, 0x48, 0x44, 0x48}));
  for (const auto& shape : {std::array<std::int64_t, 2>{1, 2}, {2, 3}, {3, 1}}) {
    expect_invalid("must be f32 [1], [2, 1], or [2, a divisor of 4] for fp8_e4m3",
                   [&] { (void)quantize_input(view, Tensor(DType::kF32, shape), config); });
  }
}

TEST(QuantizeInputTest, Nvfp4WantsItsGlobalScale) {
  const Tensor x = normal_tensor(DType::kBF16, {5, 96});
  QuantizeInputConfig config = config_of("nvfp4");
  expect_invalid("scale is absent, must be the global scale, f32 [1], for nvfp4",
                 [&] { (void)quantize_input(x, {}, config); });
  const Tensor scale(DType::kF32, {1});
  *scale.as<float>() = 600.0f;
  config.block_shape = {{1, 16}};
  expect_invalid("block_shape is given, must be absent for nvfp4",
                 [&] { (void)quantize_input(x, scale, config); });
  config.block_shape.reset();
  config.per_act_token_quant = true;
  expect_invalid("per_act_token_quant is set, must be false for nvfp4",
                 [&] { (void)quantize_input(x, scale, config); });
  config.per_act_token_quant = false;
  const QuantizedInput tiles = quantize_input(x, scale, config);
  EXPECT_EQ(tiles.scales.describe(), "e4m3 [1, 2, 32, 4, 4]");
  expect_as_quantize(tiles, x, schemes::kNvfp4, scale);
  config.is_scale_swizzled = false;
  const QuantizedInput rows = quantize_input(x, scale, config);
  EXPECT_EQ(rows.scales.describe(), "e4m3 [5, 6]");
  expect_as_quantize(rows, x, schemes::kNvfp4, scale);
}

TEST(QuantizeInputTest, Mxfp8PadsAndSwizzles) {
  const Tensor x = normal_tensor(DType::kBF16, {5, 96});
  QuantizeInputConfig config = config_of("mxfp8");
  expect_invalid("scale is f32 [1], must be absent for mxfp8",
                 [&] { (void)quantize_input(x, Tensor(DType::kF32, {1}), config); });
  config.block_shape = {{1, 64}};
  expect_invalid("block_shape is [1, 64], must be none or [1, 32] for mxfp8",
                 [&] { (void)quantize_input(x, {}, config); });
  config.block_shape = {{1, 32}};
  config.per_act_token_quant = true;
  expect_invalid("per_act_token_quant is set, must be false for mxfp8",
                 [&] { (void)quantize_input(x, {}, config); });
  config.per_act_token_quant = false;
  for (const std::int64_t bad : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    config.mx_alignment = bad;
    expect_invalid(bad < 0 ? "mx_alignment is -1, must be at least 0" : "overflows 64 bits",
                   [&] { (void)quantize_input(x, {}, config); });
  }
  config.mx_alignment = 128;
  const QuantizedInput padded = quantize_input(x, {}, config);
  Tensor wide(DType::kBF16, {5, 128});
  for (std::int64_t i = 0; i < 5 * 96; ++i) {
    wide.as<std::uint16_t>()[i / 96 * 128 + i % 96] = x.as<std::uint16_t>()[i];
  }
  EXPECT_EQ(padded.scales.describe(), "e8m0 [1, 1, 32, 4, 4]");
  expect_as_quantize(padded, wide, schemes::kMxfp8);
  config.mx_alignment = 0;
  config.is_scale_swizzled = false;
  expect_as_quantize(quantize_input(x, {}, config), x, schemes::kMxfp8);
}

TEST(QuantizeInputTest, MxFormatsAreSimulatedOnlyWhenAsked) {
  const Tensor x = normal_tensor(DType::kBF16, {3, 64});
  for (const char* name : {"mxfp4", "mxfp6_e3m2", "mxfp6_e2m3"}) {
    QuantizeInputConfig config = config_of(name);
    expect_invalid("quantization_emulation is false, must be true for " + std::string(name),
                   [&] { (void)quantize_input(x, {}, config); });
    config.quantization_emulation = true;
    config.block_shape = {{1, 32}};
    expect_invalid("block_shape is given, must be absent for",
                   [&] { (void)quantize_input(x, {}, config); });
    config.block_shape.reset();
    const QuantScheme scheme = *scheme_from_name(name);
    const QuantizedInput out = quantize_input(x, {}, config);
    EXPECT_EQ(out.values.describe(), "bf16 [3, 64]");
    EXPECT_FALSE(out.scales.has_value());
    const Tensor want(DType::kBF16, {3, 64});
    fake_quantize(x, scheme, want);
    EXPECT_EQ(bytes_of(out.values), bytes_of(want));
    EXPECT_NE(bytes_of(out.values), bytes_of(x));
  }
}

TEST(QuantizeInputTest, WeightOnlySchemesRoundThroughFp8) {
  const std::vector<float> x{448, 1, 1.03f, -17, 0, 5e-4f};  // scale 1
  const TensorView view = TensorView::of(x.data(), {2, 3});
  QuantizeInputConfig config = config_of("fp8");
  config.ocp_mx_scheme = "w_mxfp4_a_fp8";
  const QuantizedInput out = quantize_input(view, {}, config);
  EXPECT_FALSE(out.scales.has_value());
  const float* got = out.values.as<float>();
  EXPECT_EQ(std::vector<float>(got, got + 6), (std::vector<float>{448, 1, 1, -16, 0, 0}));
  const Tensor given(DType::kF32, {1});
  *given.as<float>() = 0x1p-9f;
  const QuantizedInput fixed = quantize_input(view, given, config);
  EXPECT_EQ(fixed.values.as<float>()[0], 448 * 0x1p-9f);  // saturated
  EXPECT_FALSE(fixed.scales.has_value());
  for (const char* scheme : {"", "w_mxfp4", "w_mxfp4_a_mxfp4"}) {
    config.ocp_mx_scheme = scheme;
    expect_invalid("must be a scheme that ends in a_fp8; for fp8 values say fp8_e4m3",
                   [&] { (void)quantize_input(view, {}, config); });
  }
  expect_invalid("quant_dtype is \"fp7\", must be none, fp8_e4m3",
                 [&] { (void)quantize_input(view, {}, config_of("fp7")); });
  expect_invalid("x is f32 [6], must be 2 dimensions", [&] {
    (void)quantize_input(TensorView::of(x.data(), {6}), {}, config_of("fp8_e4m3"));
  });
}

// amax 1, 3, 448, 1000 and 0 give bytes 119, 120, 127, 129 and 94.
TEST(QuantizeInputTest, PackedScalesForDeepGemmAreColumnsOfFourRows) {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kH = 640;
  Tensor x(DType::kBF16, {kRows, kH});
  const std::vector<float> amax{1, 3, 448, 1000, 0};
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t g = 0; g < 5; ++g) {
      const float value = amax[static_cast<std::size_t>((m + g) % 5)];
      x.as<std::uint16_t>()[m * kH + g * 128 + m] = bf16_from_f32(value);
    }
  }
  const QuantizedInput out =
      quantize_input(x, schemes::kFp8Ue8m0, ScaleLayout::kColumnMajorAligned);
  EXPECT_EQ(out.scales.stride(0), 1);
  EXPECT_EQ(out.scales.stride(1), 8);
  const auto* words = out.scales_memory.as<std::uint32_t>();
  EXPECT_EQ(words[0], 0x817F7877u);
  EXPECT_EQ(words[1], 0x5E817F78u);
  EXPECT_EQ(words[8], 94u);  // the fifth group of row 0, zero-padded
  EXPECT_EQ(words[9], 119u);
  for (std::int64_t n = kRows; n < 8; ++n) {
    EXPECT_EQ(words[n], 0u);
    EXPECT_EQ(words[8 + n], 0u);
  }
  EXPECT_EQ(out.values.describe(), "e4m3 [5, 640]");
  EXPECT_EQ(out.values_memory.shape(0), 8);
  const std::vector<std::uint8_t> q = bytes_of(out.values_memory);
  EXPECT_EQ(q[0], 0x78);        // 1 * 2^8 = 256
  EXPECT_EQ(q[3 * 128], 0x78);  // 1000 / 4 = 250: 256 is nearer than 240
  EXPECT_TRUE(std::all_of(q.begin() + kRows * kH, q.end(), [](std::uint8_t b) { return b == 0; }));
}

TEST(QuantizeInputTest, SchemesTakeTheirLayoutsAndEmptyInput) {
  const Tensor scale(DType::kF32, {1});
  *scale.as<float>() = 300.0f;
  for (const QuantScheme& scheme : named_schemes()) {
    const TensorView static_scale = scheme.needs_tensor_scale() ? scale.view() : TensorView{};
    const QuantizedInput empty = quantize_input(Tensor(DType::kBF16, {0, 128}), scheme,
                                                ScaleLayout::kRowMajor, static_scale);
    EXPECT_EQ(empty.values.shape(0), 0);
    const Tensor x = normal_tensor(DType::kF32, {7, 160});
    if (!scheme.is_quantized() || scheme.is_simulated()) continue;
    for (const ScaleLayout layout : layouts_of(scheme)) {
      expect_as_quantize(quantize_input(x, scheme, layout, static_scale), x, scheme, static_scale);
    }
  }
  expect_invalid("layout is kSwizzled for f32 scales of fp8_block, must be one-byte scales", [] {
    (void)quantize_input(Tensor(DType::kBF16, {1, 128}), schemes::kFp8Block,
                         ScaleLayout::kSwizzled);
  });
}

TEST(FakeQuantizeTest, EqualsQuantizeThenDequantize) {
  const std::vector<float> global{448.0f * 6.0f / 4.0f};
  for (const QuantScheme& scheme : named_schemes()) {
    if (scheme.is_simulated()) continue;
    const TensorView static_scale =
        scheme.needs_tensor_scale() ? TensorView::of(global.data(), {1}) : TensorView{};
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      if (!scheme.is_quantized() && dtype != scheme.dtype) continue;
      const Tensor x = normal_tensor(dtype, {5, 200});
      const Tensor y(dtype, {5, 200});
      fake_quantize(x, scheme, y, static_scale);
      if (!scheme.is_quantized()) {
        EXPECT_EQ(bytes_of(y), bytes_of(x));
        continue;
      }
      const bool is_tensor = scheme.group == ScaleGroup::kTensor;
      const Tensor q(scheme.dtype, {5, 200});
      const Tensor scales(scale_dtype(scheme), {is_tensor ? 1 : 5, num_scales(scheme, 200)});
      const Tensor want(dtype, {5, 200});
      quantize(x, scheme, q, scales, Stream::host(), static_scale);
      dequantize(q, scales, scheme, want, Stream::host(), static_scale);
      EXPECT_EQ(bytes_of(y), bytes_of(want)) << name_of(scheme);
      EXPECT_NE(bytes_of(y), bytes_of(x)) << name_of(scheme);
    }
  }
  expect_invalid("must be contiguous bf16 [1, 8]", [] {
    fake_quantize(Tensor(DType::kBF16, {1, 8}), schemes::kFp8Token, Tensor(DType::kF32, {1, 8}));
  });
}

}  // namespace
}  // namespace switchyard
