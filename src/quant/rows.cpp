// SPDX-License-Identifier: Apache-2.0
//
// rows.cpp: selects the vectorized function for a scheme and dtype.

#include "quant/rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/fail.h"
#include "quant/simd.h"

namespace switchyard {
namespace {

constexpr std::int64_t kChunk = 1024;  // f32 elements converted at a time, which stay in L1

[[noreturn]] void fail_dtype(const char* function, DType dtype) {
  fail(Errc::kInvalidArgument, "{}: elements are {}, must be bf16, f16 or f32", function,
       name_of(dtype));
}

std::size_t bytes_of(DType dtype, std::int64_t num_elements) {
  return static_cast<std::size_t>(num_elements) * static_cast<std::size_t>(bits_of(dtype) / 8);
}

void copy(const void* x, std::size_t num_bytes, void* y) {
  if (num_bytes > 0) std::memcpy(y, x, num_bytes);
}

void widen(const void* x, DType dtype, std::int64_t num_elements, float* y) {
  switch (dtype) {
    case DType::kBF16: return bf16_to_f32(static_cast<const std::uint16_t*>(x), num_elements, y);
    case DType::kF16: return f16_to_f32(static_cast<const std::uint16_t*>(x), num_elements, y);
    case DType::kF32: return copy(x, bytes_of(dtype, num_elements), y);
    default: fail_dtype("dequantize_row", dtype);
  }
}

void narrow(const float* x, std::int64_t num_elements, DType dtype, void* y) {
  switch (dtype) {
    case DType::kBF16: return f32_to_bf16(x, num_elements, static_cast<std::uint16_t*>(y));
    case DType::kF16: return f32_to_f16(x, num_elements, static_cast<std::uint16_t*>(y));
    case DType::kF32: return copy(x, bytes_of(dtype, num_elements), y);
    default: fail_dtype("quantize_row", dtype);
  }
}

// A row without scales: bytes are copied, or rounded once if the dtypes differ.
void convert_row(const void* x, DType from, std::int64_t hidden, DType to, std::byte* q) {
  if (from == to) {
    copy(x, bytes_of(from, hidden), q);
    return;
  }
  std::array<float, kChunk> wide;
  for (std::int64_t begin = 0; begin < hidden; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, hidden - begin);
    widen(static_cast<const std::byte*>(x) + bytes_of(from, begin), from, count, wide.data());
    narrow(wide.data(), count, to, q + bytes_of(to, begin));
  }
}

}  // namespace

void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::byte* q, void* scales, float tensor_scale) {
  if (!scheme.is_quantized()) {
    convert_row(x, dtype, hidden, scheme.dtype, q);
    return;
  }
  if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
    fail_dtype("quantize_row", dtype);
  }
  auto* codes = reinterpret_cast<std::uint8_t*>(q);
  if (scheme.is_simulated()) {
    simd::simulate_row(scheme, x, dtype, hidden, q);
  } else if (scheme.rule == ScaleRule::kMx || scheme.rule == ScaleRule::kTwoLevel) {
    simd::quantize_small_blocks(scheme, x, dtype, hidden, codes, scales, tensor_scale);
  } else {
    simd::quantize_row(scheme, x, dtype, hidden, codes, scales, tensor_scale);
  }
}

void dequantize_row(const QuantScheme& scheme, const std::byte* q, const void* scales, DType dtype,
                    std::int64_t hidden, float* y, float tensor_scale) {
  if (!scheme.is_quantized() || scheme.is_simulated()) {
    widen(q, dtype, hidden, y);
    return;
  }
  simd::dequantize_row(scheme, reinterpret_cast<const std::uint8_t*>(q), scales, hidden, y,
                       tensor_scale);
}

float max_magnitude(const void* x, DType dtype, std::int64_t hidden) {
  if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
    fail_dtype("max_magnitude", dtype);
  }
  return simd::max_magnitude(x, dtype, hidden);
}

}  // namespace switchyard
