// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/quantize_batched.h"

#include "quant/bf16.h"
#include "quant/exp.h"
#include "quant/scheme.h"
#include "reference/reference.h"
#include "support/errors.h"
#include "tensors.h"

namespace switchyard {
namespace {

using reference::Table;
using namespace test;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// silu(gate) * up, element by element.
Table<float> activated(const Tensor& x, std::int64_t num_rows, std::int64_t intermediate) {
  Table<float> y(num_rows, intermediate);
  for (std::int64_t t = 0; t < num_rows; ++t) {
    for (std::int64_t i = 0; i < intermediate; ++i) {
      const float gate = scalar::load(x.data(), x.dtype(), t * 2 * intermediate + i);
      const float up = scalar::load(x.data(), x.dtype(), (t * 2 + 1) * intermediate + i);
      y(t, i) = silu(gate) * up;
    }
  }
  return y;
}

// The result of the fused rule's formula.
struct FusedRow {
  std::vector<std::uint8_t> q;
  std::vector<float> scales;
};

FusedRow fused_row(std::span<const float> y, std::int64_t block, bool is_power_of_two) {
  FusedRow row;
  const auto size = static_cast<std::int64_t>(y.size());
  for (std::int64_t begin = 0; begin < size; begin += block) {
    const std::int64_t end = std::min(begin + block, size);
    float amax = 1e-10f;
    for (std::int64_t i = begin; i < end; ++i) {
      amax = std::fmax(amax, std::fabs(y[static_cast<std::size_t>(i)]));
    }
    float scale = amax * (1.0f / 448.0f);
    if (is_power_of_two) scale = std::exp2(std::ceil(std::log2(scale)));
    row.scales.push_back(scale);
    for (std::int64_t i = begin; i < end; ++i) {
      const float value = y[static_cast<std::size_t>(i)] * (1.0f / scale);
      row.q.push_back(reference::e4m3_from_f32(value, 0xFE));
    }
  }
  return row;
}

std::vector<std::uint8_t> q_row_of(const Tensor& q, std::int64_t row, std::int64_t row_size) {
  return bytes_of(q.as<std::byte>() + row * row_size, static_cast<std::size_t>(row_size));
}

// gate 0 gives silu 0; large gates are unchanged by silu, so y is exactly up * gate.
TEST(SiluMulQuantizeTest, FusedRuleHasTheKnownAnswers) {
  std::vector<float> x(256, 0.0f);
  x[0] = 100.0f;
  x[1] = -100.0f;
  x[2] = 100.0f;
  x[128] = 0.03f;  // 100 * 0.03 is 3: scale 3BDB6DB8, where division gives 3BDB6DB7
  x[129] = 1.0f;
  x[130] = -0.015f;
  const Tensor q(DType::kE4M3, {1, 128});
  const Tensor scale(DType::kF32, {1, 1});
  silu_mul_quantize(TensorView::of(x.data(), {1, 256}), schemes::kFp8Block, q, scale,
                    Stream::host(), ActivationScale::kFused);
  EXPECT_EQ(bits_from_f32(*scale.as<float>()), 0x3BDB6DB8u);
  EXPECT_EQ(q.as<std::uint8_t>()[0], 0x7E);
  EXPECT_EQ(q.as<std::uint8_t>()[2], 0xF6);  // -1.5 / 3 * 448 = -224
  EXPECT_EQ(q.as<std::uint8_t>()[3], 0x00);
  silu_mul_quantize(TensorView::of(x.data(), {1, 256}), schemes::kFp8Block, q, scale);
  EXPECT_EQ(bits_from_f32(*scale.as<float>()), 0x3BDB6DB7u);

  // amax 3 gives byte 120; a block of zeros gives the ceiling of 1e-10 / 448, 2^-42.
  const Tensor word(DType::kI32, {1, 1});
  silu_mul_quantize(TensorView::of(x.data(), {1, 256}), schemes::kFp8Ue8m0, q, word, Stream::host(),
                    ActivationScale::kFused);
  EXPECT_EQ(*word.as<std::int32_t>(), 120);
  const Tensor zeros(DType::kF32, {1, 256});
  silu_mul_quantize(zeros, schemes::kFp8Ue8m0, q, word, Stream::host(), ActivationScale::kFused);
  EXPECT_EQ(*word.as<std::int32_t>(), 127 - 42);
}

TEST(SiluMulQuantizeTest, FusedRuleEqualsTheFormulaForOddSizes) {
  QuantScheme powers = schemes::kFp8Block;
  powers.scale_format = ScaleFormat::kF32PowerOfTwo;
  QuantScheme small = schemes::kFp8Block;
  small.block = 48;
  for (const QuantScheme& scheme : {schemes::kFp8Block, powers, small}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const std::int64_t size : {1, 127, 128, 300, 1153, 2048}) {
        const Tensor x = normal_tensor(dtype, {3, 2 * size});
        const Tensor q(DType::kE4M3, {3, size});
        const Tensor scales(DType::kF32, {3, num_scales(scheme, size)});
        silu_mul_quantize(x, scheme, q, scales, Stream::host(), ActivationScale::kFused);
        const Table<float> y = activated(x, 3, size);
        for (std::int64_t t = 0; t < 3; ++t) {
          const bool is_power = scheme.scale_format != ScaleFormat::kF32;
          const FusedRow want = fused_row(y.row(t), scheme.block, is_power);
          ASSERT_EQ(q_row_of(q, t, size), want.q) << name_of(scheme) << " " << size;
          const float* row = scales.as<float>() + t * scales.shape(1);
          ASSERT_EQ(std::vector<float>(row, row + scales.shape(1)), want.scales);
        }
      }
    }
  }
}

