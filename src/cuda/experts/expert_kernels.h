// SPDX-License-Identifier: Apache-2.0
//
// expert_kernels.h: what the kernels of experts are told, as plain values, and their launchers. All
// enqueue and read counts on the GPU. The caller has checked shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/activation.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cuda/quantize/row_ranges.h"

namespace switchyard::cuda {

/// Rows of a buffer and one matrix an expert.
struct ExpertProduct {
  RowRanges ranges;
  const void* x = nullptr;  ///< rows of `depth` elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;  ///< elements from one row to the next
  const std::byte* weights = nullptr;
  DType weight_dtype = DType::kBF16;
  std::int64_t depth = 0;
  std::int64_t num_columns = 0;  ///< outputs that the weights have, with padding
  void* y = nullptr;
  DType y_dtype = DType::kF32;
  std::int64_t y_stride = 0;
  std::int64_t num_outputs = 0;  ///< columns that are written
  const float* bias = nullptr;   ///< [experts, num_outputs], or absent
};

/// Outputs of a panel of weights.
inline constexpr std::int64_t kProductPanel = 32;

/// One f32 chain an output, k ascending, fma, from +0; then + bias.
///   x        bf16 or f32
///   weights  [experts][num_columns / kProductPanel][depth][kProductPanel] bf16 or f32, as
///            PackedWeights of cpu/weights.h has them, 16-byte aligned
///   y        f32 or bf16
/// Errors: kSystem.
void launch_exact_product(const ExpertProduct& product, Stream stream);

/// Between the two products of an expert: biases, the activation and its rounding.
struct ActivationJob {
  RowRanges ranges;
  const float* gate_up = nullptr;  ///< up begins at half a row
  std::int64_t gate_up_stride = 0;
  const float* gate_bias = nullptr;  ///< [experts, width], or absent
  const float* up_bias = nullptr;
  Activation activation;
  QuantScheme scheme;  ///< not quantized: bf16
  bool is_simulated = false;
  const float* scale = nullptr;  ///< [experts]: the given scale of a tensor, or nvfp4's global one
  float* amax = nullptr;         ///< [experts]: scratch for a scale of a tensor that is not given
  void* y = nullptr;             ///< rows of `width`, contiguous: rounded and made bf16 or f32
  DType y_dtype = DType::kBF16;
  std::int64_t width = 0;
};

void launch_activation(const ActivationJob& job, Stream stream);

/// Every row becomes the bias of its expert, in bf16.
struct BiasJob {
  RowRanges ranges;
  const float* bias = nullptr;  ///< [experts, width]
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t width = 0;
};

void launch_fill_bias(const BiasJob& job, Stream stream);

}  // namespace switchyard::cuda
