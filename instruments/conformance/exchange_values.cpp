// SPDX-License-Identifier: Apache-2.0

#include "conformance/exchange_values.h"

#include <bit>
#include <cstring>

#include "quant/bf16.h"
#include "quant/f16.h"

namespace switchyard::conformance {
namespace {

using reference::QuantizedRows;
using reference::Table;

template <typename T>
void append(Bytes& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(T));
  std::memcpy(bytes.data() + bytes.size() - sizeof(T), &value, sizeof(T));
}

void append_float(Bytes& bytes, DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16: return append(bytes, bf16_from_f32(value));
    case DType::kF16: return append(bytes, f16_from_f32(value));
    default: return append(bytes, value);
  }
}

Bytes to_bytes(const Table<std::uint8_t>& table) {
  Bytes bytes(table.data.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), table.data.data(), bytes.size());
  return bytes;
}

}  // namespace

Bytes encode(DType dtype, const Table<float>& table, std::int64_t stride) {
  Bytes bytes;
  const auto gap =
      static_cast<std::size_t>(std::max<std::int64_t>(0, stride - table.cols) * bits_of(dtype) / 8);
  bytes.reserve(table.data.size() * static_cast<std::size_t>(bits_of(dtype) / 8) +
                static_cast<std::size_t>(table.rows) * gap);
  for (std::int64_t r = 0; r < table.rows; ++r) {
    for (const float value : table.row(r)) append_float(bytes, dtype, value);
    bytes.insert(bytes.end(), gap, std::byte{0x5A});
  }
  return bytes;
}

Table<float> rounded(DType dtype, Table<float> table) {
  for (float& value : table.data) {
    // Rounding by definition is slow, and most values are bf16 already.
    const bool is_exact = (std::bit_cast<std::uint32_t>(value) & 0xFFFF) == 0;
    if (dtype != DType::kBF16 || !is_exact) value = reference::round_to(dtype, value);
  }
  return table;
}

Table<float> through_wire(const QuantScheme& scheme, const Table<float>& table) {
  if (!scheme.is_quantized()) return rounded(scheme.dtype, table);
  return reference::dequantize(scheme, reference::quantize(scheme, table));
}

std::size_t element_row_bytes(const QuantScheme& scheme, std::int64_t hidden) {
  return static_cast<std::size_t>((hidden * bits_of(stored_dtype(scheme)) + 7) / 8);
}

Bytes stored_bytes(const QuantScheme& scheme, const QuantizedRows& rows) {
  if (scheme.is_simulated()) return encode(DType::kBF16, reference::dequantize(scheme, rows));
  return to_bytes(reference::stored_elements(scheme, rows));
}

Bytes scale_bytes(const QuantScheme& scheme, const QuantizedRows& rows) {
  if (scheme.group == ScaleGroup::kTensor || scheme.is_simulated()) return {};
  return to_bytes(reference::stored_scales(scheme, rows));
}

std::int64_t scale_index(ScaleLayout layout, std::int64_t block_rows, std::int64_t num_scales,
                         std::int64_t row, std::int64_t s) {
  if (layout == ScaleLayout::kRowMajor) return row * num_scales + s;
  const std::int64_t block = row / block_rows;
  const std::int64_t n = row % block_rows;
  if (layout == ScaleLayout::kSwizzled) {
    const std::int64_t tiles = (num_scales + 3) / 4;
    const std::int64_t bands = (block_rows + 127) / 128;
    const std::int64_t tile = (block * bands + n / 128) * tiles + s / 4;
    return tile * 512 + n % 32 * 16 + n % 128 / 32 * 4 + s % 4;
  }
  const bool is_aligned = layout == ScaleLayout::kColumnMajorAligned;
  const std::int64_t column = is_aligned ? (block_rows + 3) / 4 * 4 : block_rows;
  return block * column * num_scales + s * column + n;
}

Tensor poisoned(DType dtype, std::int64_t num_rows, std::int64_t num_columns) {
  Tensor tensor(dtype, {num_rows, num_columns});
  std::memset(tensor.data(), 0x5A, tensor.view().num_bytes());
  return tensor;
}

}  // namespace switchyard::conformance
