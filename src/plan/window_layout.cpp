// SPDX-License-Identifier: Apache-2.0

#include "plan/window_layout.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard {
namespace {

std::size_t checked_align_up(std::size_t value, std::size_t alignment) {
  return checked_add(value, alignment - 1) / alignment * alignment;
}

}  // namespace

WindowLayout make_window_layout(const WindowShape& shape) {
  WindowLayout layout;
  layout.shape = shape;
  layout.scales_in_row = checked_align_up(shape.payload_bytes, sizeof(float));
  layout.extras_in_row =
      checked_align_up(checked_add(layout.scales_in_row, shape.scale_bytes), sizeof(float));
  layout.row_stride =
      checked_align_up(checked_add(layout.extras_in_row, shape.extra_bytes), kRowAlignment);
  layout.combine_row_stride = checked_align_up(shape.combine_row_bytes, kRowAlignment);

  const auto tokens = static_cast<std::size_t>(shape.max_tokens);
  const std::size_t choices = checked_mul(tokens, static_cast<std::size_t>(shape.num_topk));
  const std::size_t ids_bytes = checked_mul(choices, sizeof(std::uint16_t));
  const std::size_t weights_bytes =
      shape.sends_weights ? checked_mul(choices, sizeof(float)) : std::size_t{0};
  const std::size_t partials = checked_mul(tokens, static_cast<std::size_t>(layout.num_columns()));
  const std::size_t rows_bytes = std::max(checked_mul(tokens, layout.row_stride),
                                          checked_mul(partials, layout.combine_row_stride));

  layout.ids_offset = kLineBytes * (1 + static_cast<std::size_t>(shape.num_ranks));
  layout.weights_offset = checked_add(layout.ids_offset, checked_align_up(ids_bytes, kLineBytes));
  layout.rows_offset =
      checked_add(layout.weights_offset, checked_align_up(weights_bytes, kLineBytes));
  layout.set_bytes = checked_align_up(checked_add(layout.rows_offset, rows_bytes), kLineBytes);
  layout.total_bytes = checked_add(
      kLineBytes, checked_mul(static_cast<std::size_t>(shape.num_sets), layout.set_bytes));
  return layout;
}

}  // namespace switchyard
