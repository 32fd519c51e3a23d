// SPDX-License-Identifier: Apache-2.0

#include "plan/push_layout.h"

#include "core/bytes.h"
#include "plan/window_layout.h"

namespace switchyard {
namespace {

std::size_t piece_bytes(std::int32_t bits) {
  return static_cast<std::size_t>(kPieceElements * bits / 8);
}

std::size_t lines(std::size_t bytes) { return align_up(bytes, kLineBytes); }

}  // namespace

PushLayout make_push_layout(const PushShape& shape) {
  PushLayout layout;
  layout.shape = shape;
  const auto tokens = static_cast<std::size_t>(shape.max_tokens);
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);
  const auto topk = static_cast<std::size_t>(shape.num_topk);
  layout.num_pieces = static_cast<std::int32_t>(cdiv<std::int64_t>(shape.hidden, kPieceElements));
  layout.num_return_pieces =
      static_cast<std::int32_t>(cdiv<std::int64_t>(shape.hidden, kReturnPiece));
  const auto pieces = static_cast<std::size_t>(layout.num_pieces);

  layout.announcement_bytes =
      lines((2 + static_cast<std::size_t>(shape.max_local_experts)) * sizeof(std::uint64_t));
  layout.details_bytes = lines((1 + cdiv<std::size_t>(topk, 2) + topk) * sizeof(std::uint32_t));
  layout.scales_in_piece = piece_bytes(shape.element_bits);
  layout.routes_in_piece =
      layout.scales_in_piece + static_cast<std::size_t>(shape.piece_scale_bytes);
  layout.piece_stride = lines(layout.routes_in_piece +
                              (shape.sends_routes ? cdiv<std::size_t>(topk, 2) * kUnitBytes : 0));
  layout.row_stride = checked_add(layout.details_bytes, checked_mul(pieces, layout.piece_stride));
  layout.return_piece_stride = static_cast<std::size_t>(
      kReturnPiece * shape.return_element_bits / 8 + shape.return_scale_bytes);
  layout.return_stride =
      checked_mul(static_cast<std::size_t>(layout.num_return_pieces), layout.return_piece_stride);

  layout.rows_offset = checked_mul(ranks, layout.announcement_bytes);
  layout.returns_offset =
      checked_add(layout.rows_offset, checked_mul(checked_mul(ranks, tokens), layout.row_stride));
  const std::size_t columns = static_cast<std::size_t>(layout.num_columns());
  layout.marks_offset = checked_add(
      layout.returns_offset, checked_mul(checked_mul(tokens, columns), layout.return_stride));
  layout.set_bytes = lines(checked_add(layout.marks_offset, layout.marks_offset / 8 + kLineBytes));
  layout.total_bytes = checked_mul<std::size_t>(2, layout.set_bytes);
  return layout;
}

}  // namespace switchyard
