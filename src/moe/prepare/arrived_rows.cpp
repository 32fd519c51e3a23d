// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/arrived_rows.h"

#include <algorithm>

#include "core/bytes.h"
#include "moe/experts/expert_input.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

std::vector<std::int64_t> valid_rows(Layout layout, const Dispatched& dispatched) {
  std::vector<std::int64_t> rows;
  const ExpertRows& experts = dispatched.experts;
  const auto add = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(first + i);
  };
  if (is_expert_major(layout)) {
    for (std::size_t e = 0; e < experts.num_rows.size(); ++e) {
      add(experts.first_row[e], experts.num_rows[e]);
    }
  } else if (layout == Layout::kByRank) {
    const auto num_ranks = static_cast<std::int64_t>(dispatched.rows_per_rank.size());
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      add(rank * (experts.rows.shape(0) / num_ranks),
          dispatched.rows_per_rank[static_cast<std::size_t>(rank)]);
    }
  } else {
    add(0, dispatched.num_rows);
  }
  return rows;
}

}  // namespace

ArrivedRows::ArrivedRows(const QuantScheme& scheme, std::int64_t hidden, ScaleLayout scale_layout,
                         std::optional<float> static_scale, std::int64_t max_rows,
                         std::int64_t max_blocks)
    : scheme_(scheme),
      hidden_(hidden),
      scale_layout_(scale_layout),
      static_scale_(static_scale),
      rows_(checked_mul(static_cast<std::size_t>(max_rows), row_bytes(scheme, hidden))),
      row_scales_(scale_row_bytes(scheme, hidden)),
      // Scales of the wire side by side: no format has more than f32 each.
      wire_scales_(static_cast<std::size_t>(hidden) * sizeof(float)),
      wide_(static_cast<std::size_t>(hidden) * sizeof(float)),
      narrow_(static_cast<std::size_t>(hidden) * sizeof(std::uint16_t)) {
  // Every block of a batch may end in a padded tile of its own.
  const std::int64_t padded = checked_add(max_rows, ScaleGeometry::kTileRows * max_blocks);
  const ScaleGeometry all{scale_layout, padded, num_scales(scheme, hidden),
                          bits_of(scale_dtype(scheme)) / 8};
  scales_ = AlignedBuffer(all.num_bytes());
}

ScaleBlocks ArrivedRows::scale_blocks(Layout layout, const ExpertRows& from) const {
  const bool is_batched = layout == Layout::kBatched && !from.first_row.empty();
  const auto num_blocks = is_batched ? static_cast<std::int64_t>(from.first_row.size()) : 1;
  const DType dtype = scale_dtype(scheme_);
  return {{scale_layout_, from.rows.shape(0) / num_blocks, num_scales(scheme_, hidden_),
           bits_of(dtype) / 8},
          dtype,
          num_blocks,
          is_batched};
}

// As it arrived, or what its quantized form stands for, rounded to bf16, in which simulated formats
// stay.
ArrivedRows::Row ArrivedRows::input_row(const ExpertRows& from, std::int64_t row) {
  const DType dtype = from.rows.dtype();
  if (!from.scheme.is_quantized() && (dtype == DType::kBF16 || !scheme_.is_simulated())) {
    return {from.rows.as<std::byte>() + row * hidden_ * bits_of(dtype) / 8, dtype};
  }
  InputReader(from).read(0, row, 1, wide_.as<float>(), wire_scales_.data());
  f32_to_bf16(wide_.as<float>(), hidden_, narrow_.as<std::uint16_t>());
  return {narrow_.data(), DType::kBF16};
}

float ArrivedRows::largest_magnitude(const ExpertRows& from,
                                     const std::vector<std::int64_t>& rows) {
  float amax = 0.0f;
  for (const std::int64_t row : rows) {
    const Row input = input_row(from, row);
    amax = std::max(amax, max_magnitude(input.data, input.dtype, hidden_));
  }
  return amax;
}

void ArrivedRows::quantize(Layout layout, Dispatched& dispatched) {
  ExpertRows& experts = dispatched.experts;
  const std::vector<std::int64_t> rows = valid_rows(layout, dispatched);
  const ScaleBlocks blocks = scale_blocks(layout, experts);
  const bool is_tensor = scheme_.group == ScaleGroup::kTensor;
  tensor_scale_ = static_scale_.value_or(1.0f);
  if (is_tensor && !static_scale_) {
    tensor_scale_ = tensor_scale(largest_magnitude(experts, rows), scheme_.dtype);
  }
  if (scale_layout_ == ScaleLayout::kSwizzled) {
    std::fill_n(scales_.data(), blocks.num_bytes(), std::byte{0});
  }
  const std::size_t stored_bytes = row_bytes(scheme_, hidden_);
  const bool has_scales = !is_tensor && blocks.block.num_scales > 0;
  for (const std::int64_t row : rows) {
    const Row from = input_row(experts, row);
    quantize_row(scheme_, from.data, from.dtype, hidden_,
                 rows_.data() + static_cast<std::size_t>(row) * stored_bytes, row_scales_.data(),
                 tensor_scale_);
    if (has_scales) blocks.place(row_scales_.data(), row, scales_.data());
  }
  experts.rows = TensorView(rows_.data(), stored_dtype(scheme_), {experts.rows.shape(0), hidden_});
  experts.scheme = scheme_;
  experts.scale_layout = has_scales ? scale_layout_ : ScaleLayout::kRowMajor;
  experts.scales = TensorView();
  experts.tensor_scale = TensorView();
  if (is_tensor) experts.scales = TensorView::of(&tensor_scale_, {1});
  if (has_scales) experts.scales = blocks.view(scales_.data());
  if (scheme_.needs_tensor_scale()) experts.tensor_scale = TensorView::of(&tensor_scale_, {1});
}

}  // namespace switchyard
