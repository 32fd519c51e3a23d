// SPDX-License-Identifier: Apache-2.0

#include "io/fused_experts.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/text.h"
#include "io/checked_tensor.h"

namespace switchyard {
namespace {

/// [E, rows, columns] of a file, or [E, columns, rows].
struct FusedTensor {
  std::string name;
  TensorView view;
  std::int64_t rows;
  std::int64_t columns;
  bool is_transposed;
};

/// Which rows of a fused tensor are one projection.
struct RowRange {
  std::int64_t first;
  std::int64_t count;
  std::int64_t step = 1;
};

/// The rows of gate, up and down.
struct ProjectionRows {
  RowRange gate, up, down;
};

ProjectionRows rows_of(const TensorNames& names, const MlpSizes& sizes) {
  const auto [hidden, intermediate] = sizes;
  if (names.is_interleaved) {
    return {{0, intermediate, 2}, {1, intermediate, 2}, {0, hidden}};
  }
  return {{0, intermediate}, {intermediate, intermediate}, {0, hidden}};
}

/// Columns of one matrix of `from` become rows; a tile keeps both sides in the cache.
template <typename Element>
void transpose(const Element* from, std::int64_t from_columns, const RowRange& rows,
               std::int64_t num_columns, Element* to) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t first = 0; first < rows.count; first += kTile) {
    const std::int64_t end = std::min(first + kTile, rows.count);
    for (std::int64_t c = 0; c < num_columns; ++c) {
      for (std::int64_t r = first; r < end; ++r) {
        to[r * num_columns + c] = from[c * from_columns + rows.first + r * rows.step];
      }
    }
  }
}

// Rows of expert `id`.
template <typename Element>
void copy_rows_of(const FusedTensor& fused, std::int64_t id, const RowRange& rows, Element* to) {
  const Element* from = fused.view.as<const Element>() + id * fused.rows * fused.columns;
  if (fused.is_transposed) return transpose(from, fused.rows, rows, fused.columns, to);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    std::copy_n(from + (rows.first + r * rows.step) * fused.columns, fused.columns,
                to + r * fused.columns);
  }
}

// As `dtype`, whose elements may be parts of those in the file.
Tensor load_rows(const FusedTensor& fused, const RowRange& rows, DType dtype,
                 std::span<const std::int32_t> expert_ids) {
  const std::int64_t parts = bits_of(fused.view.dtype()) / bits_of(dtype);
  Tensor result(dtype, {static_cast<std::int64_t>(expert_ids.size()), rows.count,
                        checked_mul(fused.columns, parts)});
  for (std::size_t i = 0; i < expert_ids.size(); ++i) {
    const std::int64_t id = expert_ids[i];
    const std::int64_t at = static_cast<std::int64_t>(i) * rows.count * fused.columns;
    switch (bits_of(fused.view.dtype())) {
      case 8: copy_rows_of(fused, id, rows, result.as<std::uint8_t>() + at); break;
      case 16: copy_rows_of(fused, id, rows, result.as<std::uint16_t>() + at); break;
      default: copy_rows_of(fused, id, rows, result.as<std::uint32_t>() + at);
    }
  }
  return result;
}

Tensor load_rows(const FusedTensor& fused, const RowRange& rows,
                 std::span<const std::int32_t> expert_ids) {
  return load_rows(fused, rows, fused.view.dtype(), expert_ids);
}

