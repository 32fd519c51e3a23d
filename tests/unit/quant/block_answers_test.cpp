// SPDX-License-Identifier: Apache-2.0
//
// int8, nvfp4 and OCP MX rows with values computed by hand from the formulas of vLLM's kernels and
// of Quark's even_round, for the library and for the oracle.

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "reference/reference.h"

namespace switchyard {
namespace {

using Bytes = std::vector<std::uint8_t>;

const float kNan = f32_from_bits(0xFFC00000u);
const float kInf = f32_from_bits(kF32Infinity);

struct Row {
  Bytes q;
  std::vector<std::uint32_t> words;  // scales

  std::uint8_t scale_byte(std::size_t i) const {
    return static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
};

reference::QuantizedRows oracle(const QuantScheme& scheme, const std::vector<float>& x,
                                float tensor_scale = 1.0f) {
  const bool is_given = scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
  return reference::quantize(scheme,
                             reference::Table<float>(1, static_cast<std::int64_t>(x.size()), x),
                             is_given ? std::optional<float>(tensor_scale) : std::nullopt);
}

// What the library writes; the oracle must agree.
Row quantized(const QuantScheme& scheme, const std::vector<float>& x, float tensor_scale = 1.0f) {
  const auto hidden = static_cast<std::int64_t>(x.size());
  Row row{Bytes(row_bytes(scheme, hidden, DType::kF32)),
          std::vector<std::uint32_t>(scale_row_bytes(scheme, hidden) / 4 + 1)};
  quantize_row(scheme, x.data(), DType::kF32, hidden, reinterpret_cast<std::byte*>(row.q.data()),
               row.words.data(), tensor_scale);
  const reference::QuantizedRows want = oracle(scheme, x, tensor_scale);
  EXPECT_EQ(reference::stored_elements(scheme, want).data, row.q);
  if (scheme.group == ScaleGroup::kTensor) return row;
  const Bytes scales = reference::stored_scales(scheme, want).data;
  EXPECT_EQ(std::memcmp(scales.data(), row.words.data(), scales.size()), 0);
  return row;
}

std::vector<float> dequantized(const QuantScheme& scheme, const Row& row, std::int64_t hidden,
                               float tensor_scale = 1.0f) {
  std::vector<float> y(static_cast<std::size_t>(hidden));
  dequantize_row(scheme, reinterpret_cast<const std::byte*>(row.q.data()), row.words.data(),
                 DType::kF32, hidden, y.data(), tensor_scale);
  return y;
}

TEST(BlockAnswersTest, Int8TokenRoundsHalfAwayFromZero) {
  // 127 / amax is 2.
  const Row row = quantized(schemes::kInt8Token, {63.5f, -1.25f, 1.25f, 0.2f, kNan, -63.5f});
  EXPECT_EQ(row.q, (Bytes{127, 0xFD, 3, 0, 0, 0x81}));
  EXPECT_EQ(row.words[0], bits_from_f32(0.5f));
}

TEST(BlockAnswersTest, Int8BlockTruncates) {
  // The scale is 1 in the first block and 2 in the second.
  QuantScheme scheme = schemes::kInt8Block;
  scheme.block = 4;
  const Row row = quantized(scheme, {127.0f, 2.9f, -2.9f, kNan, -254.0f, 3.9f, 0.0f});
  EXPECT_EQ(row.q, (Bytes{127, 2, 0xFE, 0, 0x81, 1, 0}));
  EXPECT_EQ(row.words[0], bits_from_f32(1.0f));
  EXPECT_EQ(row.words[1], bits_from_f32(2.0f));
}

TEST(BlockAnswersTest, Int8TensorDividesAndRoundsToEven) {
  const std::vector<float> x{1.25f, 1.75f, -1.25f, 1000.0f, -1000.0f, kNan, kInf};
  const Row row = quantized(schemes::kInt8Tensor, x, 0.5f);
  EXPECT_EQ(row.q, (Bytes{2, 4, 0xFE, 127, 0x80, 0, 127}));
  EXPECT_EQ(dequantized(schemes::kInt8Tensor, row, 7, 0.5f),
            (std::vector<float>{1.0f, 2.0f, -1.0f, 63.5f, -64.0f, 0.0f, 63.5f}));
  EXPECT_EQ(tensor_scale(254.0f, DType::kI8), 2.0f);
  EXPECT_EQ(tensor_scale(0.0f, DType::kI8), 1e-10f);
}

TEST(BlockAnswersTest, Int8ScalesHaveALowerBound) {
  EXPECT_EQ(quantized(schemes::kInt8Token, {0.0f}).words[0], bits_from_f32(1e-10f / 127.0f));
  EXPECT_EQ(quantized(schemes::kInt8Block, {0.0f}).words[0], bits_from_f32(1e-10f / 127.0f));
}

TEST(BlockAnswersTest, Nvfp4) {
  std::vector<float> x{-192, -166, -141, -115, -90, -64, -38, -13,
                       13,   38,   64,   90,   115, 141, 166, 192};
  for (float& value : x) value /= 256;
  const Row row = quantized(schemes::kNvfp4, x, 896.0f);
  EXPECT_EQ(row.q, (Bytes{0xFF, 0xEE, 0xCD, 0x9A, 0x21, 0x54, 0x66, 0x77}));
  EXPECT_EQ(row.scale_byte(0), 0x6E);  // 112
  EXPECT_EQ(two_level_rule(0.75f, 896.0f).map.factor, 8.0f);
  // 6 * 112 / 896, computed with the reciprocal.
  EXPECT_EQ(dequantized(schemes::kNvfp4, row, 16, 896.0f)[15], 6.0f * (112.0f * (1.0f / 896.0f)));
}

TEST(BlockAnswersTest, Nvfp4OfZerosAndOfTooMuch) {
  const Row zeros = quantized(schemes::kNvfp4, {0.0f, -0.0f, kNan, 0.0f}, 896.0f);
  EXPECT_EQ(zeros.q, (Bytes{0x80, 0x07}));  // -0 keeps its sign; NaN becomes +6 with scale 0
  EXPECT_EQ(zeros.scale_byte(0), 0);
  // The block scale saturates at 448, then the elements at 6.
  const Row much = quantized(schemes::kNvfp4, {1e6f, -1e6f, kInf, 1.0f}, 1.0f);
  EXPECT_EQ(much.q, (Bytes{0xF7, 0x07}));
  EXPECT_EQ(much.scale_byte(0), 0x7E);
}

TEST(BlockAnswersTest, Mxfp4Exponents) {
  const std::vector<std::pair<float, int>> cases{{1.0f, 125}, {1.74f, 125}, {1.75f, 126},
                                                 {3.0f, 126}, {3.5f, 127},  {6.0f, 127},
                                                 {7.0f, 128}, {0.0f, 0},    {kInf, 253}};
  for (const auto& [amax, byte] : cases) {
    EXPECT_EQ(mx_exponent(Codec::kE2M1, amax), static_cast<std::uint32_t>(byte)) << amax;
    EXPECT_EQ(quantized(schemes::kMxfp4, {0.0f, -amax}).scale_byte(0), byte) << amax;
  }
}

TEST(BlockAnswersTest, Mxfp4Elements) {
  const std::vector<float> x{6.0f, -3.4f, 0.3f, 0.25f, kNan, -0.0f};  // scale 1
  const Row row = quantized(schemes::kMxfp4, x);
  EXPECT_EQ(row.scale_byte(0), 127);
  EXPECT_EQ(row.q, (Bytes{0xD7, 0x01, 0x87}));
  const std::vector<float> y = dequantized(schemes::kMxfp4, row, 6);
  EXPECT_EQ(y, (std::vector<float>{6.0f, -3.0f, 0.5f, 0.0f, 6.0f, -0.0f}));
  EXPECT_TRUE(std::signbit(y[5]));
}

TEST(BlockAnswersTest, Mxfp6Exponents) {
  const std::vector<std::pair<float, int>> e3m2{
      {1.0f, -4}, {1.8f, -4}, {1.875f, -3}, {7.5f, -1}, {28.0f, 0}};
  const std::vector<std::pair<float, int>> e2m3{
      {1.0f, -2}, {1.875f, -2}, {1.9375f, -1}, {7.5f, 0}, {28.0f, 2}};
  const auto oracle_exponent = [](const QuantScheme& scheme, float amax) {
    return reference::stored_scales(scheme, oracle(scheme, {-amax, 0.0f})).data.front();
  };
  for (const auto& [amax, exponent] : e3m2) {
    EXPECT_EQ(mx_exponent(Codec::kE3M2, amax), static_cast<std::uint32_t>(exponent + 127)) << amax;
    EXPECT_EQ(oracle_exponent(schemes::kMxfp6E3M2, amax), exponent + 127) << amax;
  }
  for (const auto& [amax, exponent] : e2m3) {
    EXPECT_EQ(mx_exponent(Codec::kE2M3, amax), static_cast<std::uint32_t>(exponent + 127)) << amax;
    EXPECT_EQ(oracle_exponent(schemes::kMxfp6E2M3, amax), exponent + 127) << amax;
  }
}

// The values that a row keeps, in its own dtype.
std::vector<float> simulated(const QuantScheme& scheme, std::vector<float> x) {
  std::vector<float> y(x.size());
  quantize_row(scheme, x.data(), DType::kF32, static_cast<std::int64_t>(x.size()),
               reinterpret_cast<std::byte*>(y.data()), nullptr);
  return y;
}

TEST(BlockAnswersTest, Mxfp6KeepsRoundedElements) {
  // Scale 1: e2m3 has steps of 1/8 below 2, 1/4 below 4, 1/2 below 7.5.
  EXPECT_EQ(simulated(schemes::kMxfp6E2M3, {7.5f, 7.3f, -3.1f, 0.3f, 0.0625f, kNan}),
            (std::vector<float>{7.5f, 7.5f, -3.0f, 0.25f, 0.0f, 7.5f}));
  // Scale 1: e3m2 has steps of 4 from 16, of 1/16 below 1/2.
  EXPECT_EQ(simulated(schemes::kMxfp6E3M2, {28.0f, 17.9f, -18.1f, 0.1f, kNan}),
            (std::vector<float>{28.0f, 16.0f, -20.0f, 0.125f, 28.0f}));
  const std::vector<float> zeros = simulated(schemes::kMxfp6E3M2, {28.0f, -0.0f, -0.01f, kInf});
  EXPECT_EQ(zeros[3], kInf);
  EXPECT_FALSE(std::signbit(zeros[1]) || std::signbit(zeros[2]));
}

TEST(BlockAnswersTest, Mxfp8Exponents) {
  const std::vector<std::pair<float, int>> cases{{1.0f, 119},   {3.0f, 120}, {448.0f, 127},
                                                 {449.0f, 128}, {0.0f, 0},   {kInf, 254}};
  for (const auto& [amax, byte] : cases) {
    EXPECT_EQ(mxfp8_exponent(amax), static_cast<std::uint32_t>(byte)) << amax;
    EXPECT_EQ(quantized(schemes::kMxfp8, {-amax}).scale_byte(0), byte) << amax;
  }
}

TEST(BlockAnswersTest, Mxfp8Elements) {
  const Row row = quantized(schemes::kMxfp8, {3.0f, -1.0f, 0.0f, -0.0f, kNan});  // scale 2^-7
  EXPECT_EQ(row.q, (Bytes{0x7C, 0xF0, 0x00, 0x80, 0x7F}));
}

TEST(BlockAnswersTest, EachBlockHasItsOwnScaleAndTheLastMayBePartial) {
  std::vector<float> x(34, 1.0f);
  x[32] = 448.0f;
  const Row row = quantized(schemes::kMxfp8, x);
  EXPECT_EQ(row.scale_byte(0), 119);
  EXPECT_EQ(row.scale_byte(1), 127);
  EXPECT_EQ(row.q[33], 0x38);
  EXPECT_EQ(scale_row_bytes(schemes::kMxfp8, 34), 2u);
}

}  // namespace
}  // namespace switchyard
