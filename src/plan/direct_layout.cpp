// SPDX-License-Identifier: Apache-2.0

#include "plan/direct_layout.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/round_up.h"

namespace switchyard {
namespace {

// What received_memory.h aligns to.
constexpr std::size_t kDirectAlignment = 256;

}  // namespace

DirectLayout make_direct_layout(const PushLayout& layout, std::size_t offset, std::int64_t num_rows,
                                std::size_t received_bytes) {
  const auto ranks = static_cast<std::size_t>(layout.shape.num_ranks);
  const auto tokens = static_cast<std::size_t>(layout.shape.max_tokens);
  const auto topk = static_cast<std::size_t>(layout.shape.num_topk);
  const auto columns = static_cast<std::size_t>(layout.num_columns());
  std::size_t at = offset;
  const auto part = [&](std::size_t count, std::size_t bytes) {
    const std::size_t begin = align_up(at, kDirectAlignment);
    at = checked_add(begin, checked_mul(count, bytes));
    return begin;
  };
  DirectLayout direct;
  direct.num_ranks = layout.shape.num_ranks;
  direct.num_columns = layout.num_columns();
  direct.counts_offset = part(ranks * ranks, kRecordBytes);
  direct.flags_offset = part(ranks * kMaxDirectSenders, kRecordBytes);
  direct.ready_offset = part(ranks, kRecordBytes);
  direct.return_flags_offset = part(checked_mul(tokens, columns), kRecordBytes);
  direct.arrival_tokens_offset = part(checked_mul(ranks, tokens), sizeof(std::int32_t));
  direct.arrival_rows_offset =
      part(checked_mul(checked_mul(ranks, tokens), topk), sizeof(std::int32_t));
  direct.placed_rows_offset = part(checked_mul(tokens, ranks), sizeof(std::int32_t));
  direct.received_offset = part(received_bytes, 1);
  direct.results_offset =
      part(std::max(static_cast<std::size_t>(num_rows), checked_mul(tokens, columns)),
           layout.return_stride);
  direct.end = align_up(at, kDirectAlignment);
  return direct;
}

}  // namespace switchyard
