// SPDX-License-Identifier: Apache-2.0
//
// Scales given by the caller, formats with other than one byte per element, and refusals of both.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/quant.h"

#include "quant/scalar.h"
#include "support/errors.h"

namespace switchyard {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void expect_refused(const std::string& phrase, const std::function<void()>& call) {
  test::expect_invalid(phrase, call);
}

TEST(QuantizeOptionsTest, TokenScalesMayBeGiven) {
  const std::vector<float> data{1.0f, 1000.0f, -0.3f, 2.0f};
  const TensorView x = TensorView::of(data.data(), {2, 2});
  const std::vector<float> given{0.7f, -1.0f, 0.5f, -1.0f};  // the strides select every second one
  const TensorView static_scale(given.data(), DType::kF32, {2, 1}, {2, 1});
  const Tensor q(DType::kE4M3, {2, 2});
  const Tensor scales(DType::kF32, {2, 1});
  quantize(x, schemes::kFp8Token, q, scales, Stream::host(), static_scale);
  const float inverse = 1.0f / 0.7f;
  EXPECT_EQ(q.as<std::uint8_t>()[0], e4m3_from_f32(inverse));  // as per-tensor schemes do
  EXPECT_EQ(q.as<std::uint8_t>()[1], 0x7E);
  EXPECT_EQ(q.as<std::uint8_t>()[2], e4m3_from_f32(-0.6f));
  EXPECT_EQ(scales.as<float>()[0], 0.7f);
  EXPECT_EQ(scales.as<float>()[1], 0.5f);
}

TEST(QuantizeOptionsTest, TokenScalesMayHaveAnUpperBound) {
  const std::vector<float> data{896.0f, -kInf, 1.0f, 224.0f, 2.0f, 1.0f};
  const TensorView x = TensorView::of(data.data(), {2, 3});
  const Tensor q(DType::kE4M3, {2, 3});
  const Tensor scales(DType::kF32, {2, 1});
  quantize(x, schemes::kFp8Token, q, scales, Stream::host(), {}, 448.0f);
  EXPECT_EQ(scales.as<float>()[0], 1.0f);
  EXPECT_EQ(scales.as<float>()[1], 0.5f);
  const auto* codes = q.as<std::uint8_t>();
  EXPECT_EQ((std::vector<std::uint8_t>(codes, codes + 6)),
            (std::vector<std::uint8_t>{0x7E, 0xFE, 0x38, 0x7E, 0x48, 0x40}));
}

TEST(QuantizeOptionsTest, Nvfp4HasAGlobalScaleAndTwoElementsAByte) {
  std::vector<float> data{-192, -166, -141, -115, -90, -64, -38, -13,
                          13,   38,   64,   90,   115, 141, 166, 192};
  for (float& value : data) value /= 256;
  const TensorView x = TensorView::of(data.data(), {1, 16});
  const float global = 896.0f;
  const TensorView global_scale = TensorView::of(&global, {1});
  const Tensor q(DType::kE2M1, {1, 16});
  const Tensor scales(DType::kE4M3, {1, 1});
  quantize(x, schemes::kNvfp4, q, scales, Stream::host(), global_scale);
  const auto* bytes = q.as<std::uint8_t>();
  EXPECT_EQ((std::vector<std::uint8_t>(bytes, bytes + 8)),
            (std::vector<std::uint8_t>{0xFF, 0xEE, 0xCD, 0x9A, 0x21, 0x54, 0x66, 0x77}));
  EXPECT_EQ(*scales.as<std::uint8_t>(), 0x6E);
  const Tensor y(DType::kBF16, {1, 16});
  dequantize(q, scales, schemes::kNvfp4, y, Stream::host(), global_scale);
  EXPECT_EQ(y.as<std::uint16_t>()[15], bf16_from_f32(0.75f));
  EXPECT_EQ(y.as<std::uint16_t>()[8], bf16_from_f32(0.0625f));
}

TEST(QuantizeOptionsTest, ByteScalesGoWhereTheStridesSay) {
  const std::int64_t hidden = 70;
  const Tensor x(DType::kBF16, {3, hidden});
  for (std::int64_t i = 0; i < 3 * hidden; ++i) {
    scalar::store(x.data(), DType::kBF16, i, static_cast<float>(i * i % 977) * 0.01f);
  }
  const Tensor q(DType::kE2M1, {3, hidden});
  const Tensor scales(DType::kE8M0, {3, 3});
  quantize(x, schemes::kMxfp4, q, scales);
  std::vector<std::uint8_t> columns(4 * 3, 0xEE);
  const TensorView strided(columns.data(), DType::kE8M0, {3, 3}, {1, 4});
  const Tensor q2(DType::kE2M1, {3, hidden});
  quantize(x, schemes::kMxfp4, q2, strided);
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t b = 0; b < 3; ++b) {
      const std::uint8_t want = t < 3 ? scales.as<std::uint8_t>()[t * 3 + b] : 0xEE;
      EXPECT_EQ(columns[b * 4 + t], want) << t << " " << b;
    }
  }
  const Tensor y(DType::kBF16, {3, hidden});
  const Tensor y2(DType::kBF16, {3, hidden});
  dequantize(q, scales, schemes::kMxfp4, y);
  dequantize(q2, strided, schemes::kMxfp4, y2);
  for (std::int64_t i = 0; i < 3 * hidden; ++i) {
    ASSERT_EQ(y.as<std::uint16_t>()[i], y2.as<std::uint16_t>()[i]);
    const float want = scalar::load(x.data(), DType::kBF16, i);
    // Magnitudes stay below 12, so no scale exceeds 2, and the widest step is from 4 to 6.
    ASSERT_NEAR(scalar::load(y.data(), DType::kBF16, i), want, 2.0f) << i;
  }
}

