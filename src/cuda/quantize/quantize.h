// SPDX-License-Identifier: Apache-2.0
//
// quantize.h: parameters of the quantization kernels, as plain values, and their launchers. The
// callers (device/quantize.cpp) have checked everything that can be checked without the GPU.
//
// Rows belong to a batch [L, C, H] with one count per expert; a matrix is a single expert whose
// rows all count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "switchyard/quant.h"
#include "switchyard/stream.h"

#include "cuda/quantize/row_ranges.h"
#include "quant/scale_layout.h"

namespace switchyard::cuda {

/// Scales of a batch with any strides (in elements) or in swizzled tiles; `data` is null if there
/// are no scales.
struct ScaleMemory {
  std::byte* data = nullptr;
  std::int64_t expert_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t step = 0;
  std::int64_t padded_scales = 0;  ///< tiles: scales per row, padding included; 0: no tiles

  SWITCHYARD_HOST_DEVICE constexpr std::int64_t index(std::int64_t e, std::int64_t n,
                                                      std::int64_t s) const {
    if (padded_scales == 0) return e * expert_stride + n * row_stride + s * step;
    return e * expert_stride +
           ScaleGeometry{ScaleLayout::kSwizzled, 0, padded_scales, 1}.index(n, s);
  }
};

/// bf16, f16 or f32 elements with contiguous rows; strides are in elements.
struct RowMemory {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t expert_stride = 0;
  std::int64_t row_stride = 0;
};

struct QuantizeJob {
  QuantScheme scheme;
  RowMemory x;
  std::byte* q = nullptr;
  std::int64_t q_row_bytes = 0;  ///< from one row to the next
  ScaleMemory scales;
  std::int64_t num_scales = 0;  ///< per row, as stored
  std::int64_t num_experts = 1;
  std::int64_t capacity = 0;  ///< rows per expert
  std::int64_t hidden = 0;    ///< elements per row of q; x has twice as many if is_activated
  const std::int32_t* counts = nullptr;  ///< null: all rows; read clamped to [0, capacity]
  /// For launch_tensor_scale: where each expert's rows begin in x [N, H]; null: in its block.
  const std::int64_t* first_row = nullptr;
  const float* given = nullptr;  ///< scales given by the caller, or null
  std::int64_t given_expert_stride = 0;
  std::int64_t given_row_stride = 0;
  float scale_ub = std::numeric_limits<float>::infinity();
  bool is_activated = false;  ///< x is gate and up: silu(gate) * up is quantized
  bool is_fused = false;      ///< ActivationScale::kFused

  SWITCHYARD_HOST_DEVICE constexpr std::int64_t num_rows(std::int64_t e) const {
    if (counts == nullptr) return capacity;
    const std::int64_t count = counts[e];
    return count < 0 ? 0 : (count < capacity ? count : capacity);
  }
};

struct DequantizeJob {
  QuantScheme scheme;
  DType stored = DType::kBF16;  ///< dtype of simulated or unquantized elements
  const std::byte* q = nullptr;
  std::int64_t q_row_bytes = 0;
  ScaleMemory scales;                 ///< with one scale per tensor: per expert
  std::int64_t scale_block_rows = 0;  ///< rows whose scales are stored together; 0: all rows
  const float* tensor_scale = nullptr;
  std::int64_t tensor_scale_stride = 0;  ///< from one expert to the next
  RowMemory y;
  RowRanges ranges;  ///< of q and y
  std::int64_t hidden = 0;

  /// Location of the scales of row n of expert e: the `e` and `n` to pass to ScaleMemory::index.
  struct ScaleRow {
    std::int64_t block = 0;
    std::int64_t row = 0;
  };
  SWITCHYARD_HOST_DEVICE constexpr ScaleRow scale_row(std::int64_t e, std::int64_t n) const {
    if (scheme.group == ScaleGroup::kTensor) return {e, 0};
    if (scale_block_rows == 0) return {0, n};
    return {n / scale_block_rows, n % scale_block_rows};
  }
};

/// Asynchronous; at most four launches each. Errors: kSystem.
void launch_quantize(const QuantizeJob& job, Stream stream);
/// Writes one dynamic scale, that of the valid rows of all experts together, to scales.data.
void launch_tensor_scale(const QuantizeJob& job, Stream stream);
void launch_dequantize(const DequantizeJob& job, Stream stream);

}  // namespace switchyard::cuda
