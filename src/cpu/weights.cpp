// SPDX-License-Identifier: Apache-2.0

#include "cpu/weights.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "quant/bf16.h"
#include "quant/rows.h"
#include "quant/scalar.h"

namespace switchyard {
namespace {

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(bits_of(dtype)) / 8; }

// Row `row` of matrix `matrix` of a 3-dimensional tensor, contiguous: in place or, if it is
// strided, copied to `copy`. e2m1 is always contiguous, and its rows begin at whole bytes.
const std::byte* contiguous_row(const TensorView& tensor, std::int64_t matrix, std::int64_t row,
                                std::byte* copy) {
  const std::int64_t bits = bits_of(tensor.dtype());
  const std::byte* from = tensor.as<const std::byte>() +
                          (matrix * tensor.stride(0) + row * tensor.stride(1)) * bits / 8;
  if (tensor.stride(2) == 1 || tensor.shape(2) == 1) return from;
  const std::int64_t bytes = bits / 8;
  for (std::int64_t i = 0; i < tensor.shape(2); ++i) {
    std::memcpy(copy + i * bytes, from + i * tensor.stride(2) * bytes,
                static_cast<std::size_t>(bytes));
  }
  return copy;
}

float load_scale(const TensorView& scales, std::int64_t element) {
  switch (scales.dtype()) {
    case DType::kE8M0: return f32_from_e8m0(scales.as<const std::uint8_t>()[element]);
    case DType::kE4M3: return f32_from_e4m3(scales.as<const std::uint8_t>()[element]);
    default: return scalar::load(scales.data(), scales.dtype(), element);
  }
}

// Interleaves kPanel rows of `depth` floats into [depth][kPanel], a few columns of all rows at a
// time: rows often begin in the same cache sets, which hold no more lines than that.
template <typename Element, typename Convert>
void interleave_as(const std::vector<float>& rows, std::int64_t depth, Element* panel,
                   const Convert& convert) {
  constexpr std::int64_t kColumns = 16;
  for (std::int64_t begin = 0; begin < depth; begin += kColumns) {
    const std::int64_t end = std::min(begin + kColumns, depth);
    for (std::int64_t n = 0; n < kPanel; ++n) {
      const float* row = rows.data() + n * depth;
      for (std::int64_t k = begin; k < end; ++k) panel[k * kPanel + n] = convert(row[k]);
    }
  }
}

void interleave(const std::vector<float>& rows, std::int64_t depth, DType dtype, std::byte* panel) {
  if (dtype == DType::kF32) {
    interleave_as(rows, depth, reinterpret_cast<float*>(panel), [](float w) { return w; });
  } else {
    interleave_as(rows, depth, reinterpret_cast<std::uint16_t*>(panel), bf16_from_f32);
  }
}

// Packs all panels of one expert's matrix.
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

bool is_quantized_weight(DType dtype) {
  return dtype == DType::kE4M3 || dtype == DType::kI8 || dtype == DType::kE2M1;
}

std::int64_t WeightTensor::block_outputs() const {
  return block.outputs == -1 ? values.shape(1) : block.outputs;
}

std::int64_t WeightTensor::block_inputs() const {
  return block.inputs == -1 ? values.shape(2) : block.inputs;
}

WeightTensor WeightTensor::of_expert(std::int64_t expert) const {
  const auto part = [&](const TensorView& t) {
    if (!t.has_value()) return t;
    const auto* at = t.as<const std::byte>() + expert * t.stride(0) * bits_of(t.dtype()) / 8;
    if (t.num_dims() == 1) return TensorView(at, t.dtype(), {1}, {t.stride(0)});
    return TensorView(at, t.dtype(), {1, t.shape(1), t.shape(2)},
                      {t.stride(0), t.stride(1), t.stride(2)});
  };
  return {part(values), part(scales), block, part(alpha)};
}

WeightReader::WeightReader(const WeightTensor& tensor) : tensor_(tensor) {
  const DType dtype = tensor.values.dtype();
  row_.resize(static_cast<std::size_t>(tensor.values.shape(2)) * bytes_of(dtype));
  if (!is_quantized_weight(dtype)) return;
  const std::size_t num_codes = std::size_t{1} << bits_of(dtype);
  for (std::size_t code = 0; code < num_codes; ++code) {
    value_[code] = switchyard::decode(dtype, static_cast<std::uint8_t>(code));
  }
}

// Decodes elements without applying their scale.
void WeightReader::decode(const std::byte* row, float* y) const {
  const std::int64_t depth = tensor_.values.shape(2);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  if (tensor_.values.dtype() == DType::kE2M1) {
    for (std::int64_t i = 0; i < depth; ++i) y[i] = value_[codes[i / 2] >> (4 * (i % 2)) & 15];
  } else {
    for (std::int64_t i = 0; i < depth; ++i) y[i] = value_[codes[i]];
  }
}

void WeightReader::read(std::int64_t expert, std::int64_t output, float* y) {
  const TensorView& values = tensor_.values;
  const TensorView& scales = tensor_.scales;
  const std::int64_t depth = values.shape(2);
  const std::byte* row = contiguous_row(values, expert, output, row_.data());
  if (!is_quantized_weight(values.dtype())) {
    dequantize_row(schemes::kNone, row, nullptr, values.dtype(), depth, y);
    return;
  }
  decode(row, y);
  const std::int64_t group = tensor_.block_inputs();
  std::int64_t at = expert * scales.stride(0) + output / tensor_.block_outputs() * scales.stride(1);
  for (std::int64_t begin = 0; begin < depth; begin += group, at += scales.stride(2)) {
    float scale = load_scale(scales, at);
    if (tensor_.alpha.has_value()) {
      scale *= tensor_.alpha.as<const float>()[expert * tensor_.alpha.stride(0)];
    }
    const std::int64_t end = std::min(begin + group, depth);
    for (std::int64_t i = begin; i < end; ++i) y[i] = canonical_f32(y[i] * scale);
  }
}

PackedWeights::PackedWeights(std::span<const WeightTensor> tensors) {
  for (const WeightTensor& tensor : tensors) {
    num_panels_ += cdiv(tensor.values.shape(1), kPanel);
    if (tensor.values.dtype() != DType::kBF16) dtype_ = DType::kF32;
  }
  const TensorView& first = tensors.front().values;
  const std::int64_t num_experts = first.shape(0);
  depth_ = first.shape(2);
  const auto panel_bytes =
      checked_mul(static_cast<std::size_t>(checked_mul(depth_, kPanel)), bytes_of(dtype_));
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
