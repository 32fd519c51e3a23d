// SPDX-License-Identifier: Apache-2.0
//
// Parts of a push window do not overlap, units are aligned, and each mark belongs to one slot.

#include "plan/push_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

PushShape shape_of(int num_ranks, int num_topk, std::int64_t hidden, std::int64_t max_tokens) {
  PushShape shape;
  shape.max_tokens = max_tokens;
  shape.hidden = hidden;
  shape.num_ranks = num_ranks;
  shape.num_topk = num_topk;
  shape.max_local_experts = 5;
  shape.element_bits = 8;
  shape.chunk_scale_bytes = 16;
  return shape;
}

using Parts = std::vector<std::pair<std::size_t, std::size_t>>;  // begin, end

Parts parts_of(const PushLayout& layout) {
  const PushShape& shape = layout.shape;
  Parts parts;
  for (const std::uint64_t call : {6u, 7u}) {
    for (int source = 0; source < shape.num_ranks; ++source) {
      const std::size_t at = layout.announcement(call, source);
      parts.emplace_back(
          at, at + (2 + static_cast<std::size_t>(shape.max_local_experts)) * kRecordBytes);
      for (std::int64_t n = 0; n < shape.max_tokens; ++n) {
        const std::size_t row = layout.row(call, source, n);
        for (int chunk = 0; chunk < layout.num_chunks; ++chunk) {
          const std::size_t elements = layout.elements(row, chunk);
          parts.emplace_back(elements, elements + static_cast<std::size_t>(kChunkElements));
          const std::size_t scales = layout.scales(row, chunk);
          parts.emplace_back(scales, scales + static_cast<std::size_t>(shape.chunk_scale_bytes));
        }
        const std::size_t routes = layout.routes(call, source, n);
        const int num_records = 1 + shape.num_topk * (shape.sends_weights ? 2 : 1);
        parts.emplace_back(routes, routes + static_cast<std::size_t>(num_records) * kRecordBytes);
      }
    }
    parts.emplace_back(layout.mark(call, layout.set(call)),
                       layout.mark(call, layout.set(call) + layout.marks_offset - 1) + 1);
  }
  for (std::int64_t token = 0; token < shape.max_tokens; ++token) {
    for (int column = 0; column < layout.num_columns(); ++column) {
      const std::size_t begin = layout.returned(token, column);
      parts.emplace_back(begin, begin + layout.return_stride);
    }
  }
  if (shape.return_scale_bytes > 0) {
    parts.emplace_back(layout.mark(6, layout.returned(0, 0)),
                       layout.mark(6, layout.return_marks_offset - 1) + 1);
  }
  return parts;
}

TEST(PushLayoutTest, PartsAreApartAndAligned) {
  for (const int num_ranks : {1, 2, 7}) {
    for (const int num_topk : {1, 4, 9}) {
      for (const std::int64_t hidden : {1, 512, 513, 1100}) {
        PushShape shape = shape_of(num_ranks, num_topk, hidden, 3);
        shape.sends_weights = num_topk != 4;
        shape.return_scale_bytes = hidden == 513 ? 16 : 0;
        const PushLayout layout = make_push_layout(shape);
        Parts parts = parts_of(layout);
        std::sort(parts.begin(), parts.end());
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
          ASSERT_LE(parts[i].second, parts[i + 1].first)
              << num_ranks << " " << num_topk << " " << hidden;
        }
        EXPECT_LE(parts.back().second, layout.total_bytes);
        for (const std::size_t offset :
             {layout.row(1, num_ranks - 1, 2), layout.scales(layout.row(0, 0, 1), 0),
              layout.returned(2, layout.num_columns() - 1)}) {
          EXPECT_EQ(offset % kUnitBytes, 0u);
        }
        EXPECT_EQ(layout.routes(1, num_ranks - 1, 2) % kRecordBytes, 0u);
        EXPECT_EQ(layout.announcement(1, num_ranks - 1) % kRecordBytes, 0u);
      }
    }
  }
}

TEST(PushLayoutTest, ColumnsAreOfRanksWhereTheyAreFewer) {
  PushShape shape = shape_of(2, 8, 64, 4);
  EXPECT_EQ(make_push_layout(shape).num_columns(), 2);
  EXPECT_EQ(make_push_layout(shape).column(1, 7), 1);
  shape.keeps_every_choice = true;
  EXPECT_EQ(make_push_layout(shape).num_columns(), 8);
  EXPECT_EQ(make_push_layout(shape).column(1, 7), 7);
}

