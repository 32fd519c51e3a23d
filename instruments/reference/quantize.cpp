// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: scales by the formula of each scheme, in f32 where the originals use it, and powers
// of two by their exponents; elements by formats.cpp.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/fail.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

constexpr float kLargest = 448.0f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The smallest power of two not below a positive x.
float power_of_two_ceil(float x) {
  if (std::isinf(x)) return x;
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, in [1/2, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// NaN is ignored.
float max_magnitude(std::span<const float> values) {
  float amax = 0.0f;
  for (const float x : values) amax = std::abs(x) > amax ? std::abs(x) : amax;
  return amax;
}

// The elements that share a scale, the destination of their codes, and their largest magnitude.
struct Group {
  std::span<const float> x;
  std::span<std::uint8_t> codes;
  float amax = 0.0f;
};

template <typename Code>
void for_each_code(const Group& group, Code code) {
  for (std::size_t i = 0; i < group.x.size(); ++i) group.codes[i] = code(group.x[i]);
}

// Each of the following functions writes the codes and returns the scale.

float fp8_divide(const Group& group, bool is_power_of_two) {
  float scale = std::max(group.amax, 1e-10f) / kLargest;
  if (is_power_of_two) scale = power_of_two_ceil(std::max(scale, 1e-10f));
  for_each_code(group, [&](float x) { return e4m3_from_f32(x / scale, 0xFE); });
  return scale;
}

float fp8_multiply(const Group& group, bool is_power_of_two) {
  const float amax = std::max(group.amax, 1e-4f);
  float scale = amax * (1.0f / kLargest);
  float factor = kLargest / amax;
  if (is_power_of_two) {
    scale = power_of_two_ceil(scale);
    factor = 1.0f / scale;
  }
  for_each_code(group, [&](float x) { return e4m3_from_f32(x * factor, 0x7F); });
  return scale;
}

float fp8_token(const Group& group) {
  const float scale = std::max(group.amax / kLargest, 1.0f / (kLargest * 512.0f));
  for_each_code(group, [&](float x) { return e4m3_from_f32(x / scale, 0x7E); });
  return scale;
}

float fp8_tensor(const Group& group, float scale) {
  const float inverse = 1.0f / scale;
  for_each_code(group, [&](float x) { return e4m3_from_f32(x * inverse, 0x7E); });
  return scale;
}

float int8_token(const Group& group) {
  const float amax = std::max(group.amax, 1e-10f);
  const float factor = 127.0f / amax;
  for_each_code(group, [&](float x) { return int8_code(std::round(x * factor)); });
  return amax / 127.0f;
}

float int8_tensor(const Group& group, float scale) {
  for_each_code(group, [&](float x) { return int8_code(std::nearbyint(x / scale)); });
  return scale;
}

float int8_block(const Group& group) {
  const float scale = std::max(group.amax, 1e-10f) / 127.0f;
  for_each_code(group, [&](float x) { return int8_code(std::trunc(x / scale)); });
  return scale;
}

// The exponent of the largest magnitude, rounded to the element's mantissa, minus the exponent of
// the element's largest value.
int mx_exponent(DType dtype, float amax) {
  const int mantissa_bits = dtype == DType::kE2M1 ? 1 : dtype == DType::kE3M2 ? 2 : 3;
  const int max_exponent = dtype == DType::kE3M2 ? 4 : 2;
  if (amax == 0.0f) return -127;
  if (std::isinf(amax)) return 128 - max_exponent;
  const int exponent = std::ilogb(amax);
  const double significand = std::ldexp(static_cast<double>(amax), -exponent);
  const bool rounds_to_two = significand >= 2.0 - std::ldexp(1.0, -mantissa_bits - 1);
  return std::clamp(exponent + (rounds_to_two ? 1 : 0) - max_exponent, -127, 127);
}

int mxfp8_exponent(float amax) {
  const float quotient = amax / kLargest;
  if (quotient == 0.0f) return -127;
  if (std::isinf(quotient)) return 127;
  return std::clamp(std::ilogb(power_of_two_ceil(quotient)), -126, 127);
}

float mx(const Group& group, DType dtype) {
  const bool is_fp8 = dtype == DType::kE4M3;
  const int exponent = is_fp8 ? mxfp8_exponent(group.amax) : mx_exponent(dtype, group.amax);
  const std::uint8_t nan_code = is_fp8 ? 0x7F : dtype == DType::kE2M1 ? 0x07 : 0x1F;
  for_each_code(group, [&](float x) {
    // Uses double, so that no quotient overflows or underflows.
    const double y = std::ldexp(static_cast<double>(x), -exponent);
    return nearest_code(dtype, static_cast<float>(std::clamp(y, -1e9, 1e9)), nan_code);
  });
  return std::ldexp(1.0f, exponent);
}

float nvfp4(const Group& group, float global_scale) {
  const float wanted = global_scale * (group.amax * (1.0f / 6.0f));
  const float scale = f32_from_e4m3(e4m3_from_f32(wanted, 0x7F));
  const float factor = scale == 0.0f ? 0.0f : 1.0f / (scale * (1.0f / global_scale));
  for_each_code(group, [&](float x) { return nearest_code(DType::kE2M1, x * factor, 0x07); });
  return scale;
}

float quantize_block(const QuantScheme& scheme, const Group& group, float tensor_scale) {
  const bool is_power_of_two = scheme.scale_format != ScaleFormat::kF32;
  switch (scheme.rule) {
    case ScaleRule::kMx: return mx(group, scheme.dtype);
    case ScaleRule::kTwoLevel: return nvfp4(group, tensor_scale);
    case ScaleRule::kMultiply: return fp8_multiply(group, is_power_of_two);
    case ScaleRule::kDivide: break;
  }
  return scheme.dtype == DType::kI8 ? int8_block(group) : fp8_divide(group, is_power_of_two);
}

float quantize_group(const QuantScheme& scheme, const Group& group, float tensor_scale) {
  const bool is_i8 = scheme.dtype == DType::kI8;
  switch (scheme.group) {
    case ScaleGroup::kBlock: return quantize_block(scheme, group, tensor_scale);
    case ScaleGroup::kToken: return is_i8 ? int8_token(group) : fp8_token(group);
    case ScaleGroup::kTensor:
      return is_i8 ? int8_tensor(group, tensor_scale) : fp8_tensor(group, tensor_scale);
    case ScaleGroup::kNone: break;
  }
  fail(Errc::kNotSupported, "reference: scheme without scales, must be block, token or tensor");
}

std::uint32_t exponent_byte(float power_of_two) {
  return std::isinf(power_of_two) ? 255u
                                  : static_cast<std::uint32_t>(std::ilogb(power_of_two) + 127);
}

// Packs the scales of each row, four per word. Byte 255 means NaN.
void pack_scales(QuantizedRows& rows) {
  rows.packed_scales = Table<std::uint32_t>(rows.scales.rows, (rows.scales.cols + 3) / 4);
  for (std::int64_t t = 0; t < rows.scales.rows; ++t) {
    for (std::int64_t b = 0; b < rows.scales.cols; ++b) {
      float& scale = rows.scales(t, b);
      rows.packed_scales(t, b / 4) |= exponent_byte(scale) << (8 * (b % 4));
      if (std::isinf(scale)) scale = kNan;
    }
  }
}

float dynamic_tensor_scale(const QuantScheme& scheme, const Table<float>& x) {
  const float amax = max_magnitude(x.data);
  return scheme.dtype == DType::kI8 ? std::max(amax / 127.0f, 1e-10f) : amax / kLargest;
}

}  // namespace

QuantizedRows quantize(const QuantScheme& scheme, const Table<float>& x,
                       std::optional<float> static_scale) {
  require(scheme.dtype == DType::kE4M3 || scheme.dtype == DType::kI8 ||
              scheme.rule == ScaleRule::kMx || scheme.rule == ScaleRule::kTwoLevel,
          Errc::kNotSupported, "reference: scheme of {}, must be e4m3, i8 or a block format",
          name_of(scheme.dtype));
  require(scheme.group == ScaleGroup::kBlock || scheme.scale_format == ScaleFormat::kF32,
          Errc::kNotSupported, "reference: power-of-two scales require blocks");
  require(static_scale.has_value() || !scheme.needs_tensor_scale(), Errc::kInvalidArgument,
          "reference: {} without a global scale", name_of(scheme));
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const std::int64_t block = scheme.group == ScaleGroup::kBlock ? scheme.block : x.cols;
  const std::int64_t num_groups =
      scheme.group == ScaleGroup::kBlock ? (x.cols + block - 1) / block : 1;
  QuantizedRows out{Table<std::uint8_t>(x.rows, x.cols),
                    Table<float>(is_tensor ? 1 : x.rows, num_groups),
                    {},
                    static_scale.value_or(1.0f)};
  if (is_tensor) out.scales(0, 0) = static_scale.value_or(dynamic_tensor_scale(scheme, x));
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t b = 0; b < num_groups; ++b) {
      const auto begin = static_cast<std::size_t>(b * block);
      const auto count = static_cast<std::size_t>(std::min(block, x.cols - b * block));
      Group group{x.row(t).subspan(begin, count), out.elements.row(t).subspan(begin, count)};
      group.amax = max_magnitude(group.x);
      const float whole = is_tensor ? out.scales(0, 0) : out.tensor_scale;
      const float scale = quantize_group(scheme, group, whole);
      if (!is_tensor) out.scales(t, b) = scale;
    }
  }
  if (scheme.scale_format == ScaleFormat::kE8M0Packed) pack_scales(out);
  return out;
}

