// SPDX-License-Identifier: Apache-2.0
//
// scale_shape_test.cpp: packed exponent words, and scales normalized to the shapes of matrices and
// batches.

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/scale_layout.h"

#include "quant/scheme.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

TEST(PackUe8m0Test, FourBytesFillAWordFromTheLowEnd) {
  const std::vector<float> scales{1.0f, 2.0f, 0x1p-126f, 0x1p-127f, 0x1p127f, 0.0f};
  const Tensor words(DType::kI32, {1, 2});
  words.as<std::int32_t>()[1] = -1;
  pack_ue8m0(TensorView::of(scales.data(), {1, 6}), words);
  EXPECT_EQ(words.as<std::uint32_t>()[0], 0x0001807Fu);
  EXPECT_EQ(words.as<std::uint32_t>()[1], 0x000000FEu);
  const std::vector<std::uint8_t> bytes{0x7F, 0x80, 0x01, 0x00, 0xFE, 0x00};
  const Tensor again(DType::kI32, {1, 2});
  pack_ue8m0(TensorView(bytes.data(), DType::kE8M0, {1, 6}), again);
  EXPECT_EQ(again.as<std::uint32_t>()[0], 0x0001807Fu);
  EXPECT_EQ(again.as<std::uint32_t>()[1], 0x000000FEu);
}

TEST(PackUe8m0Test, EveryByteComesBack) {
  for (const std::int64_t num_scales : {1, 3, 4, 5, 56}) {
    const std::int64_t num_words = (num_scales + 3) / 4;
    constexpr std::int64_t kRows = 257;
    const Tensor bytes(DType::kE8M0, {kRows, num_scales});
    for (std::int64_t i = 0; i < kRows * num_scales; ++i) {
      bytes.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 256);
    }
    const OwnedScales words =
        make_scales(DType::kI32, ScaleLayout::kColumnMajorAligned, kRows, num_words);
    const Tensor wide(DType::kF32, {kRows, num_scales});
    const OwnedScales repacked =
        make_scales(DType::kI32, ScaleLayout::kColumnMajorAligned, kRows, num_words);
    const Tensor back(DType::kE8M0, {kRows, num_scales});
    pack_ue8m0(bytes, words.view);
    unpack_ue8m0(words.view, wide);
    pack_ue8m0(wide, repacked.view);
    unpack_ue8m0(repacked.view, back);
    for (std::int64_t i = 0; i < kRows * num_scales; ++i) {
      const int byte = bytes.as<std::uint8_t>()[i];
      const float value = wide.as<float>()[i];
      if (byte == 255) {
        ASSERT_TRUE(std::isnan(value));
      } else {
        ASSERT_EQ(value, std::ldexp(1.0f, byte - 127)) << byte;
      }
      ASSERT_EQ(back.as<std::uint8_t>()[i], byte);
    }
    // Rows 257 to 259 of each column are padding.
    for (std::int64_t p = 0; p < num_words; ++p) {
      for (std::int64_t n = kRows; n < 260; ++n) {
        ASSERT_EQ(words.memory.as<std::int32_t>()[p * 260 + n], 0);
      }
    }
  }
}

TEST(PackUe8m0Test, BatchesPackAnExpertAtATime) {
  const std::vector<float> scales{1.0f, 2.0f, 4.0f, 8.0f, 16.0f, 32.0f};  // [3, 2, 1]
  const OwnedScales words =
      make_batched_scales(DType::kI32, ScaleLayout::kColumnMajorAligned, 3, 2, 1);
  pack_ue8m0(TensorView::of(scales.data(), {3, 2, 1}), words.view);
  const auto* memory = words.memory.as<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(memory, memory + 12),
            (std::vector<std::int32_t>{127, 128, 0, 0, 129, 130, 0, 0, 131, 132, 0, 0}));
}

TEST(PackUe8m0Test, RefusesWhatIsNoPowerOfTwo) {
  const Tensor words(DType::kI32, {1, 1});
  for (const float bad : {3.0f, -2.0f, 0x1.8p-127f, 1e-45f, -0.0f}) {
    const std::vector<float> scales{1.0f, bad};
    expect_invalid("scale 1 of row 0 of plane 0 is not a power of two", [&] {
      pack_ue8m0(TensorView::of(scales.data(), {1, 2}), words);
    });
  }
  EXPECT_EQ(words.as<std::int32_t>()[0], 0);
  const Tensor five(DType::kF32, {1, 5});
  expect_invalid("scales is i32 [1, 1], must be i32 [1, 2]", [&] { pack_ue8m0(five, words); });
  expect_invalid("must be rows of f32 or of e8m0 bytes", [&] {
    unpack_ue8m0(words, Tensor(DType::kI32, {1, 4}));
  });
}