TEST(SiluMulQuantizeTest, FusedRuleTurnsNaNAndInfinityIntoTheLeastCode) {
  constexpr std::int64_t kI = 256;
  Tensor x(DType::kF32, {1, 2 * kI});
  for (std::int64_t i = 0; i < 2 * kI; ++i) x.as<float>()[i] = 10.0f;  // y is near 100 everywhere
  for (const std::int64_t at : {0, 5, 127}) x.as<float>()[kI + at] = kNaN;
  x.as<float>()[kI + 130] = std::numeric_limits<float>::infinity();
  const Tensor q(DType::kE4M3, {1, kI});
  const Tensor scales(DType::kF32, {1, 2});
  silu_mul_quantize(x, schemes::kFp8Block, q, scales, Stream::host(), ActivationScale::kFused);
  for (std::int64_t i = 0; i < 128; ++i) {
    const bool is_nan = i == 0 || i == 5 || i == 127;
    ASSERT_EQ(q.as<std::uint8_t>()[i], is_nan ? 0xFE : 0x7E) << i;
  }
  for (std::int64_t i = 128; i < kI; ++i) {
    ASSERT_EQ(q.as<std::uint8_t>()[i], i == 130 ? 0xFE : 0x00) << i;
  }
  EXPECT_TRUE(std::isinf(scales.as<float>()[1]));
}

// instruments/conformance tries every scheme but this one.
TEST(SiluMulQuantizeTest, WithoutASchemeItIsRoundedOnce) {
  for (const std::int64_t size : {2, 130, 1154}) {
    const Tensor x = normal_tensor(DType::kBF16, {5, 2 * size});
    const Table<float> y = activated(x, 5, size);
    const Tensor q(DType::kBF16, {5, size});
    silu_mul_quantize(x, schemes::kNone, q, {});
    for (std::size_t i = 0; i < y.data.size(); ++i) {
      ASSERT_EQ(q.as<std::uint16_t>()[i], bf16_from_f32(y.data[i])) << i;
    }
  }
}

