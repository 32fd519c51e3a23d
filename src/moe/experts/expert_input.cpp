// SPDX-License-Identifier: Apache-2.0

#include "moe/experts/expert_input.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/fail.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

void check_rows(std::int64_t hidden, const ExpertRows& input) {
  check_scheme("apply", input.scheme);
  const DType dtype = stored_dtype(input.scheme);
  const TensorView& rows = input.rows;
  require(rows.has_value() && rows.num_dims() == 2 && rows.shape(1) == hidden &&
              rows.dtype() == dtype && has_contiguous_rows(rows),
          Errc::kInvalidArgument, "apply: rows is {}, must be {} [N, {}] with contiguous rows",
          rows.describe(), name_of(dtype), hidden);
  require(
      dtype != DType::kE2M1 || (hidden % 2 == 0 && rows.stride(0) % 2 == 0), Errc::kInvalidArgument,
      "apply: rows of {} e2m1 elements are {} apart, must be even numbers: a row begins at a byte",
      hidden, rows.stride(0));
}

std::vector<std::int64_t> shape_of(const TensorView& tensor) {
  std::vector<std::int64_t> shape;
  for (int dim = 0; dim < tensor.num_dims(); ++dim) shape.push_back(tensor.shape(dim));
  return shape;
}

// The shape that scales of this layout must have. The number of blocks is that of the given scales.
std::vector<std::int64_t> wanted_shape(const ExpertRows& input, std::int64_t num_scales) {
  const bool is_swizzled = input.scale_layout == ScaleLayout::kSwizzled;
  const int whole_dims = is_swizzled ? 5 : 2;
  const TensorView& scales = input.scales;
  std::int64_t rows = input.rows.shape(0);
  std::vector<std::int64_t> shape;
  if (scales.has_value() && scales.num_dims() == whole_dims + 1 && scales.shape(0) > 0) {
    shape.push_back(scales.shape(0));
    if (rows % scales.shape(0) == 0) rows /= scales.shape(0);
  }
  if (!is_swizzled) {
    shape.insert(shape.end(), {rows, num_scales});
    return shape;
  }
  const ScaleGeometry tiles{ScaleLayout::kSwizzled, rows, num_scales, 1};
  shape.insert(shape.end(), {cdiv(rows, ScaleGeometry::kTileRows), tiles.tiles_in_row(), 32, 4, 4});
  return shape;
}

void check_scales(std::int64_t hidden, const ExpertRows& input) {
  const TensorView& scales = input.scales;
  const DType dtype = scale_dtype(input.scheme);
  const bool is_swizzled = input.scale_layout == ScaleLayout::kSwizzled;
  require(!is_swizzled || bits_of(dtype) == 8, Errc::kInvalidArgument,
          "apply: scales are {} and swizzled, must be scales of one byte", name_of(dtype));
  // Without rows the number of blocks does not matter.
  if (input.rows.shape(0) == 0 && scales.has_value() && scales.dtype() == dtype) return;
  const std::vector<std::int64_t> shape = wanted_shape(input, num_scales(input.scheme, hidden));
  const TensorView want(nullptr, dtype, shape);
  require(
      scales.has_value() && scales.dtype() == dtype && shape_of(scales) == shape &&
          (shape.size() == (is_swizzled ? 5 : 2) || input.rows.shape(0) % scales.shape(0) == 0) &&
          (!is_swizzled || scales.is_contiguous()),
      Errc::kInvalidArgument, "apply: scales is {}, must be {}{} for {} rows", scales.describe(),
      is_swizzled ? "contiguous " : "", want.describe(), input.rows.shape(0));
}

void check_scalars(std::int64_t num_experts, const ExpertRows& input) {
  const bool is_tensor = input.scheme.group == ScaleGroup::kTensor;
  require(!is_tensor ||
              (input.scales.has_value() && is_optional_expert_scalar(input.scales, num_experts)),
          Errc::kInvalidArgument, "apply: scales is {}, must be f32 [1] or [{}]",
          input.scales.describe(), num_experts);
  require(is_tensor || has_scale_a_row(input.scheme) || !input.scales.has_value(),
          Errc::kInvalidArgument, "apply: scales is {}, but rows have no scales; must be absent",
          input.scales.describe());
  const bool is_wanted = input.scheme.needs_tensor_scale();
  require(input.tensor_scale.has_value() == is_wanted &&
              is_optional_expert_scalar(input.tensor_scale, num_experts),
          Errc::kInvalidArgument, "apply: tensor_scale is {}, must be {} for {}",
          input.tensor_scale.describe(), is_wanted ? "f32 [1] or [L]" : "absent",
          name_of(input.scheme));
}

}  // namespace

void check_input(std::int64_t num_experts, std::int64_t hidden, const ExpertRows& input) {
  check_rows(hidden, input);
  check_scalars(num_experts, input);
  if (has_scale_a_row(input.scheme)) check_scales(hidden, input);
}

