// SPDX-License-Identifier: Apache-2.0

#include "plan/push_layout.h"

#include <limits>

#include "core/bytes.h"
#include "core/fail.h"
#include "plan/window_layout.h"

namespace switchyard {
namespace {

// The bits of a 32-bit route that an expert's local index leaves free.
std::int32_t place_bits(std::int32_t num_experts) {
  std::int32_t bits = 31;
  while (bits > 0 && (std::int64_t{1} << (32 - bits)) < num_experts) --bits;
  return bits;
}

std::size_t lines(std::size_t bytes) { return align_up(bytes, kLineBytes); }

std::uint32_t in_32_bits(std::size_t value) {
  constexpr std::size_t kMax = std::numeric_limits<std::uint32_t>::max();
  require(value <= kMax, Errc::kInvalidArgument,
          "push layout: a size overflows 32 bits: {} rows, or elements or bytes of one, must be at "
          "most {}",
          value, kMax);
  return static_cast<std::uint32_t>(value);
}

}  // namespace

PushLayout make_push_layout(const PushShape& shape) {
  PushLayout layout;
  layout.shape = shape;
  const auto tokens = static_cast<std::size_t>(shape.max_tokens);
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);
  const auto topk = static_cast<std::size_t>(shape.num_topk);
  (void)in_32_bits(static_cast<std::size_t>(shape.hidden));
  layout.num_chunks = static_cast<std::int32_t>(cdiv<std::int64_t>(shape.hidden, kChunkElements));
  layout.num_return_chunks =
      static_cast<std::int32_t>(cdiv<std::int64_t>(shape.hidden, kReturnChunkElements));
  layout.place_bits = place_bits(shape.max_local_experts);
  const auto chunks = static_cast<std::size_t>(layout.num_chunks);

  layout.chunk_bytes = static_cast<std::uint32_t>(kChunkElements * shape.element_bits / 8);
  layout.scales_in_row = in_32_bits(checked_mul(chunks, std::size_t{layout.chunk_bytes}));
  const auto scale_bytes = static_cast<std::size_t>(shape.chunk_scale_bytes);
  layout.row_stride = in_32_bits(
      lines(checked_add(std::size_t{layout.scales_in_row}, checked_mul(chunks, scale_bytes))));
  layout.return_chunk_stride = static_cast<std::uint32_t>(
      kReturnChunkElements * shape.return_element_bits / 8 + shape.return_scale_bytes);
  layout.return_stride = in_32_bits(checked_mul(static_cast<std::size_t>(layout.num_return_chunks),
                                                std::size_t{layout.return_chunk_stride}));
  layout.routes_stride = in_32_bits((1 + topk * (shape.sends_weights ? 2 : 1)) * kRecordBytes);
  layout.announcement_stride =
      in_32_bits(lines((2 + static_cast<std::size_t>(shape.max_local_experts)) * kRecordBytes));

  const std::size_t rows = in_32_bits(checked_mul(ranks, tokens));
  const auto columns = static_cast<std::size_t>(layout.num_columns());
  const std::size_t returned = in_32_bits(checked_mul(tokens, columns));
  (void)in_32_bits(checked_mul(columns, std::size_t{layout.return_stride}) - layout.return_stride);
  layout.marks_offset = checked_mul(rows, std::size_t{layout.row_stride});
  layout.announcements_offset = lines(checked_add(layout.marks_offset, layout.marks_offset / 8));
  layout.routes_offset = checked_add(layout.announcements_offset,
                                     checked_mul(ranks, std::size_t{layout.announcement_stride}));
  layout.set_bytes = lines(
      checked_add(layout.routes_offset, checked_mul(rows, std::size_t{layout.routes_stride})));
  layout.returns_offset = checked_mul<std::size_t>(2, layout.set_bytes);
  const std::size_t return_bytes = checked_mul(returned, std::size_t{layout.return_stride});
  layout.return_marks_offset = checked_add(layout.returns_offset, return_bytes);
  // Returned rows of floats contain no words that the wire reserves, so they need no marks.
  const std::size_t return_marks = shape.return_scale_bytes > 0 ? return_bytes / 8 : 0;
  layout.total_bytes = lines(checked_add(layout.return_marks_offset, return_marks));
  return layout;
}

}  // namespace switchyard
