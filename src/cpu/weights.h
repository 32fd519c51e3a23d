// SPDX-License-Identifier: Apache-2.0
//
// weights.h: weight tensors as models store them, read row by row, and their packed form for gemm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "core/aligned_buffer.h"
#include "cpu/gemm.h"

namespace switchyard {

/// Side of the square of e4m3 weights that share an inverse scale.
inline constexpr std::int64_t kWeightBlock = 128;

/// A weight tensor [experts, outputs, depth] of bf16, f16, f32 or e4m3, any strides, so that gate
/// and up may be halves of one tensor. e4m3 has `scales`, f32 [experts, cdiv(outputs, 128),
/// cdiv(depth, 128)]; else they are absent.
struct WeightTensor {
  TensorView values;
  TensorView scales;
};

/// Reads rows of a WeightTensor as f32, which is exact; e4m3: element * scale, one f32 multiply.
class WeightReader {
 public:
  explicit WeightReader(const WeightTensor& tensor);

  /// Writes the `depth` weights of one output to y.
  void read(std::int64_t expert, std::int64_t output, float* y);

 private:
  WeightTensor tensor_;
  std::vector<std::byte> row_;  // contiguous copies, for tensors with strides
  std::vector<float> scale_row_;
};

/// The weights of all experts in the order gemm reads them. bf16 stays bf16; all else becomes f32.
class PackedWeights {
 public:
  /// Outputs of the tensors, which agree in experts and depth, follow one another; each tensor
  /// starts at a new panel.
  explicit PackedWeights(std::span<const WeightTensor> tensors);

  PackedMatrix expert(std::int64_t index) const;

  /// Outputs of an expert with those that fill up panels: the floats that gemm writes for a row.
  std::int64_t num_columns() const noexcept { return num_panels_ * kPanel; }
  std::int64_t depth() const noexcept { return depth_; }
  std::size_t size_bytes() const noexcept { return memory_.size_bytes(); }

 private:
  DType dtype_ = DType::kBF16;
  std::int64_t num_panels_ = 0;
  std::int64_t depth_ = 0;
  std::size_t expert_bytes_ = 0;
  AlignedBuffer memory_;
};

}  // namespace switchyard
