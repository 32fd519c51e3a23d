// SPDX-License-Identifier: Apache-2.0
//
// formats.cpp: element formats by their definition: the nearest representable value, found in
// double precision or among all codes rather than by manipulating bits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/fail.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

// The nearest multiple of the format's spacing at x; both are exact in double.
float round_to_format(float x, int mantissa_bits, int min_exponent, double largest) {
  if (std::isinf(x) || x == 0.0f) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double spacing = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(static_cast<double>(x) / spacing) * spacing;
  if (std::abs(rounded) > largest) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return static_cast<float>(rounded);
}

// A float of few bits; codes order magnitudes upwards from zero.
struct SmallFloat {
  SmallFloat(int mantissa_bits, int bias, int largest, int sign)
      : max_code(largest), sign_bit(sign) {
    for (int code = 0; code < sign_bit; ++code) {
      const int mantissa = code % (1 << mantissa_bits);
      const int exponent = code >> mantissa_bits;
      magnitudes.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa,
                                                      exponent - bias - mantissa_bits));
    }
  }

  double magnitude(int code) const { return magnitudes[static_cast<std::size_t>(code)]; }

  // Saturates; ties go to the even code.
  int nearest(double magnitude_wanted) const {
    const double wanted = std::min(magnitude_wanted, magnitude(max_code));
    const auto first = std::lower_bound(magnitudes.begin(), magnitudes.end(), wanted);
    const auto above = static_cast<int>(first - magnitudes.begin());
    if (above == 0) return 0;
    const double up = magnitude(above) - wanted;
    const double down = wanted - magnitude(above - 1);
    return up < down || (up == down && above % 2 == 0) ? above : above - 1;
  }

  int max_code;  // code of the largest finite magnitude
  int sign_bit;
  std::vector<double> magnitudes;  // by code
};

const SmallFloat& small_float(DType dtype) {
  static const SmallFloat kE4M3{3, 7, 0x7E, 0x80};
  static const SmallFloat kE2M1{1, 1, 0x7, 0x8};
  static const SmallFloat kE2M3{3, 1, 0x1F, 0x20};
  static const SmallFloat kE3M2{2, 3, 0x1F, 0x20};
  switch (dtype) {
    case DType::kE4M3: return kE4M3;
    case DType::kE2M1: return kE2M1;
    case DType::kE2M3: return kE2M3;
    case DType::kE3M2: return kE3M2;
    default:
      fail(Errc::kNotSupported, "reference: elements of {}, must be e4m3, e2m1, e2m3 or e3m2",
           name_of(dtype));
  }
}

}  // namespace

float round_to(DType dtype, float x) {
  if (std::isnan(x)) return std::bit_cast<float>(0x7FC00000u);
  switch (dtype) {
    case DType::kF32: return x;
    case DType::kBF16: return round_to_format(x, 7, -126, std::ldexp(2.0 - 0x1p-7, 127));
    case DType::kF16: return round_to_format(x, 10, -14, 65504.0);
    default:
      fail(Errc::kNotSupported, "reference: output is {}, must be bf16, f16 or f32",
           name_of(dtype));
  }
}

float value_of_code(DType dtype, std::uint8_t code) {
  if (dtype == DType::kI8) return static_cast<float>(code < 128 ? code : code - 256);
  if (dtype == DType::kE4M3 && (code & 0x7F) == 0x7F) return std::bit_cast<float>(0x7FC00000u);
  const SmallFloat& format = small_float(dtype);
  const double magnitude = format.magnitude(code & (format.sign_bit - 1));
  return static_cast<float>((code & format.sign_bit) != 0 ? -magnitude : magnitude);
}

std::uint8_t nearest_code(DType dtype, float x, std::uint8_t nan_code) {
  if (std::isnan(x)) return nan_code;
  const SmallFloat& format = small_float(dtype);
  const int code = format.nearest(std::abs(static_cast<double>(x)));
  const bool drops_sign = code == 0 && (dtype == DType::kE2M3 || dtype == DType::kE3M2);
  return static_cast<std::uint8_t>(std::signbit(x) && !drops_sign ? code + format.sign_bit : code);
}

std::uint8_t int8_code(float rounded) {
  if (std::isnan(rounded)) return 0;
  const double saturated = std::clamp(static_cast<double>(rounded), -128.0, 127.0);
  return static_cast<std::uint8_t>(static_cast<int>(saturated) & 0xFF);
}

float f32_from_e4m3(std::uint8_t code) { return value_of_code(DType::kE4M3, code); }

std::uint8_t e4m3_from_f32(float x, std::uint8_t nan_code) {
  return nearest_code(DType::kE4M3, x, nan_code);
}

}  // namespace switchyard::reference
