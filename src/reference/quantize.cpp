// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: formats by their definitions: the nearest representable value, found in double
// precision or by trying every code, rather than by moving bits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/fail.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

constexpr float kLargest = 448.0f;

// Nearest multiple of the spacing of the format at x; both are exact in double.
float round_to_format(float x, int mantissa_bits, int min_exponent, double largest) {
  if (std::isinf(x) || x == 0.0f) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double spacing = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(static_cast<double>(x) / spacing) * spacing;
  if (std::abs(rounded) > largest) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return static_cast<float>(rounded);
}

// Smallest power of two that is not below a positive x.
float power_of_two_ceil(float x) {
  if (std::isinf(x)) return x;
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, from 1/2 to 1
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// NaN is ignored.
float max_magnitude(std::span<const float> values) {
  float amax = 0.0f;
  for (const float x : values) amax = std::abs(x) > amax ? std::abs(x) : amax;
  return amax;
}

void quantize_block_divide(std::span<const float> x, bool is_power_of_two,
                           std::span<std::uint8_t> q, float& scale) {
  scale = std::max(max_magnitude(x), 1e-10f) / kLargest;
  if (is_power_of_two) scale = power_of_two_ceil(std::max(scale, 1e-10f));
  for (std::size_t i = 0; i < x.size(); ++i) q[i] = e4m3_from_f32(x[i] / scale, 0xFE);
}

void quantize_block_multiply(std::span<const float> x, bool is_power_of_two,
                             std::span<std::uint8_t> q, float& scale) {
  const float amax = std::max(max_magnitude(x), 1e-4f);
  scale = amax * (1.0f / kLargest);
  float factor = kLargest / amax;
  if (is_power_of_two) {
    scale = power_of_two_ceil(scale);
    factor = 1.0f / scale;
  }
  for (std::size_t i = 0; i < x.size(); ++i) q[i] = e4m3_from_f32(x[i] * factor, 0x7F);
}

std::uint32_t exponent_byte(float power_of_two) {
  return std::isinf(power_of_two) ? 255u
                                  : static_cast<std::uint32_t>(std::ilogb(power_of_two) + 127);
}

QuantizedRows quantize_blocks(const QuantScheme& scheme, const Table<float>& x) {
  const std::int64_t num_blocks = (x.cols + scheme.block - 1) / scheme.block;
  const bool is_packed = scheme.scale_format == ScaleFormat::kE8M0Packed;
  const bool is_power_of_two = scheme.scale_format != ScaleFormat::kF32;
  QuantizedRows out{Table<std::uint8_t>(x.rows, x.cols), Table<float>(x.rows, num_blocks),
                    Table<std::uint32_t>(x.rows, is_packed ? (num_blocks + 3) / 4 : 0)};
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      const auto begin = static_cast<std::size_t>(b * scheme.block);
      const auto count =
          static_cast<std::size_t>(std::min<std::int64_t>(scheme.block, x.cols - b * scheme.block));
      const auto quantize_block =
          scheme.rule == ScaleRule::kDivide ? quantize_block_divide : quantize_block_multiply;
      float& scale = out.scales(t, b);
      quantize_block(x.row(t).subspan(begin, count), is_power_of_two,
                     out.elements.row(t).subspan(begin, count), scale);
      if (!is_packed) continue;
      out.packed_scales(t, b / 4) |= exponent_byte(scale) << (8 * (b % 4));
      if (std::isinf(scale)) scale = std::numeric_limits<float>::quiet_NaN();  // byte 255
    }
  }
  return out;
}

QuantizedRows quantize_tokens(const Table<float>& x) {
  QuantizedRows out{Table<std::uint8_t>(x.rows, x.cols), Table<float>(x.rows, 1), {}};
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const float scale = std::max(max_magnitude(x.row(t)) / kLargest, 1.0f / (kLargest * 512.0f));
    out.scales(t, 0) = scale;
    for (std::int64_t h = 0; h < x.cols; ++h) {
      out.elements(t, h) = e4m3_from_f32(x(t, h) / scale, 0x7E);
    }
  }
  return out;
}