Table<float> dequantize(const QuantScheme& scheme, const QuantizedRows& rows) {
  const Table<std::uint8_t>& q = rows.elements;
  const std::int64_t block = scheme.group == ScaleGroup::kBlock ? scheme.block : q.cols;
  Table<float> x(q.rows, q.cols);
  for (std::int64_t t = 0; t < q.rows; ++t) {
    for (std::int64_t h = 0; h < q.cols; ++h) {
      float scale = rows.scales(rows.scales.rows == 1 ? 0 : t, h / block);
      if (scheme.needs_tensor_scale()) scale *= 1.0f / rows.tensor_scale;
      x(t, h) = round_to(DType::kF32, value_of_code(scheme.dtype, q(t, h)) * scale);
    }
  }
  return x;
}

Table<std::uint8_t> stored_elements(const QuantScheme& scheme, const QuantizedRows& rows) {
  if (scheme.dtype != DType::kE2M1) return rows.elements;
  Table<std::uint8_t> bytes(rows.elements.rows, rows.elements.cols / 2);
  for (std::size_t i = 0; i < bytes.data.size(); ++i) {
    bytes.data[i] =
        static_cast<std::uint8_t>(rows.elements.data[2 * i] + 16 * rows.elements.data[2 * i + 1]);
  }
  return bytes;
}

