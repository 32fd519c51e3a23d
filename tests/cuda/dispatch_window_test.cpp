// SPDX-License-Identifier: Apache-2.0
//
// The receiving half of a dispatch among more ranks than a warp has lanes. Rows and their metadata
// land where they belong; if something is missing, the kernel ends and names the source.

#include <algorithm>
#include <string>

#include <gmock/gmock.h>

#include "dispatch_window_case.h"
#include "gpu.h"

namespace switchyard {
namespace {

using namespace test;

/// A row of the receive buffer.
struct ExpectedRow {
  int row;
  int source;
  int n;
  int k;  ///< the choice that the row is for in expert-major layouts, else 0
};

struct Expected {
  std::vector<ExpectedRow> rows;
  std::int32_t num_rows[kLocal] = {};
  std::int64_t first_row[kLocal] = {};
  int total = 0;

  // An expert's rows are ordered by (source, token), and so are token-major rows.
  explicit Expected(Layout layout) {
    for (int e = 0; e < kLocal; ++e) {
      int next = layout == Layout::kBatched ? e * kRanks * kTokens
                 : is_expert_major(layout)  ? total
                                            : 0;
      first_row[e] = next;
      for (int s = 0; s < kRanks; ++s) {
        for (int n = 0; n < rows_of(s); ++n) {
          for (int k = 0; k < kTopk; ++k) {
            if (id_of(s, n, k) != kFirstLocal + e) continue;
            ++num_rows[e];
            if (!is_expert_major(layout)) continue;
            rows.push_back({next++, s, n, k});
            ++total;
          }
        }
      }
    }
    for (int s = 0; s < kRanks && !is_expert_major(layout); ++s) {
      for (int n = 0; n < rows_of(s); ++n, ++total) {
        rows.push_back({layout == Layout::kByRank ? s * kTokens + n : total, s, n, 0});
      }
    }
  }
  int row_of(int source, int n, int k, bool by_choice) const {
    for (const ExpectedRow& r : rows) {
      if (r.source == source && r.n == n && (!by_choice || r.k == k)) return r.row;
    }
    return -1;
  }
};

void expect_rows(const Expected& expected, const Receiver& receiver) {
  const auto words = host_copy<std::uint32_t>(receiver.results().rows);
  std::vector<std::uint32_t> want(words.size(), static_cast<std::uint32_t>(kUnset));
  for (const ExpectedRow& r : expected.rows) {
    for (int i = 0; i < kRowWords; ++i) {
      want[static_cast<std::size_t>(r.row * kRowWords + i)] =
          word_of(r.source, token_of(r.source, r.n), i);
    }
  }
  EXPECT_EQ(words, want);
}

// Checks weights of rows, and ids in token-major layouts.
void expect_row_facts(const Expected& expected, const Receiver& receiver, Layout layout) {
  const auto ids = host_copy<std::int32_t>(receiver.results().row_ids);
  const auto weights = host_copy<float>(receiver.results().row_weights);
  for (const ExpectedRow& r : expected.rows) {
    if (is_expert_major(layout)) {
      EXPECT_EQ(weights[static_cast<std::size_t>(r.row)], weight_of(r.source, r.n, r.k));
      continue;
    }
    for (int k = 0; k < kTopk; ++k) {
      const int id = id_of(r.source, r.n, k);
      const int local = is_local(id) ? id - kFirstLocal : -1;
      const auto at = static_cast<std::size_t>(r.row * kTopk + k);
      EXPECT_EQ(ids[at], layout == Layout::kCompact ? local : id) << r.row << " " << k;
      EXPECT_EQ(weights[at], weight_of(r.source, r.n, k)) << r.row << " " << k;
    }
  }
}

void expect_arrivals(const Expected& expected, const Receiver& receiver, Layout layout) {
  const auto counts = host_copy<std::int32_t>(receiver.results().num_arrivals);
  const auto tokens = host_copy<std::int32_t>(receiver.results().arrival_token);
  const auto rows = host_copy<std::int32_t>(receiver.results().arrival_rows);
  const auto weights = host_copy<float>(receiver.results().arrival_weights);
  for (int s = 0; s < kRanks; ++s) {
    EXPECT_EQ(counts[static_cast<std::size_t>(s)], rows_of(s)) << s;
    for (int n = 0; n < rows_of(s); ++n) {
      const auto arrival = static_cast<std::size_t>(s * kTokens + n);
      EXPECT_EQ(tokens[arrival], token_of(s, n)) << s << " " << n;
      for (int k = 0; k < kTopk; ++k) {
        const std::size_t at = arrival * kTopk + static_cast<std::size_t>(k);
        const int row =
            is_local(id_of(s, n, k)) ? expected.row_of(s, n, k, is_expert_major(layout)) : -1;
        EXPECT_EQ(rows[at], row) << s << " " << n << " " << k;
        EXPECT_EQ(weights[at], weight_of(s, n, k)) << s << " " << n << " " << k;
      }
    }
  }
}

// Slots of rows must be empty again; tagged records are never emptied.
void expect_empty_slots(const Receiver& receiver) {
  const auto words = host_copy<std::uint32_t>(receiver.window());
  const std::size_t begin = receiver.layout().set(kCall) / sizeof(words[0]);
  const std::size_t size = receiver.layout().marks_offset / sizeof(words[0]);
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(begin);
  EXPECT_TRUE(std::all_of(first, first + static_cast<std::ptrdiff_t>(size),
                          [](std::uint32_t word) { return word == 0xFFFFFFFFu; }));
}

TEST(DispatchWindowTest, RowsOfFortySourcesLandWhereTheyBelong) {
  REQUIRE_GPU();
  for (const Layout layout :
       {Layout::kBatched, Layout::kExpanded, Layout::kCompact, Layout::kByRank}) {
    for (const GridRequest& grid :
         {receivers(1, false), receivers(3, false), receivers(132, false), receivers(132, true)}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(layout)) + ", " + std::to_string(grid.max_ctas));
      Receiver receiver(layout, grid, 10'000'000'000);
      ASSERT_EQ(receiver.run().failure, static_cast<std::uint32_t>(cuda::WaitFailure::kNone));
      const Expected expected(layout);
      for (std::size_t e = 0; e < kLocal; ++e) {
        EXPECT_EQ(host_copy<std::int32_t>(receiver.results().num_rows)[e], expected.num_rows[e])
            << e;
        if (!is_expert_major(layout)) continue;
        EXPECT_EQ(host_copy<std::int64_t>(receiver.results().first_row)[e], expected.first_row[e])
            << e;
      }
      EXPECT_EQ(host_copy<std::int32_t>(receiver.results().total_rows)[0], expected.total);
      EXPECT_EQ(host_copy<std::uint64_t>(receiver.results().counter)[0],
                (kCall + 1) * cuda::kCallUnit);
      expect_rows(expected, receiver);
      expect_row_facts(expected, receiver, layout);
      expect_arrivals(expected, receiver, layout);
      expect_empty_slots(receiver);
    }
  }
}

struct LostWords {
  Missing missing;
  const char* what;
  bool names_token;
};

// With few CTAs, warps have items after the one that fails. One source is beyond a warp's lanes,
// the other within.
TEST(DispatchWindowTest, KernelEndsAndNamesTheSourceOfWhatIsMissing) {
  REQUIRE_GPU();
  for (const LostWords& lost : {LostWords{Missing::kAnnouncement, "no announcement from", false},
                                LostWords{Missing::kCounts, "no announcement from", false},
                                LostWords{Missing::kMode, "no announcement from", false},
                                LostWords{Missing::kChoices, "no row ", false},
                                LostWords{Missing::kWeights, "no row ", true},
                                LostWords{Missing::kElements, "no row ", true}}) {
    for (const Layout layout : {Layout::kExpanded, Layout::kCompact}) {
      for (const int source : {1, 37}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(lost.missing)) + ", layout " +
                     std::to_string(static_cast<int>(layout)));
        ASSERT_EQ(rows_of(source), 1);
        const std::string from = "from rank " + std::to_string(source) + " within 0.2 s";
        const GridRequest grid = source == 1 ? receivers(3, false) : receivers(24, true);
        Receiver receiver(layout, grid, 200'000'000, lost.missing, source);
        const cuda::WaitRecord record = receiver.run();
        ASSERT_EQ(record.failure, static_cast<std::uint32_t>(cuda::WaitFailure::kTimeout));
        EXPECT_EQ(record.call, kCall);
        const WaitFailureText text = describe(record, kRank, kRanks * kLocal);
        EXPECT_EQ(text.culprit, source);
        EXPECT_THAT(text.what, testing::HasSubstr(lost.what));
        EXPECT_THAT(text.what, testing::HasSubstr(from));
        if (lost.names_token) {
          EXPECT_EQ(record.token, token_of(source, 0));
        }
        // The call is over; a later one would find that the rank has failed.
        EXPECT_EQ(host_copy<std::uint64_t>(receiver.results().counter)[0],
                  (kCall + 1) * cuda::kCallUnit);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
