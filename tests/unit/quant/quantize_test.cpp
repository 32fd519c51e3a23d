// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/quant.h"

#include "core/random.h"
#include "quant/scalar.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

constexpr std::int64_t kT = 5;
constexpr std::int64_t kH = 600;  // four blocks of 128 and a partial one of 88

Tensor random_rows(DType dtype) {
  Tensor x(dtype, {kT, kH});
  for (std::int64_t i = 0; i < kT * kH; ++i) {
    scalar::store(x.data(), dtype, i,
                  static_cast<float>(random_normal(11, static_cast<std::uint64_t>(i))));
  }
  return x;
}

TEST(QuantizeTest, ScalesGoWhereTheStridesSay) {
  const Tensor x = random_rows(DType::kBF16);
  const Tensor q(DType::kE4M3, {kT, kH});
  const Tensor scales(DType::kF32, {kT, 5});
  quantize(x, schemes::kFp8Block, q, scales);
  // Column-major with columns padded to 8 rows, as TMA needs them.
  std::vector<float> columns(8 * 5, -1.0f);
  const Tensor q2(DType::kE4M3, {kT, kH});
  const TensorView strided(columns.data(), DType::kF32, {kT, 5}, {1, 8});
  quantize(x, schemes::kFp8Block, q2, strided);
  for (std::int64_t t = 0; t < 8; ++t) {
    for (std::int64_t b = 0; b < 5; ++b) {
      const float want = t < kT ? scales.as<float>()[t * 5 + b] : -1.0f;
      EXPECT_EQ(columns[static_cast<std::size_t>(b * 8 + t)], want) << t << " " << b;
    }
  }
  const Tensor back(DType::kF32, {kT, kH});
  const Tensor back2(DType::kF32, {kT, kH});
  dequantize(q, scales, schemes::kFp8Block, back);
  dequantize(q2, strided, schemes::kFp8Block, back2);
  for (std::int64_t i = 0; i < kT * kH; ++i) {
    ASSERT_EQ(q.as<std::uint8_t>()[i], q2.as<std::uint8_t>()[i]);
    ASSERT_EQ(back.as<float>()[i], back2.as<float>()[i]);
  }
}

// Half a step of e4m3 is 1/16 of the value, or half of 2^-9 scales near zero.
TEST(QuantizeTest, RoundTripStaysWithinHalfAStep) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Tensor x = random_rows(dtype);
    for (const QuantScheme& scheme :
         {schemes::kFp8Block, schemes::kFp8BlockDeepEp, schemes::kFp8Token, schemes::kFp8Ue8m0}) {
      const Tensor q(DType::kE4M3, {kT, kH});
      const bool is_packed = scheme.scale_format == ScaleFormat::kE8M0Packed;
      const Tensor scales(is_packed ? DType::kI32 : DType::kF32, {kT, num_scales(scheme, kH)});
      const Tensor y(DType::kF32, {kT, kH});
      quantize(x, scheme, q, scales);
      dequantize(q, scales, scheme, y);
      for (std::int64_t i = 0; i < kT * kH; ++i) {
        const float want = scalar::load(x.data(), dtype, i);
        const float step = std::max(std::abs(want) / 16, 0x1p-10f * 5.0f / 224.0f);
        ASSERT_NEAR(y.as<float>()[i], want, step * 1.001f) << name_of(scheme) << " " << i;
      }
    }
  }
}

TEST(QuantizeTest, TensorScaleIsDynamicOrGiven) {
  const std::vector<float> data{1.0f, -3.0f, 2.0f, 0.5f};
  const TensorView x = TensorView::of(data.data(), {2, 2});
  const Tensor q(DType::kE4M3, {2, 2});
  const Tensor scale(DType::kF32, {1});
  quantize(x, schemes::kFp8Tensor, q, scale);
  EXPECT_EQ(bits_from_f32(*scale.as<float>()), 0x3BDB6DB7u);
  EXPECT_EQ(q.as<std::uint8_t>()[1], 0xFE);
  const float given = 0.5f;
  quantize(x, schemes::kFp8Tensor, q, scale, Stream::host(), TensorView::of(&given, {1}));
  EXPECT_EQ(*scale.as<float>(), 0.5f);
  EXPECT_EQ(q.as<std::uint8_t>()[0], e4m3_from_f32(2.0f));
}

TEST(QuantizeTest, AllZeroTensorHasScaleZeroAndMaximalCodes) {
  const Tensor x(DType::kBF16, {2, 40});
  const Tensor q(DType::kE4M3, {2, 40});
  const Tensor scale(DType::kF32, {1});
  const Tensor y(DType::kF32, {2, 40});
  quantize(x, schemes::kFp8Tensor, q, scale);
  dequantize(q, scale, schemes::kFp8Tensor, y);
  EXPECT_EQ(*scale.as<float>(), 0.0f);
  for (int i = 0; i < 80; ++i) {
    ASSERT_EQ(q.as<std::uint8_t>()[i], 0x7E);
    ASSERT_EQ(y.as<float>()[i], 0.0f);
  }
}