TEST(QuantizeOptionsTest, SimulatedFormatsKeepTheDTypeAndNeedNoScales) {
  const std::vector<float> data{7.5f, 7.3f, -3.1f, 0.3f, 0.0625f};
  const TensorView x = TensorView::of(data.data(), {1, 5});
  const Tensor q(DType::kF32, {1, 5});
  quantize(x, schemes::kMxfp6E2M3, q, {});
  const auto* kept = q.as<float>();
  EXPECT_EQ((std::vector<float>(kept, kept + 5)),
            (std::vector<float>{7.5f, 7.5f, -3.0f, 0.25f, 0.0f}));
  const Tensor y(DType::kBF16, {1, 5});
  dequantize(q, {}, schemes::kMxfp6E2M3, y);
  EXPECT_EQ(y.as<std::uint16_t>()[2], bf16_from_f32(-3.0f));
  const Tensor wrong(DType::kE2M3, {1, 5});
  expect_refused("q is e2m3 [1, 5], must be contiguous f32 [1, 5]",
                 [&] { quantize(x, schemes::kMxfp6E2M3, wrong, {}); });
  expect_refused("q is e2m3 [1, 5], must be bf16, f16 or f32",
                 [&] { dequantize(wrong, {}, schemes::kMxfp6E2M3, y); });
}

TEST(QuantizeOptionsTest, WithoutRowsStridesMeanNothing) {
  const TensorView x(nullptr, DType::kF32, {0, 16}, {0, 0});
  const TensorView q(nullptr, DType::kE4M3, {0, 16}, {0, 0});
  const TensorView scales(nullptr, DType::kF32, {0, 1}, {0, 0});
  quantize(x, schemes::kFp8Token, q, scales);
  dequantize(q, scales, schemes::kFp8Token, x);
}

