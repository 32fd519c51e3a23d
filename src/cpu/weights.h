// SPDX-License-Identifier: Apache-2.0
//
// weights.h: weight tensors as models store them, read row by row, and packed for gemm.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/experts.h"
#include "switchyard/tensor.h"

#include "core/aligned_buffer.h"
#include "cpu/gemm.h"

namespace switchyard {

/// Whether weights have scales: e4m3, i8 and e2m1 do; bf16, f16 and f32 do not.
bool is_quantized_weight(DType dtype);

/// A weight tensor [experts, outputs, depth], quantized or not, as described in ExpertWeights.
struct WeightTensor {
  TensorView values;
  TensorView scales;
  WeightBlock block{};
  TensorView alpha{};

  /// The number of outputs and inputs that share a scale: `block`, with -1 resolved.
  std::int64_t block_outputs() const;
  std::int64_t block_inputs() const;
  /// The tensor of one expert: [1, outputs, depth].
  WeightTensor of_expert(std::int64_t expert) const;
};

/// Reads rows of a WeightTensor as f32; quantized elements are multiplied by their scale in f32.
class WeightReader {
 public:
  explicit WeightReader(const WeightTensor& tensor);

  /// Writes the `depth` weights of one output to y.
  void read(std::int64_t expert, std::int64_t output, float* y);

 private:
  void decode(const std::byte* row, float* y) const;

  WeightTensor tensor_;
  std::vector<std::byte> row_;      // contiguous copy of a strided row
  std::array<float, 256> value_{};  // of each code, unscaled
};

/// The weights of all experts in the order in which gemm reads them. bf16 stays bf16; every other
/// dtype becomes f32.
class PackedWeights {
 public:
  /// Concatenates the outputs of the tensors, which must agree in experts and depth; each tensor
  /// starts at a new panel.
  explicit PackedWeights(std::span<const WeightTensor> tensors);

  PackedMatrix expert(std::int64_t index) const;

  /// Outputs per expert, with panel padding: the number of floats that gemm writes per row.
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
