// SPDX-License-Identifier: Apache-2.0

#include "plan/direct_layout.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/round_up.h"

namespace switchyard {
namespace {

// What received_memory.h aligns to.
constexpr std::size_t kDirectAlignment = 256;

// A CTA of 512 threads counts so many tokens in one round. Every sender reads the counts of all
// parts, so there are few where ranks are many.
constexpr std::int64_t kTokensOfPart = 512;
constexpr std::int64_t kMaxCountParts = 16;
constexpr std::int64_t kMaxCountsOfCall = 1024;

}  // namespace

CountParts count_parts(int num_ranks, std::int64_t max_tokens) {
  const std::int64_t tokens = std::max<std::int64_t>(1, max_tokens);
  const std::int64_t counts_of_part = std::int64_t{num_ranks} * num_ranks;
  const std::int64_t most =
      std::clamp<std::int64_t>(kMaxCountsOfCall / counts_of_part, 1, kMaxCountParts);
  const std::int64_t size = cdiv(tokens, std::min(most, cdiv(tokens, kTokensOfPart)));
  return {static_cast<std::int32_t>(cdiv(tokens, size)), static_cast<std::int32_t>(size)};
}

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
  // Of shorter calls, which may have as many parts as the longest.
  direct.max_parts = count_parts(direct.num_ranks, layout.shape.max_tokens).count;
  direct.counts_offset =
      part(ranks * ranks * static_cast<std::size_t>(direct.max_parts), kRecordBytes);
  direct.senders_offset = part(2 * ranks, kRecordBytes);
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
