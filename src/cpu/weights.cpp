// SPDX-License-Identifier: Apache-2.0

#include "cpu/weights.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "quant/bf16.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

// One scale for 128 elements of a row: what a row of a block-scaled matrix looks like.
constexpr QuantScheme kWeightRow{DType::kE4M3, ScaleGroup::kBlock,
                                 static_cast<std::int32_t>(kWeightBlock)};

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(bits_of(dtype)) / 8; }

// Row `row` of matrix `matrix` of a 3-dimensional tensor, contiguous: in place, or copied to
// `copy`.
const std::byte* contiguous_row(const TensorView& tensor, std::int64_t matrix, std::int64_t row,
                                std::byte* copy) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(tensor.dtype()));
  const std::byte* from =
      tensor.as<const std::byte>() + (matrix * tensor.stride(0) + row * tensor.stride(1)) * bytes;
  if (tensor.stride(2) == 1) return from;
  for (std::int64_t i = 0; i < tensor.shape(2); ++i) {
    std::memcpy(copy + i * bytes, from + i * tensor.stride(2) * bytes,
                static_cast<std::size_t>(bytes));
  }
  return copy;
}

// kPanel rows of `depth` floats, in order, to [depth][kPanel].
void interleave(const std::vector<float>& rows, std::int64_t depth, DType dtype, std::byte* panel) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t n = 0; n < kPanel; ++n) {
      const float w = rows[static_cast<std::size_t>(n * depth + k)];
      if (dtype == DType::kF32) {
        reinterpret_cast<float*>(panel)[k * kPanel + n] = w;
      } else {
        reinterpret_cast<std::uint16_t*>(panel)[k * kPanel + n] = bf16_from_f32(w);
      }
    }
  }
}

// All panels of one expert's matrix.
void pack_matrix(const WeightTensor& tensor, std::int64_t expert, DType dtype, std::byte* panels) {
  const std::int64_t num_outputs = tensor.values.shape(1);
  const std::int64_t depth = tensor.values.shape(2);
  const std::size_t panel_bytes = static_cast<std::size_t>(depth * kPanel) * bytes_of(dtype);
  WeightReader reader(tensor);
  std::vector<float> rows(static_cast<std::size_t>(depth * kPanel));
  for (std::int64_t first = 0; first < num_outputs; first += kPanel, panels += panel_bytes) {
    const std::int64_t count = std::min(kPanel, num_outputs - first);
    for (std::int64_t n = 0; n < count; ++n)
      reader.read(expert, first + n, rows.data() + n * depth);
    std::fill(rows.begin() + count * depth, rows.end(), 0.0f);
    interleave(rows, depth, dtype, panels);
  }
}

}  // namespace

WeightReader::WeightReader(const WeightTensor& tensor) : tensor_(tensor) {
  row_.resize(static_cast<std::size_t>(tensor.values.shape(2)) * bytes_of(tensor.values.dtype()));
  if (tensor.scales.has_value()) {
    scale_row_.resize(static_cast<std::size_t>(tensor.scales.shape(2)));
  }
}

void WeightReader::read(std::int64_t expert, std::int64_t output, float* y) {
  const TensorView& values = tensor_.values;
  const std::int64_t depth = values.shape(2);
  const std::byte* row = contiguous_row(values, expert, output, row_.data());
  if (values.dtype() != DType::kE4M3) {
    dequantize_row(schemes::kNone, row, nullptr, values.dtype(), depth, y);
    return;
  }
  const std::byte* scales = contiguous_row(tensor_.scales, expert, output / kWeightBlock,
                                           reinterpret_cast<std::byte*>(scale_row_.data()));
  dequantize_row(kWeightRow, row, scales, DType::kE4M3, depth, y);
}

PackedWeights::PackedWeights(std::span<const WeightTensor> tensors) {
  for (const WeightTensor& tensor : tensors) {
    num_panels_ += cdiv(tensor.values.shape(1), kPanel);
    if (tensor.values.dtype() != DType::kBF16) dtype_ = DType::kF32;
  }
  const TensorView& first = tensors.front().values;
  const std::int64_t num_experts = first.shape(0);
  depth_ = first.shape(2);
  const auto panel_bytes = checked_mul(static_cast<std::size_t>(depth_ * kPanel), bytes_of(dtype_));
  expert_bytes_ = checked_mul(static_cast<std::size_t>(num_panels_), panel_bytes);
  memory_ = AlignedBuffer(checked_mul(static_cast<std::size_t>(num_experts), expert_bytes_));
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    std::byte* panels = memory_.data() + static_cast<std::size_t>(expert) * expert_bytes_;
    for (const WeightTensor& tensor : tensors) {
      pack_matrix(tensor, expert, dtype_, panels);
      panels += static_cast<std::size_t>(cdiv(tensor.values.shape(1), kPanel)) * panel_bytes;
    }
  }
}

PackedMatrix PackedWeights::expert(std::int64_t index) const {
  return {memory_.data() + static_cast<std::size_t>(index) * expert_bytes_, dtype_, num_panels_,
          depth_};
}

}  // namespace switchyard
