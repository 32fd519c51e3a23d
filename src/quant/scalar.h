// SPDX-License-Identifier: Apache-2.0
//
// scalar.h: the definition of each row format, element by element. rows.h vectorizes the same work
// and must produce the same bits; tests compare the two.
//
// A scheme is two decisions: the scale, which follows from the largest magnitude of the elements
// that share it (scale_rules.h), and the element format under that scale (codec.h). This header
// adds the memory layout: how elements, codes and scales are stored in a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/scale_rules.h"

namespace switchyard::scalar {

/// Element i of bf16, f16 or f32 memory.
SWITCHYARD_HOST_DEVICE inline float load(const void* x, DType dtype, std::int64_t i) {
  if (dtype == DType::kBF16) return f32_from_bf16(static_cast<const std::uint16_t*>(x)[i]);
  if (dtype == DType::kF16) return f32_from_f16(static_cast<const std::uint16_t*>(x)[i]);
  return static_cast<const float*>(x)[i];
}

SWITCHYARD_HOST_DEVICE inline void store(void* y, DType dtype, std::int64_t i, float value) {
  if (dtype == DType::kBF16) {
    static_cast<std::uint16_t*>(y)[i] = bf16_from_f32(value);
  } else if (dtype == DType::kF16) {
    static_cast<std::uint16_t*>(y)[i] = f16_from_f32(value);
  } else {
    static_cast<float*>(y)[i] = canonical_f32(value);
  }
}

/// The largest magnitude in [begin, end); NaN never compares greater.
SWITCHYARD_HOST_DEVICE inline float max_magnitude(const void* x, DType dtype, std::int64_t begin,
                                                  std::int64_t end) {
  float amax = 0.0f;
  for (std::int64_t i = begin; i < end; ++i) {
    const float magnitude = f32_from_bits(bits_from_f32(load(x, dtype, i)) & ~kF32SignBit);
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

/// Stores code i of a row: a byte or, for e2m1, a nibble, the low one first. Nibbles must be stored
/// in order.
SWITCHYARD_HOST_DEVICE inline void store_code(Codec codec, std::uint8_t* q, std::int64_t i,
                                              std::uint8_t code) {
  if (codec != Codec::kE2M1) {
    q[i] = code;
  } else {
    q[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? code : q[i / 2] | code << 4);
  }
}

SWITCHYARD_HOST_DEVICE inline std::uint8_t load_code(DType dtype, const std::uint8_t* q,
                                                     std::int64_t i) {
  if (dtype != DType::kE2M1) return q[i];
  return static_cast<std::uint8_t>(q[i / 2] >> (4 * (i % 2)) & 0xF);
}

/// Encodes the elements in [begin, end).
SWITCHYARD_HOST_DEVICE inline void encode(const void* x, DType dtype, std::int64_t begin,
                                          std::int64_t end, const ElementMap& map,
                                          std::uint8_t* q) {
  for (std::int64_t i = begin; i < end; ++i) {
    store_code(map.codec, q, i, quantize_element(load(x, dtype, i), map));
  }
}

/// Rounds elements to what codes and scale can represent, in the dtype of the input.
SWITCHYARD_HOST_DEVICE inline void simulate(DType format, const void* x, DType dtype,
                                            std::int64_t begin, std::int64_t end,
                                            const ScaleAndMap& block, void* y) {
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint8_t code = quantize_element(load(x, dtype, i), block.map);
    store(y, dtype, i, decode(format, code) * block.scale);
  }
}

/// Stores scale b of a row. In packed words, blocks 0, 4, 8, ... clear the word first.
SWITCHYARD_HOST_DEVICE inline void store_scale(ScaleFormat format, void* scales, std::int64_t b,
                                               float scale) {
  const std::uint32_t exponent = bits_from_f32(scale) >> 23;
  if (format == ScaleFormat::kE8M0Packed) {
    std::uint32_t& word = static_cast<std::uint32_t*>(scales)[b / 4];
    word = (b % 4 == 0 ? 0u : word) | exponent << (8 * (b % 4));
  } else if (format == ScaleFormat::kE8M0) {
    static_cast<std::uint8_t*>(scales)[b] = static_cast<std::uint8_t>(exponent);
  } else if (format == ScaleFormat::kE4M3) {
    static_cast<std::uint8_t*>(scales)[b] = e4m3_from_f32(scale);
  } else {
    static_cast<float*>(scales)[b] = scale;
  }
}

SWITCHYARD_HOST_DEVICE inline float load_scale(ScaleFormat format, const void* scales,
                                               std::int64_t b) {
  if (format == ScaleFormat::kE8M0Packed) {
    const std::uint32_t word = static_cast<const std::uint32_t*>(scales)[b / 4];
    return f32_from_e8m0(static_cast<std::uint8_t>(word >> (8 * (b % 4))));
  }
  if (format == ScaleFormat::kE8M0)
    return f32_from_e8m0(static_cast<const std::uint8_t*>(scales)[b]);
  if (format == ScaleFormat::kE4M3)
    return f32_from_e4m3(static_cast<const std::uint8_t*>(scales)[b]);
  return static_cast<const float*>(scales)[b];
}

/// The number of elements of a row that share a scale.
SWITCHYARD_HOST_DEVICE inline std::int64_t elements_per_scale(const QuantScheme& scheme,
                                                              std::int64_t hidden) {
  return scheme.group == ScaleGroup::kBlock ? scheme.block : hidden;
}

/// The definitions of quantize_row and dequantize_row of rows.h, for quantized schemes. The `dtype`
/// of dequantize_row is that of simulated elements.
void quantize_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  std::uint8_t* q, void* scales, float tensor_scale = 1.0f);
void dequantize_row(const QuantScheme& scheme, const std::uint8_t* q, const void* scales,
                    std::int64_t hidden, float* y, float tensor_scale = 1.0f,
                    DType dtype = DType::kBF16);

}  // namespace switchyard::scalar