// Rows of blocks [first / 128, ...) of the requested experts' scales.
Tensor load_row_scales(const Checkpoint& checkpoint, const FusedTensor& fused,
                       const RowRange& range, std::span<const std::int32_t> expert_ids) {
  const std::string name = fused.name + kScaleSuffix;
  const std::int64_t columns = cdiv(fused.columns, kScaleBlock);
  require(!fused.is_transposed && range.step == 1, Errc::kNotSupported,
          "load_moe_layer: tensor {} of {} is {}, must be scaled weights as [experts, outputs, "
          "inputs], rows of gate before rows of up",
          quote(fused.name), checkpoint.file_of(fused.name), fused.view.describe());
  const Shape3 shape{fused.view.shape(0), cdiv(fused.rows, kScaleBlock), columns};
  const TensorView view = checked_tensor(checkpoint, name, shape);
  Tensor all(DType::kF32, shape);
  widen(checkpoint, name, view, all.as<float>());
  const std::int64_t rows = cdiv(range.count, kScaleBlock);
  Tensor result(DType::kF32, {static_cast<std::int64_t>(expert_ids.size()), rows, columns});
  for (std::size_t i = 0; i < expert_ids.size(); ++i) {
    const std::int64_t first = (expert_ids[i] * shape[1] + range.first / kScaleBlock) * columns;
    check_scales(checkpoint, name, all.as<float>(), first, first + rows * columns);
    std::copy_n(all.as<float>() + first, rows * columns,
                result.as<float>() + static_cast<std::int64_t>(i) * rows * columns);
  }
  return result;
}

void check_fused_scales(const Checkpoint& checkpoint, const FusedTensor& gate_up) {
  require(
      gate_up.rows / 2 % kScaleBlock == 0, Errc::kNotSupported,
      "load_moe_layer: tensor {} of {} is {}, must be gate and up of multiples of {} rows, which "
      "share no scale",
      quote(gate_up.name), checkpoint.file_of(gate_up.name), gate_up.view.describe(), kScaleBlock);
}

}  // namespace

void load_fused_experts(const FusedExperts& fused, ExpertTensors& out) {
  const Checkpoint& checkpoint = fused.checkpoint;
  const auto [hidden, intermediate] = fused.sizes;
  FusedTensor gate_up{fused.block + fused.names.gate, {}, 2 * intermediate, hidden, false};
  FusedTensor down{fused.block + fused.names.down, {}, hidden, intermediate, false};
  for (FusedTensor* tensor : {&gate_up, &down}) {
    tensor->view = checkpoint.tensor(tensor->name);
    check_expert_dtype(checkpoint, tensor->name, tensor->view);
  }
  const auto is_transposed = [&](const FusedTensor& tensor) {
    return has_shape(tensor.view, Shape3{fused.num_experts, tensor.columns, tensor.rows});
  };
  const auto is_plain = [&](const FusedTensor& tensor) {
    return has_shape(tensor.view, Shape3{fused.num_experts, tensor.rows, tensor.columns});
  };
  // Only one of the two can be square.
  if (is_transposed(gate_up) && is_transposed(down)) {
    gate_up.is_transposed = down.is_transposed = true;
  } else {
    for (const FusedTensor* tensor : {&gate_up, &down}) {
      if (is_plain(*tensor)) continue;
      fail_shape(checkpoint, tensor->name, tensor->view,
                 Shape3{fused.num_experts, tensor->rows, tensor->columns});
    }
  }
  const ProjectionRows rows = rows_of(fused.names, fused.sizes);
  out.gate = load_rows(gate_up, rows.gate, fused.expert_ids);
  out.up = load_rows(gate_up, rows.up, fused.expert_ids);
  out.down = load_rows(down, rows.down, fused.expert_ids);
  if (gate_up.view.dtype() == DType::kE4M3) {
    check_fused_scales(checkpoint, gate_up);
    out.gate_scale = load_row_scales(checkpoint, gate_up, rows.gate, fused.expert_ids);
    out.up_scale = load_row_scales(checkpoint, gate_up, rows.up, fused.expert_ids);
  }
  if (down.view.dtype() == DType::kE4M3) {
    out.down_scale = load_row_scales(checkpoint, down, rows.down, fused.expert_ids);
  }
}

