// SPDX-License-Identifier: Apache-2.0
//
// wire_form.h: how much of a row is elements and how much scales, for both processors.
#pragma once

#include "switchyard/quant.h"

#include "core/host_device.h"
#include "plan/push_layout.h"

namespace switchyard::cuda {

/// Bits of a dtype that rows travel in.
SWITCHYARD_HOST_DEVICE constexpr int wire_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 32;
    case DType::kF16:
    case DType::kBF16: return 16;
    case DType::kE2M1: return 4;
    default: return 8;
  }
}

/// Bytes of the scales of 512 elements, in whole units; one scale a token takes a unit too.
SWITCHYARD_HOST_DEVICE constexpr int chunk_scale_bytes(const QuantScheme& scheme) {
  const bool is_simulated = scheme.dtype == DType::kE2M3 || scheme.dtype == DType::kE3M2;
  if (scheme.group == ScaleGroup::kToken) return static_cast<int>(kUnitBytes);
  if (scheme.group != ScaleGroup::kBlock || is_simulated) return 0;
  const bool is_f32 = scheme.scale_format == ScaleFormat::kF32 ||
                      scheme.scale_format == ScaleFormat::kF32PowerOfTwo;
  const int bytes = kChunkElements / scheme.block * (is_f32 ? 4 : 1);
  return (bytes + 15) / 16 * 16;
}

/// Returned rows travel as they are, or as codes of 8 bits with a scale for each block.
inline bool is_return_scheme(const QuantScheme& scheme) {
  const bool is_code = scheme.dtype == DType::kE4M3 || scheme.dtype == DType::kI8;
  return !scheme.is_quantized() || (is_code && scheme.group == ScaleGroup::kBlock);
}

/// Bytes of the scales of a chunk of a returned row, an f32 for each block, in whole units.
inline int return_scale_bytes(const QuantScheme& scheme) {
  if (!scheme.is_quantized()) return 0;
  return (kReturnChunkElements / scheme.block * 4 + 15) / 16 * 16;
}

/// Stored scales of 512 elements: words where they are packed.
SWITCHYARD_HOST_DEVICE constexpr int scales_per_chunk(const QuantScheme& scheme) {
  if (scheme.group != ScaleGroup::kBlock) return 1;
  const int scales = kChunkElements / scheme.block;
  return scheme.scale_format == ScaleFormat::kE8M0Packed ? scales / 4 : scales;
}

}  // namespace switchyard::cuda
