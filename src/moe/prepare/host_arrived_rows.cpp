// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/bytes.h"
#include "exchange/scale_blocks.h"
#include "moe/experts/expert_checks.h"
#include "moe/experts/expert_input.h"
#include "moe/prepare/arrived_rows.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

std::vector<std::int64_t> valid_rows(Layout layout, const Prepared& prepared) {
  std::vector<std::int64_t> rows;
  const ExpertRows& experts = prepared.experts;
  const auto add = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(first + i);
  };
  if (is_expert_major(layout)) {
    for (std::int64_t e = 0; e < experts.num_rows.num_elements(); ++e) {
      add(experts.first_row.as<std::int64_t>()[e], experts.num_rows.as<std::int32_t>()[e]);
    }
  } else if (layout == Layout::kByRank) {
    const std::span<const std::int64_t> from = prepared.host->rows_per_rank;
    const auto num_ranks = static_cast<std::int64_t>(from.size());
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      add(rank * (experts.rows.shape(0) / num_ranks), from[static_cast<std::size_t>(rank)]);
    }
  } else {
    add(0, prepared.host->num_rows);
  }
  return rows;
}

/// Reads and writes valid rows only.
class HostArrivedRows final : public ArrivedRows {
 public:
  explicit HostArrivedRows(const ArrivedRowsShape& shape);
  void quantize(const TensorView& counts, Prepared& to, Stream stream) override;

 private:
  struct Row {
    const std::byte* data;
    DType dtype;
  };

  ScaleBlocks scale_blocks(const ExpertRows& from) const;
  float largest_magnitude(const ExpertRows& from, const std::vector<std::int64_t>& rows);
  Row input_row(const ExpertRows& from, std::int64_t row);

  Layout layout_;
  QuantScheme scheme_;
  std::int64_t hidden_;
  ScaleLayout scale_layout_;
  TensorView static_scale_;
  float tensor_scale_ = 1.0f;
  AlignedBuffer rows_;
  AlignedBuffer scales_;
  AlignedBuffer row_scales_;   ///< of one row, side by side
  AlignedBuffer wire_scales_;  ///< of one row as it arrived
  AlignedBuffer wide_;         ///< one row in f32
  AlignedBuffer narrow_;       ///< one row in bf16
};

HostArrivedRows::HostArrivedRows(const ArrivedRowsShape& shape)
    : layout_(shape.wire.layout),
      scheme_(shape.config.scheme),
      hidden_(shape.config.hidden),
      scale_layout_(shape.config.scale_layout),
      static_scale_(shape.static_scale),
      rows_(checked_mul(static_cast<std::size_t>(shape.num_rows), row_bytes(scheme_, hidden_))),
      row_scales_(scale_row_bytes(scheme_, hidden_)),
      // Scales of the wire side by side: no format has more than f32 each.
      wire_scales_(static_cast<std::size_t>(hidden_) * sizeof(float)),
      wide_(static_cast<std::size_t>(hidden_) * sizeof(float)),
      narrow_(static_cast<std::size_t>(hidden_) * sizeof(std::uint16_t)) {
  // Every block of a batch may end in a padded tile of its own.
  const std::int64_t num_blocks = std::max<std::int64_t>(1, shape.num_blocks);
  const std::int64_t padded = checked_add(shape.num_rows, ScaleGeometry::kTileRows * num_blocks);
  const ScaleGeometry all{scale_layout_, padded, num_scales(scheme_, hidden_),
                          bits_of(scale_dtype(scheme_)) / 8};
  scales_ = AlignedBuffer(all.num_bytes());
}

ScaleBlocks HostArrivedRows::scale_blocks(const ExpertRows& from) const {
  const bool is_batched = from.rows.num_dims() == 3;
  const DType dtype = scale_dtype(scheme_);
  return {{scale_layout_, from.rows.shape(is_batched ? 1 : 0), num_scales(scheme_, hidden_),
           bits_of(dtype) / 8},
          dtype,
          is_batched ? from.rows.shape(0) : 1,
          is_batched};
}

// As it arrived, or what its quantized form stands for, rounded to bf16, in which simulated formats
// stay.
HostArrivedRows::Row HostArrivedRows::input_row(const ExpertRows& from, std::int64_t row) {
  const DType dtype = from.rows.dtype();
  if (!from.scheme.is_quantized() && (dtype == DType::kBF16 || !scheme_.is_simulated())) {
    return {from.rows.as<std::byte>() + row * hidden_ * bits_of(dtype) / 8, dtype};
  }
  InputReader(from).read(0, row, 1, wide_.as<float>(), wire_scales_.data());
  f32_to_bf16(wide_.as<float>(), hidden_, narrow_.as<std::uint16_t>());
  return {narrow_.data(), DType::kBF16};
}

float HostArrivedRows::largest_magnitude(const ExpertRows& from,
                                         const std::vector<std::int64_t>& rows) {
  float amax = 0.0f;
  for (const std::int64_t row : rows) {
    const Row input = input_row(from, row);
    amax = std::max(amax, max_magnitude(input.data, input.dtype, hidden_));
  }
  return amax;
}

void HostArrivedRows::quantize(const TensorView&, Prepared& to, Stream) {
  ExpertRows& experts = to.experts;
  const std::vector<std::int64_t> rows = valid_rows(layout_, to);
  const ScaleBlocks blocks = scale_blocks(experts);
  ExpertRows arrived = experts;
  arrived.rows = flat_rows("rows", experts.rows);
  const bool is_tensor = scheme_.group == ScaleGroup::kTensor;
  tensor_scale_ = static_scale_.has_value() ? *static_scale_.as<float>() : 1.0f;
  if (is_tensor && !static_scale_.has_value()) {
    tensor_scale_ = tensor_scale(largest_magnitude(arrived, rows), scheme_.dtype);
  }
  if (scale_layout_ == ScaleLayout::kSwizzled) {
    std::fill_n(scales_.data(), blocks.num_bytes(), std::byte{0});
  }
  const std::size_t stored_bytes = row_bytes(scheme_, hidden_);
  const bool has_scales = !is_tensor && blocks.block.num_scales > 0;
  for (const std::int64_t row : rows) {
    const Row from = input_row(arrived, row);
    quantize_row(scheme_, from.data, from.dtype, hidden_,
                 rows_.data() + static_cast<std::size_t>(row) * stored_bytes, row_scales_.data(),
                 tensor_scale_);
    if (has_scales) blocks.place(row_scales_.data(), row, scales_.data());
  }
  const DType dtype = stored_dtype(scheme_);
  experts.rows =
      experts.rows.num_dims() == 3
          ? TensorView(rows_.data(), dtype, {experts.rows.shape(0), experts.rows.shape(1), hidden_})
          : TensorView(rows_.data(), dtype, {experts.rows.shape(0), hidden_});
  experts.scheme = scheme_;
  experts.scale_layout = has_scales ? scale_layout_ : ScaleLayout::kRowMajor;
  experts.scales = TensorView();
  experts.tensor_scale = TensorView();
  if (is_tensor) experts.scales = TensorView::of(&tensor_scale_, {1});
  if (has_scales) experts.scales = blocks.view(scales_.data());
  if (scheme_.needs_tensor_scale()) experts.tensor_scale = TensorView::of(&tensor_scale_, {1});
}

}  // namespace

std::unique_ptr<ArrivedRows> make_host_arrived_rows(const ArrivedRowsShape& shape) {
  return std::make_unique<HostArrivedRows>(shape);
}

}  // namespace switchyard
