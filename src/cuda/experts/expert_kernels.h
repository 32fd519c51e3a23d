// SPDX-License-Identifier: Apache-2.0
//
// expert_kernels.h: parameters of the expert kernels, as plain values, and their launchers. All are
// asynchronous and read counts on the GPU. The caller has checked shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/activation.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cuda/quantize/row_ranges.h"

namespace switchyard::cuda {

/// Rows of a buffer times one matrix per expert.
struct ExpertProduct {
  RowRanges ranges;
  const void* x = nullptr;  ///< rows of `depth` elements
  DType x_dtype = DType::kBF16;
  std::int64_t x_stride = 0;  ///< elements from one row to the next
  const std::byte* weights = nullptr;
  DType weight_dtype = DType::kBF16;
  std::int64_t depth = 0;
  std::int64_t num_columns = 0;  ///< outputs in the weights, padding included
  void* y = nullptr;
  DType y_dtype = DType::kF32;
  std::int64_t y_stride = 0;
  std::int64_t num_outputs = 0;  ///< columns to write
  const float* bias = nullptr;   ///< [experts, num_outputs], or null
};

/// Outputs per panel of weights.
inline constexpr std::int64_t kProductPanel = 32;

/// Computes each output as one f32 fma chain, k ascending, from +0; then adds the bias.
///   x        bf16 or f32
///   weights  [experts][num_columns / kProductPanel][depth][kProductPanel] bf16 or f32, the layout
///            of PackedWeights in cpu/weights.h, 16-byte aligned
///   y        f32 or bf16
/// Errors: kSystem.
void launch_exact_product(const ExpertProduct& product, Stream stream);

/// The step between the two products of an expert: biases, activation and rounding.
struct ActivationJob {
  RowRanges ranges;
  const float* gate_up = nullptr;  ///< rows hold gate, then up
  std::int64_t gate_up_stride = 0;
  const float* gate_bias = nullptr;  ///< [experts, width], or null
  const float* up_bias = nullptr;
  Activation activation;
  QuantScheme scheme;  ///< unquantized: bf16
  bool is_simulated = false;
  const float* scale = nullptr;  ///< [experts]: given tensor scales, or the global scale of nvfp4
  float* amax = nullptr;         ///< [experts]: scratch for tensor scales that are not given
  void* y = nullptr;             ///< contiguous rows of `width`, rounded and stored as bf16 or f32
  DType y_dtype = DType::kBF16;
  std::int64_t width = 0;
};

void launch_activation(const ActivationJob& job, Stream stream);

/// Sets every row to the bias of its expert, in bf16.
struct BiasJob {
  RowRanges ranges;
  const float* bias = nullptr;  ///< [experts, width]
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t width = 0;
};

void launch_fill_bias(const BiasJob& job, Stream stream);

}  // namespace switchyard::cuda