void check_ranges(std::int64_t num_experts, const ExpertRows& input) {
  const auto is_table = [&](const TensorView& table, DType dtype) {
    return table.has_value() && table.dtype() == dtype && table.is_contiguous() &&
           table.num_elements() == num_experts;
  };
  require(
      is_table(input.first_row, DType::kI64) && is_table(input.num_rows, DType::kI32),
      Errc::kInvalidArgument,
      "apply: first_row is {} and num_rows {}, must be contiguous i64 and i32 [{}], an entry for "
      "each expert",
      input.first_row.describe(), input.num_rows.describe(), num_experts);
  const std::int64_t total = input.rows.shape(0);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const std::int64_t first = input.first_row.as<std::int64_t>()[e];
    const std::int64_t count = input.num_rows.as<std::int32_t>()[e];
    if (count == 0) continue;  // without rows first_row does not matter
    require(count > 0 && first >= 0 && first <= total && count <= total - first,
            Errc::kInvalidArgument,
            "apply: expert {} has {} rows from row {}, but the buffer has {} rows", e, count, first,
            total);
  }
}

bool has_scale_a_row(const QuantScheme& scheme) {
  return scheme.is_quantized() && !scheme.is_simulated() && scheme.group != ScaleGroup::kTensor;
}

bool is_optional_expert_scalar(const TensorView& tensor, std::int64_t num_experts) {
  if (!tensor.has_value()) return true;
  return tensor.dtype() == DType::kF32 && tensor.num_dims() == 1 &&
         (tensor.shape(0) == 1 || tensor.shape(0) == num_experts);
}

float expert_scalar(const TensorView& tensor, std::int64_t expert) {
  return tensor.as<const float>()[tensor.shape(0) == 1 ? 0 : expert * tensor.stride(0)];
}

std::vector<float> expert_scalars(const TensorView& tensor, std::int64_t num_experts) {
  std::vector<float> scalars;
  if (!tensor.has_value()) return scalars;
  for (std::int64_t e = 0; e < num_experts; ++e) scalars.push_back(expert_scalar(tensor, e));
  return scalars;
}

std::vector<float> widen_bias(const TensorView& bias) {
  std::vector<float> wide;
  if (!bias.has_value()) return wide;
  for (std::int64_t e = 0; e < bias.shape(0); ++e) {
    for (std::int64_t i = 0; i < bias.shape(1); ++i) {
      const std::int64_t at = e * bias.stride(0) + i * bias.stride(1);
      wide.push_back(scalar::load(bias.data(), bias.dtype(), at));
    }
  }
  return wide;
}

InputReader::InputReader(const ExpertRows& input)
    : input_(input),
      row_bytes_(input.rows.stride(0) * bits_of(input.rows.dtype()) / 8),
      has_row_scales_(has_scale_a_row(input.scheme)) {
  if (!has_row_scales_) return;
  const TensorView& scales = input.scales;
  const bool is_swizzled = input.scale_layout == ScaleLayout::kSwizzled;
  const bool has_blocks = scales.num_dims() == (is_swizzled ? 6 : 3);
  block_rows_ = std::max<std::int64_t>(input.rows.shape(0), 1);
  if (has_blocks) block_rows_ = std::max<std::int64_t>(block_rows_ / scales.shape(0), 1);
  const std::int64_t per_row = num_scales(input.scheme, input.rows.shape(1));
  geometry_ = {input.scale_layout, block_rows_, per_row, bits_of(scales.dtype()) / 8};
}

void InputReader::read(std::int64_t expert, std::int64_t first_row, std::int64_t num_rows, float* x,
                       std::byte* scale_copy) const {
  const QuantScheme& scheme = input_.scheme;
  const std::int64_t hidden = input_.rows.shape(1);
  float tensor_scale = 1.0f;
  if (scheme.group == ScaleGroup::kTensor) tensor_scale = expert_scalar(input_.scales, expert);
  if (scheme.needs_tensor_scale()) tensor_scale = expert_scalar(input_.tensor_scale, expert);
  for (std::int64_t row = first_row; row < first_row + num_rows; ++row, x += hidden) {
    const std::byte* scales = has_row_scales_ ? scales_of(row, scale_copy) : nullptr;
    dequantize_row(scheme, input_.rows.as<const std::byte>() + row * row_bytes_, scales,
                   input_.rows.dtype(), hidden, x, tensor_scale);
  }
}

// The scales of one row, contiguous: in place if they already are, else in `copy`.
const std::byte* InputReader::scales_of(std::int64_t row, std::byte* copy) const {
  const TensorView& scales = input_.scales;
  const auto bytes = static_cast<std::size_t>(geometry_.element_bytes);
  const auto* base = scales.as<const std::byte>();
  const auto at = [&](std::int64_t s) {
    return base + scale_index(row, s) * geometry_.element_bytes;
  };
  const bool is_swizzled = geometry_.layout == ScaleLayout::kSwizzled;
  if (geometry_.num_scales == 1) return at(0);
  if (!is_swizzled && scales.stride(scales.num_dims() - 1) == 1) return at(0);
  for (std::int64_t s = 0; s < geometry_.num_scales; ++s) {
    std::memcpy(copy + static_cast<std::size_t>(s) * bytes, at(s), bytes);
  }
  return copy;
}

std::int64_t InputReader::scale_index(std::int64_t row, std::int64_t s) const {
  const TensorView& scales = input_.scales;
  const std::int64_t block = row / block_rows_;
  const std::int64_t inside = row % block_rows_;
  if (geometry_.layout == ScaleLayout::kSwizzled) {
    return block * geometry_.num_elements() + geometry_.index(inside, s);
  }
  if (scales.num_dims() == 2) return inside * scales.stride(0) + s * scales.stride(1);
  return block * scales.stride(0) + inside * scales.stride(1) + s * scales.stride(2);
}

}  // namespace switchyard
