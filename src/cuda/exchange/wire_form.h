// SPDX-License-Identifier: Apache-2.0
//
// wire_form.h: how many bits of a row in flight are elements and how many are scales, for host and
// device code.
#pragma once

#include "switchyard/quant.h"

#include "core/host_device.h"
#include "plan/push_layout.h"

namespace switchyard::cuda {

/// Bits per element of a dtype in which rows travel.
SWITCHYARD_HOST_DEVICE constexpr int wire_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 32;
    case DType::kF16:
    case DType::kBF16: return 16;
    case DType::kE2M1: return 4;
    default: return 8;
  }
}

SWITCHYARD_HOST_DEVICE constexpr bool is_f32_scale(ScaleFormat format) {
  return format == ScaleFormat::kF32 || format == ScaleFormat::kF32PowerOfTwo;
}

/// e4m3 with one scale per 128 elements: every rule except that of MX, every format.
SWITCHYARD_HOST_DEVICE constexpr bool is_fp8_block(const QuantScheme& scheme) {
  return scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kBlock &&
         scheme.rule != ScaleRule::kMx;
}

/// Bytes of scales per 512 elements, rounded up to whole 16-byte units. A scale per token takes one
/// unit, too.
SWITCHYARD_HOST_DEVICE constexpr int chunk_scale_bytes(const QuantScheme& scheme) {
  const bool is_simulated = scheme.dtype == DType::kE2M3 || scheme.dtype == DType::kE3M2;
  if (scheme.group == ScaleGroup::kToken) return static_cast<int>(kUnitBytes);
  if (scheme.group != ScaleGroup::kBlock || is_simulated) return 0;
  const int bytes = kChunkElements / scheme.block * (is_f32_scale(scheme.scale_format) ? 4 : 1);
  return (bytes + 15) / 16 * 16;
}

/// Returned rows travel unquantized, or as 8-bit codes with one scale per block.
inline bool is_return_scheme(const QuantScheme& scheme) {
  const bool is_code = scheme.dtype == DType::kE4M3 || scheme.dtype == DType::kI8;
  return !scheme.is_quantized() || (is_code && scheme.group == ScaleGroup::kBlock);
}

/// Bytes of scales per return chunk: one f32 per block, rounded up to whole 16-byte units.
inline int return_scale_bytes(const QuantScheme& scheme) {
  if (!scheme.is_quantized()) return 0;
  return (kReturnChunkElements / scheme.block * 4 + 15) / 16 * 16;
}

/// Scales stored per 512 elements; packed scales are counted in words.
SWITCHYARD_HOST_DEVICE constexpr int scales_per_chunk(const QuantScheme& scheme) {
  if (scheme.group != ScaleGroup::kBlock) return 1;
  const int scales = kChunkElements / scheme.block;
  return scheme.scale_format == ScaleFormat::kE8M0Packed ? scales / 4 : scales;
}

}  // namespace switchyard::cuda