TEST(SiluMulQuantizeTest, BatchesStopAtTheCount) {
  constexpr std::int64_t kL = 3;
  constexpr std::int64_t kT = 6;
  constexpr std::int64_t kI = 640;  // five groups: the second word is partly empty
  const std::vector<std::int32_t> counts{2, 0, 6};
  Tensor x = normal_tensor(DType::kBF16, {kL, kT, 2 * kI});
  const Table<float> y = activated(x, kL * kT, kI);
  for (std::int64_t i = 2 * 2 * kI; i < 2 * kT * 2 * kI; ++i) x.as<std::uint16_t>()[i] = 0x7FC0;
  for (const ScaleLayout layout :
       {ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor, ScaleLayout::kColumnMajorAligned}) {
    const Tensor q(DType::kE4M3, {kL, kT, kI});
    std::memset(q.data(), 0xAB, q.view().num_bytes());
    const OwnedScales words = make_batched_scales(DType::kI32, layout, kL, kT, 2);
    std::memset(words.memory.data(), 0xAB, words.memory.view().num_bytes());
    silu_mul_quantize_batched(x, TensorView::of(counts.data(), {kL}), schemes::kFp8Ue8m0, q,
                              words.view, Stream::host(), ActivationScale::kFused);
    const Tensor scales(DType::kF32, {kL, kT, 5});
    unpack_ue8m0(words.view, scales);
    for (std::int64_t row = 0; row < kL * kT; ++row) {
      const bool counts_here = row % kT < counts[static_cast<std::size_t>(row / kT)];
      const FusedRow want = fused_row(y.row(row), 128, true);
      const std::vector<std::uint8_t> untouched(kI, 0xAB);
      ASSERT_EQ(q_row_of(q, row, kI), counts_here ? want.q : untouched) << row;
      const float* got = scales.as<float>() + row * 5;
      const std::vector<float> nothing(5, 0x1p-127f);  // byte 0
      ASSERT_EQ(std::vector<float>(got, got + 5), counts_here ? want.scales : nothing) << row;
    }
  }
}

TEST(SiluMulQuantizeTest, RefusesWhatItCannotServe) {
  const Tensor x = normal_tensor(DType::kBF16, {2, 256});
  const Tensor q(DType::kE4M3, {2, 128});
  const Tensor scales(DType::kF32, {2, 1});
  expect_invalid("x has rows of 255 elements, must have an even number", [&] {
    silu_mul_quantize(TensorView(x.data(), DType::kBF16, {2, 255}), schemes::kFp8Block, q, scales);
  });
  expect_invalid("kFused with scheme fp8_token, must be e4m3 blocks of rule kDivide", [&] {
    silu_mul_quantize(x, schemes::kFp8Token, q, scales, Stream::host(), ActivationScale::kFused);
  });
  expect_invalid("kFused with scheme fp8_block_deepep", [&] {
    silu_mul_quantize(x, schemes::kFp8BlockDeepEp, q, scales, Stream::host(),
                      ActivationScale::kFused);
  });
  expect_invalid("tensor_scale is absent, must be f32 [1] for fp8_tensor",
                 [&] { silu_mul_quantize(x, schemes::kFp8Tensor, q, {}); });
  expect_invalid("tensor_scale is f32 [2, 1], must be none for fp8_block", [&] {
    silu_mul_quantize(x, schemes::kFp8Block, q, scales, Stream::host(), ActivationScale::kScheme,
                      scales);
  });
  expect_invalid("must be one-byte scales in tiles", [&] {
    silu_mul_quantize(x, schemes::kFp8Block, q,
                      make_scales(DType::kF32, ScaleLayout::kSwizzled, 2, 1).view);
  });
  expect_invalid("counts is absent", [&] {
    silu_mul_quantize_batched(Tensor(DType::kBF16, {1, 2, 256}), {}, schemes::kFp8Block, q, scales);
  });
  for (const std::uint8_t byte : bytes_of(q)) ASSERT_EQ(byte, 0);
}

}  // namespace
}  // namespace switchyard