TEST(PushLayoutTest, ReturnedRowsWithScalesOrWithout) {
  PushShape shape = shape_of(2, 4, 700, 4);
  shape.return_element_bits = 8;
  shape.return_scale_bytes = 16;
  EXPECT_EQ(make_push_layout(shape).return_chunk_stride, 256u + 16u);
  EXPECT_EQ(make_push_layout(shape).return_stride, 3u * (256u + 16u));
  shape.return_element_bits = shape.return_scale_bytes = 0;
  const PushLayout layout = make_push_layout(shape);
  EXPECT_EQ(layout.return_stride, 0u);
  EXPECT_EQ(layout.returns_offset, layout.total_bytes);
}

TEST(PushLayoutTest, RoutesHaveBitsForEveryExpert) {
  PushShape shape = shape_of(2, 4, 64, 4);
  for (const auto& [experts, bits] : {std::pair(1, 31), {2, 31}, {3, 30}, {64, 26}, {65, 25}}) {
    shape.max_local_experts = experts;
    EXPECT_EQ(make_push_layout(shape).place_bits, bits) << experts;
  }
}

// The numbers of docs/design.md.
TEST(PushLayoutTest, MemoryOfEightRanks) {
  PushShape shape = shape_of(8, 8, 7168, 4096);
  shape.max_local_experts = 32;
  shape.sends_weights = true;
  EXPECT_NEAR(static_cast<double>(make_push_layout(shape).total_bytes), 1.03e9, 5e6);
  shape.max_tokens = 128;
  EXPECT_NEAR(static_cast<double>(make_push_layout(shape).total_bytes), 32e6, 2e5);
}

TEST(PushLayoutTest, SizesThatOverflowAreRefused) {
  PushShape shape = shape_of(64, 8, std::int64_t{1} << 40, std::int64_t{1} << 40);
  test::expect_invalid("overflows", [&] { make_push_layout(shape); });
}

// Sizes whose low 32 bits look harmless.
TEST(PushLayoutTest, SizesBeyond32BitsAreRefused) {
  PushShape longest = shape_of(2, 4, std::int64_t{1} << 41, 4);  // 2^32 chunks
  PushShape many = shape_of(8, 4, 64, std::int64_t{1} << 30);    // 2^33 rows
  PushShape wide = shape_of(2, 4, std::int64_t{1} << 30, 4);     // rows of 4 GiB
  wide.element_bits = 32;
  PushShape returned = shape_of(2, 4, std::int64_t{1} << 31, 4);
  returned.return_element_bits = 16;
  PushShape columns = shape_of(1, 8, 64, std::int64_t{1} << 29);  // 2^32 returned rows
  columns.keeps_every_choice = true;
  for (const PushShape& shape : {longest, many, wide, returned, columns}) {
    test::expect_invalid("overflows 32 bits", [&] { make_push_layout(shape); });
  }
}

TEST(PushLayoutTest, RowsAndSlotsBelow32BitsAreKept) {
  PushShape longest = shape_of(2, 4, std::int64_t{1} << 31, 4);
  longest.return_element_bits = 8;
  const PushLayout rows = make_push_layout(longest);
  EXPECT_EQ(rows.num_chunks, 1 << 22);
  EXPECT_EQ(rows.scales_in_row, 1u << 31);
  EXPECT_EQ(rows.row_stride, (1u << 31) + (1u << 26));
  EXPECT_EQ(rows.row(0, 1, 3), 7 * std::size_t{rows.row_stride});
  const PushLayout slots = make_push_layout(shape_of(4, 4, 64, (std::int64_t{1} << 30) - 1));
  const std::int64_t last = (std::int64_t{1} << 30) - 2;
  EXPECT_EQ(slots.row(0, 3, last), ((std::size_t{1} << 32) - 5) * slots.row_stride);
  PushShape last_column = shape_of(8, 4, std::int64_t{1} << 31, 1);
  last_column.return_element_bits = 8;
  test::expect_invalid("overflows 32 bits", [&] { make_push_layout(last_column); });
}

}  // namespace
}  // namespace switchyard