Table<std::uint8_t> stored_scales(const QuantScheme& scheme, const QuantizedRows& rows) {
  const bool is_packed = scheme.scale_format == ScaleFormat::kE8M0Packed;
  const bool is_byte =
      scheme.scale_format == ScaleFormat::kE8M0 || scheme.scale_format == ScaleFormat::kE4M3;
  const std::int64_t size = is_byte ? 1 : 4;
  const std::int64_t cols = is_packed ? rows.packed_scales.cols : rows.scales.cols;
  Table<std::uint8_t> bytes(rows.scales.rows, cols * size);
  for (std::int64_t t = 0; t < rows.scales.rows; ++t) {
    for (std::int64_t b = 0; b < cols; ++b) {
      std::uint32_t word = 0;
      if (is_packed) {
        word = rows.packed_scales(t, b);
      } else if (scheme.scale_format == ScaleFormat::kE8M0) {
        word = exponent_byte(rows.scales(t, b));
      } else if (scheme.scale_format == ScaleFormat::kE4M3) {
        word = e4m3_from_f32(rows.scales(t, b), 0x7F);
      } else {
        word = std::bit_cast<std::uint32_t>(rows.scales(t, b));
      }
      for (std::int64_t i = 0; i < size; ++i) {
        bytes(t, b * size + i) = static_cast<std::uint8_t>(word >> (8 * i));
      }
    }
  }
  return bytes;
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