TEST(QuantizeOptionsTest, RefusesOddRowsOfFp4) {
  const Tensor x(DType::kBF16, {2, 15});
  const Tensor q(DType::kE2M1, {2, 15});
  const Tensor scales(DType::kE8M0, {2, 1});
  expect_refused("quantize: hidden is 15, must be an even number",
                 [&] { quantize(x, schemes::kMxfp4, q, scales); });
  expect_refused("dequantize: hidden is 15, must be an even number",
                 [&] { dequantize(q, scales, schemes::kMxfp4, x); });
}

TEST(QuantizeOptionsTest, RefusesMissingAndSenselessGlobalScales) {
  const Tensor x(DType::kBF16, {1, 16});
  const Tensor q(DType::kE2M1, {1, 16});
  const Tensor scales(DType::kE4M3, {1, 1});
  expect_refused("static_scale is absent, must be f32 [1], the global scale of nvfp4",
                 [&] { quantize(x, schemes::kNvfp4, q, scales); });
  expect_refused("tensor_scale is absent, must be f32 [1]",
                 [&] { dequantize(q, scales, schemes::kNvfp4, x); });
  for (const float value : {0.0f, -1.0f, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    expect_refused("must be a positive number", [&] {
      quantize(x, schemes::kNvfp4, q, scales, Stream::host(), TensorView::of(&value, {1}));
    });
  }
  const Tensor wrong(DType::kF32, {1, 1});
  const float one = 1.0f;
  expect_refused("scales is f32 [1, 1], must be e4m3 [1, 1] for nvfp4", [&] {
    quantize(x, schemes::kNvfp4, q, wrong, Stream::host(), TensorView::of(&one, {1}));
  });
}

TEST(QuantizeOptionsTest, RefusesOptionsThatTheSchemeHasNoUseFor) {
  const Tensor x(DType::kBF16, {2, 32});
  const Tensor q(DType::kE4M3, {2, 32});
  const Tensor scales(DType::kF32, {2, 1});
  const Tensor bytes(DType::kE8M0, {2, 1});
  expect_refused("static_scale is f32 [1], must be f32 [2, 1]", [&] {
    const float one = 1.0f;
    quantize(x, schemes::kFp8Token, q, scales, Stream::host(), TensorView::of(&one, {1}));
  });
  expect_refused("static_scale is given for mxfp8",
                 [&] { quantize(x, schemes::kMxfp8, q, bytes, Stream::host(), scales); });
  expect_refused("scale_ub is given for mxfp8",
                 [&] { quantize(x, schemes::kMxfp8, q, bytes, Stream::host(), {}, 1.0f); });
  expect_refused("scale_ub is given for fp8_token, must be fp8_token without static_scale",
                 [&] { quantize(x, schemes::kFp8Token, q, scales, Stream::host(), scales, 1.0f); });
  expect_refused("scale_ub is -1, must be above 0",
                 [&] { quantize(x, schemes::kFp8Token, q, scales, Stream::host(), {}, -1.0f); });
  for (int i = 0; i < 64; ++i) ASSERT_EQ(q.as<std::uint8_t>()[i], 0);
}

TEST(QuantizeOptionsTest, Int8TensorScaleIsDynamicOrGiven) {
  const std::vector<float> data{1.0f, -254.0f, 3.0f, 5.0f};
  const TensorView x = TensorView::of(data.data(), {2, 2});
  const Tensor q(DType::kI8, {2, 2});
  const Tensor scale(DType::kF32, {1});
  quantize(x, schemes::kInt8Tensor, q, scale);
  EXPECT_EQ(*scale.as<float>(), 2.0f);
  const auto* codes = q.as<std::int8_t>();
  EXPECT_EQ((std::vector<int>(codes, codes + 4)), (std::vector<int>{0, -127, 2, 2}));
  const float given = 2.5f;
  quantize(x, schemes::kInt8Tensor, q, scale, Stream::host(), TensorView::of(&given, {1}));
  EXPECT_EQ((std::vector<int>(codes, codes + 4)), (std::vector<int>{0, -102, 1, 2}));
}

}  // namespace
}  // namespace switchyard