TEST(QuantizeTest, WithoutScalesRowsAreCopiedOrRoundedOnce) {
  const std::vector<float> data{1.0f, 1.00390625f, -2.5f};
  const TensorView x = TensorView::of(data.data(), {1, 3});
  const Tensor q(DType::kBF16, {1, 3});
  quantize(x, schemes::kNone, q, {});
  EXPECT_EQ(q.as<std::uint16_t>()[0], 0x3F80);
  EXPECT_EQ(q.as<std::uint16_t>()[1], 0x3F80);  // a tie goes to even
  EXPECT_EQ(q.as<std::uint16_t>()[2], 0xC020);
  const Tensor y(DType::kF16, {1, 3});
  dequantize(q, {}, schemes::kNone, y);
  EXPECT_EQ(y.as<std::uint16_t>()[2], 0xC100);
  q.as<std::uint16_t>()[0] = 0xFFFF;  // the same dtype keeps all bytes, even NaN
  const Tensor copy(DType::kBF16, {1, 3});
  dequantize(q, {}, schemes::kNone, copy);
  EXPECT_EQ(copy.as<std::uint16_t>()[0], 0xFFFF);
}

TEST(QuantizeTest, RowsMayBePartsOfWiderRows) {
  const Tensor whole = random_rows(DType::kBF16);
  const TensorView part(whole.data(), DType::kBF16, {kT, 200}, {kH, 1});
  const Tensor q(DType::kE4M3, {kT, 200});
  const Tensor scales(DType::kF32, {kT, 1});
  quantize(part, schemes::kFp8Token, q, scales);
  for (std::int64_t t = 0; t < kT; ++t) {
    std::vector<std::uint8_t> want(200);
    float scale = 0.0f;
    scalar::quantize_row(schemes::kFp8Token, whole.as<std::uint16_t>() + t * kH, DType::kBF16, 200,
                         want.data(), &scale);
    EXPECT_EQ(scales.as<float>()[t], scale);
    for (std::int64_t h = 0; h < 200; ++h) {
      ASSERT_EQ(q.as<std::uint8_t>()[t * 200 + h], want[static_cast<std::size_t>(h)]);
    }
  }
}

TEST(QuantizeTest, EmptyTensorsAreFine) {
  for (const std::int64_t hidden : {0, 128}) {
    const Tensor x(DType::kBF16, {0, hidden});
    const Tensor q(DType::kE4M3, {0, hidden});
    const Tensor scales(DType::kF32, {0, num_scales(schemes::kFp8Block, hidden)});
    EXPECT_NO_THROW(quantize(x, schemes::kFp8Block, q, scales));
    EXPECT_NO_THROW(dequantize(q, scales, schemes::kFp8Block, x));
  }
  const Tensor x(DType::kBF16, {3, 0});
  const Tensor q(DType::kE4M3, {3, 0});
  const Tensor scale(DType::kF32, {1});
  quantize(x, schemes::kFp8Tensor, q, scale);
  EXPECT_EQ(*scale.as<float>(), 0.0f);
}

TEST(QuantizeTest, RefusesWrongTensorsAndWritesNothing) {
  const Tensor x = random_rows(DType::kBF16);
  const Tensor q(DType::kE4M3, {kT, kH});
  const Tensor scales(DType::kF32, {kT, 5});
  const Tensor narrow(DType::kF32, {kT, 4});
  const Tensor integers(DType::kI32, {kT, kH});
  const QuantScheme& scheme = schemes::kFp8Block;
  expect_invalid("scales is f32 [5, 4], must be f32 [5, 5] for fp8_block",
                 [&] { quantize(x, scheme, q, narrow); });
  expect_invalid("scales is absent", [&] { quantize(x, scheme, q, {}); });
  expect_invalid("must be i32 [5, 2]", [&] { quantize(x, schemes::kFp8Ue8m0, q, scales); });
  expect_invalid("must be contiguous e4m3 [5, 600]", [&] { quantize(x, scheme, scales, scales); });
  expect_invalid("must be bf16, f16 or f32", [&] { quantize(integers, scheme, q, scales); });
  expect_invalid("x is absent, must be 2 dimensions", [&] { quantize({}, scheme, q, scales); });
  expect_invalid("must be f32 [1]", [&] { quantize(x, schemes::kFp8Tensor, q, scales); });
  expect_invalid("static_scale is given for fp8_block",
                 [&] { quantize(x, scheme, q, scales, Stream::host(), scales); });
  const TensorView columns(x.data(), DType::kBF16, {kT, 2}, {1, kT});
  expect_invalid("must be contiguous rows", [&] { quantize(columns, scheme, q, scales); });
  expect_invalid("y is i32 [5, 600]", [&] { dequantize(q, scales, scheme, integers); });
  for (std::int64_t i = 0; i < kT * kH; ++i) ASSERT_EQ(q.as<std::uint8_t>()[i], 0);
}

}  // namespace
}  // namespace switchyard