QuantizedRows quantize_tensor(const Table<float>& x, std::optional<float> static_scale) {
  const float scale = static_scale ? *static_scale : max_magnitude(x.data) / kLargest;
  const float inverse = 1.0f / scale;
  QuantizedRows out{Table<std::uint8_t>(x.rows, x.cols), Table<float>(1, 1, scale), {}};
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    out.elements.data[i] = e4m3_from_f32(x.data[i] * inverse, 0x7E);
  }
  return out;
}

}  // namespace

float round_to(DType dtype, float x) {
  if (std::isnan(x)) return std::bit_cast<float>(0x7FC00000u);
  switch (dtype) {
    case DType::kF32: return x;
    case DType::kBF16: return round_to_format(x, 7, -126, std::ldexp(2.0 - 0x1p-7, 127));
    case DType::kF16: return round_to_format(x, 10, -14, 65504.0);
    default:
      fail(Errc::kNotSupported, "reference: output is {}, want bf16, f16 or f32", name_of(dtype));
  }
}

float f32_from_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::bit_cast<float>(0x7FC00000u);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

std::uint8_t e4m3_from_f32(float x, std::uint8_t nan_code) {
  if (std::isnan(x)) return nan_code;
  const double magnitude = std::min(std::abs(static_cast<double>(x)), 448.0);
  std::uint8_t best = 0;
  double best_distance = magnitude;
  for (std::uint8_t code = 1; code <= 0x7E; ++code) {
    const double distance = std::abs(magnitude - static_cast<double>(f32_from_e4m3(code)));
    const bool wins_tie = distance == best_distance && code % 2 == 0;
    if (distance < best_distance || wins_tie) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

QuantizedRows quantize(const QuantScheme& scheme, const Table<float>& x,
                       std::optional<float> static_scale) {
  require(scheme.dtype == DType::kE4M3, Errc::kNotSupported, "reference: scheme of {}, want e4m3",
          name_of(scheme.dtype));
  require(scheme.group == ScaleGroup::kBlock || scheme.scale_format == ScaleFormat::kF32,
          Errc::kNotSupported, "reference: power-of-two scales want blocks");
  switch (scheme.group) {
    case ScaleGroup::kBlock: return quantize_blocks(scheme, x);
    case ScaleGroup::kToken: return quantize_tokens(x);
    case ScaleGroup::kTensor: return quantize_tensor(x, static_scale);
    case ScaleGroup::kNone: break;
  }
  fail(Errc::kNotSupported, "reference: scheme without scales, want block, token or tensor");
}

Table<float> dequantize(const QuantScheme& scheme, const QuantizedRows& rows) {
  const Table<std::uint8_t>& q = rows.elements;
  const std::int64_t block = scheme.group == ScaleGroup::kBlock ? scheme.block : q.cols;
  Table<float> x(q.rows, q.cols);
  for (std::int64_t t = 0; t < q.rows; ++t) {
    for (std::int64_t h = 0; h < q.cols; ++h) {
      const float scale = rows.scales(rows.scales.rows == 1 ? 0 : t, h / block);
      x(t, h) = round_to(DType::kF32, f32_from_e4m3(q(t, h)) * scale);
    }
  }
  return x;
}

Table<float> dequantize_weight(const Table<std::uint8_t>& codes, const Table<float>& block_scales) {
  Table<float> weight(codes.rows, codes.cols);
  for (std::int64_t row = 0; row < codes.rows; ++row) {
    for (std::int64_t col = 0; col < codes.cols; ++col) {
      weight(row, col) = f32_from_e4m3(codes(row, col)) * block_scales(row / 128, col / 128);
    }
  }
  return weight;
}

}  // namespace switchyard::reference