void load_mxfp4_experts(const FusedExperts& fused, ExpertTensors& out) {
  const Checkpoint& checkpoint = fused.checkpoint;
  constexpr std::int64_t kBlock = weight_blocks::kMxfp4.inputs;
  const auto [hidden, intermediate] = fused.sizes;
  const ProjectionRows rows = rows_of(fused.names, fused.sizes);
  const auto tensor_of = [&](const std::string& name, std::int64_t num_rows, std::int64_t columns,
                             std::initializer_list<std::int64_t> shape) {
    const TensorView view =
        checked_tensor(checkpoint, name, std::span(shape.begin(), shape.size()));
    if (view.dtype() != DType::kU8) fail_dtype(checkpoint, name, view, "u8");
    return FusedTensor{name, view, num_rows, columns, false};
  };
  struct Packed {
    FusedTensor codes;
    FusedTensor scales;
  };
  const auto find = [&](const char* projection, std::int64_t num_rows, std::int64_t num_inputs) {
    const std::string name = fused.block + projection;
    require(num_inputs % kBlock == 0, Errc::kMalformedFile,
            "load_moe_layer: tensor {} of {} has blocks of {} inputs, but config.json says {}",
            quote(name + kBlocksSuffix), checkpoint.path(), kBlock, num_inputs);
    const std::int64_t blocks = num_inputs / kBlock;
    return Packed{
        tensor_of(name + kBlocksSuffix, num_rows, num_inputs / 2,
                  {fused.num_experts, num_rows, blocks, kBlock / 2}),
        tensor_of(name + "_scales", num_rows, blocks, {fused.num_experts, num_rows, blocks})};
  };
  const Packed gate_up = find(fused.names.gate, 2 * intermediate, hidden);
  const Packed down = find(fused.names.down, hidden, intermediate);
  const auto load = [&](const Packed& packed, const RowRange& range, Tensor& values,
                        Tensor& scales) {
    values = load_rows(packed.codes, range, DType::kE2M1, fused.expert_ids);
    scales = load_rows(packed.scales, range, DType::kE8M0, fused.expert_ids);
    const std::span<const std::uint8_t> bytes(scales.as<const std::uint8_t>(),
                                              scales.view().num_bytes());
    require(std::ranges::find(bytes, 255) == bytes.end(), Errc::kMalformedFile,
            "load_moe_layer: the weight scales {} of {} have a 255, which is NaN, must be 0 to 254",
            quote(packed.scales.name), checkpoint.file_of(packed.scales.name));
  };
  load(gate_up, rows.gate, out.gate, out.gate_scale);
  load(gate_up, rows.up, out.up, out.up_scale);
  load(down, rows.down, out.down, out.down_scale);
  out.block = weight_blocks::kMxfp4;
}

void load_fused_biases(const FusedExperts& fused, ExpertTensors& out) {
  const auto [hidden, intermediate] = fused.sizes;
  const ProjectionRows rows = rows_of(fused.names, fused.sizes);
  const auto load = [&](const char* projection, std::int64_t width) {
    const std::string name = fmt::format("{}{}_bias", fused.block, projection);
    return load_widened(fused.checkpoint, name, {fused.num_experts, width});
  };
  const auto select = [&](const Tensor& all, const RowRange& range) {
    Tensor bias(DType::kF32, {static_cast<std::int64_t>(fused.expert_ids.size()), range.count});
    float* to = bias.as<float>();
    for (const std::int32_t id : fused.expert_ids) {
      const float* from = all.as<float>() + id * all.shape(1) + range.first;
      for (std::int64_t r = 0; r < range.count; ++r) *to++ = from[r * range.step];
    }
    return bias;
  };
  const Tensor gate_up = load(fused.names.gate, 2 * intermediate);
  const Tensor down = load(fused.names.down, hidden);
  out.gate_bias = select(gate_up, rows.gate);
  out.up_bias = select(gate_up, rows.up);
  out.down_bias = select(down, rows.down);
}

}  // namespace switchyard