TEST(NormalizeScalesTest, OneElementIsAMatrixAndTheRestKeepsItsLastDimension) {
  const Tensor data(DType::kF32, {24});
  const auto shape = [&](std::initializer_list<std::int64_t> sizes) {
    return normalize_scales_shape(TensorView(data.data(), DType::kF32, sizes)).describe();
  };
  EXPECT_FALSE(normalize_scales_shape({}).has_value());
  EXPECT_EQ(shape({}), "f32 [1, 1]");
  EXPECT_EQ(shape({1}), "f32 [1, 1]");
  EXPECT_EQ(shape({1, 1, 1}), "f32 [1, 1]");
  EXPECT_EQ(shape({24}), "f32 [1, 24]");
  EXPECT_EQ(shape({6, 4}), "f32 [6, 4]");
  EXPECT_EQ(shape({2, 3, 4}), "f32 [6, 4]");
  const TensorView columns(data.data(), DType::kF32, {6, 4}, {1, 6});
  EXPECT_EQ(normalize_scales_shape(columns).stride(1), 6);
  EXPECT_EQ(normalize_scales_shape(columns).data(), data.data());
  const TensorView planes(data.data(), DType::kF32, {2, 3, 4}, {12, 1, 3});
  expect_invalid("must be a contiguous tensor", [&] { (void)normalize_scales_shape(planes); });
}

TEST(NormalizeScalesTest, ABatchSharesOneScaleOrDividesTheRows) {
  std::vector<float> data(24);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const TensorView one = normalize_batched_scales_shape(TensorView::of(data.data(), {1}), 5);
  EXPECT_EQ(one.shape(0), 5);
  EXPECT_EQ(one.shape(1), 1);
  EXPECT_EQ(one.shape(2), 1);
  EXPECT_EQ(one.stride(0), 0);
  const TensorView rows = normalize_batched_scales_shape(TensorView::of(data.data(), {6, 4}), 3);
  EXPECT_EQ(rows.describe(), "f32 [3, 2, 4]");
  // Columns of 6 rows: expert 2, row 1, scale 3 is row 5 of column 3.
  const TensorView columns(data.data(), DType::kF32, {6, 4}, {1, 6});
  const TensorView batch = normalize_batched_scales_shape(columns, 3);
  EXPECT_EQ(batch.as<float>()[2 * batch.stride(0) + batch.stride(1) + 3 * batch.stride(2)], 23.0f);
  EXPECT_FALSE(normalize_batched_scales_shape({}, 3).has_value());
  const TensorView ready(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_EQ(normalize_batched_scales_shape(ready, 7).describe(), "f32 [2, 3, 4]");
  expect_invalid("must be rows that 4 experts divide", [&] {
    (void)normalize_batched_scales_shape(TensorView::of(data.data(), {6, 4}), 4);
  });
  expect_invalid("num_experts is 0, must be at least 1", [&] {
    (void)normalize_batched_scales_shape(TensorView::of(data.data(), {6, 4}), 0);
  });
}

// A header of 90 bytes may state 2^40 rows of nothing; only rows with scales are visited.
TEST(ScaleShapeTest, RowsOfNothingTakeNoTime) {
  constexpr std::int64_t kRows = std::int64_t{1} << 40;
  float scale = 1.0f;
  alignas(16) std::byte nothing{};
  for (const QuantScheme& scheme : named_schemes()) {
    if (!scheme.is_quantized() || (has_row_scales(scheme) && num_scales(scheme, 0) > 0)) continue;
    const bool is_tensor = scheme.group == ScaleGroup::kTensor;
    const TensorView x(&nothing, DType::kBF16, {kRows, 0});
    const TensorView q(&nothing, stored_dtype(scheme, DType::kBF16), {kRows, 0});
    const TensorView scales = is_tensor ? TensorView::of(&scale, {1})
                              : has_row_scales(scheme)
                                  ? TensorView(&nothing, scale_dtype(scheme), {kRows, 0})
                                  : TensorView{};
    const TensorView global =
        scheme.needs_tensor_scale() ? TensorView::of(&scale, {1}) : TensorView{};
    quantize(x, scheme, q, scales, Stream::host(), global);
    if (!scheme.is_simulated()) dequantize(q, scales, scheme, x, Stream::host(), global);
  }
}

}  // namespace
}  // namespace switchyard
