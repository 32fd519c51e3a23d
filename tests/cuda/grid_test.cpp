// SPDX-License-Identifier: Apache-2.0
//
// Which CTA does what: every kind has at least one, their sum does not exceed the request, and
// their shares cover all tokens. Needs no GPU: the same numbers are computed on the host.

#include "cuda/exchange/grid.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

constexpr int kTopk = 8;
constexpr int kSparseCtas = 32;  // this many CTAs may be half busy
constexpr bool kSends = true;
constexpr bool kReceives = true;

struct GridCase {
  int max_ctas;
  int ranks;
  int tokens;
  std::int64_t hidden;
  bool has_whole_gpu;
  std::int64_t max_tokens;       ///< per rank, in any call
  std::int64_t call_max_tokens;  ///< in this call; 0: unknown

  std::string text() const {
    return std::to_string(max_ctas) + " CTAs, " + std::to_string(ranks) + " ranks, " +
           std::to_string(tokens) + " tokens of " + std::to_string(hidden) +
           (has_whole_gpu ? ", alone" : "") + ", at most " + std::to_string(max_tokens) + ", " +
           std::to_string(call_max_tokens);
  }
};

std::vector<GridCase> cases() {
  std::vector<GridCase> all;
  for (const int max_ctas : {3, 4, 5, 7, 16, 33, 64, 132, 264, 600}) {
    for (const int ranks : {1, 2, 3, 7, 8, 40, 64}) {
      for (const int tokens : {0, 1, 2, 31, 32, 33, 128, 4096}) {
        for (const std::int64_t hidden : {16, 7168}) {
          for (const bool is_alone : {false, true}) {
            all.push_back({max_ctas, ranks, tokens, hidden, is_alone, std::max(1, tokens), 0});
            all.push_back({max_ctas, ranks, tokens, hidden, is_alone, 5000, 0});
            all.push_back({max_ctas, ranks, tokens, hidden, is_alone, 5000, 4500});
          }
        }
      }
    }
  }
  return all;
}

PushLayout layout_of(const GridCase& c) {
  PushShape shape;
  shape.max_tokens = c.max_tokens;
  shape.hidden = c.hidden;
  shape.num_ranks = c.ranks;
  shape.num_topk = kTopk;
  return make_push_layout(shape);
}

GridRequest request_of(const GridCase& c, bool sends, bool receives) {
  return {c.max_ctas, sends, receives, c.has_whole_gpu, c.call_max_tokens};
}

cuda::DispatchGrid dispatch_grid(const GridCase& c, bool sends, bool receives) {
  return cuda::dispatch_grid(request_of(c, sends, receives), layout_of(c), c.tokens);
}

cuda::CombineGrid combine_grid(const GridCase& c, bool sends, bool receives) {
  return cuda::combine_grid(request_of(c, sends, receives), layout_of(c), c.tokens);
}

// Returns the number of full-size CTAs with the same total of warps, rounded up.
template <class Args>
int room(const Args& args, int ctas) {
  return (ctas * args.num_warps + kExchangeWarps - 1) / kExchangeWarps;
}

TEST(GridTest, DispatchHasEveryKindAndNoMoreThanWished) {
  for (const GridCase& c : cases()) {
    SCOPED_TRACE(c.text());
    const cuda::DispatchGrid both = dispatch_grid(c, kSends, kReceives);
    const cuda::DispatchGrid sends = dispatch_grid(c, kSends, false);
    const cuda::DispatchGrid receives = dispatch_grid(c, false, kReceives);
    for (const cuda::DispatchGrid& grid : {both, sends}) {
      if (grid.shares_work) continue;
      ASSERT_GE(std::min(grid.num_notify_ctas, grid.num_senders), 1);
    }
    ASSERT_GE(both.num_receivers, 1);
    ASSERT_GE(receives.num_receivers, 1);
    ASSERT_LE(room(both, both.num_ctas(kSends, kReceives)), c.max_ctas);
    ASSERT_LE(room(sends, sends.num_ctas(kSends, false)), c.max_ctas);
    ASSERT_LE(room(receives, receives.num_ctas(false, kReceives)), c.max_ctas);
  }
}

// CTAs with much to send share the work; alike with and without the receive part.
TEST(GridTest, CtasShareMuchWork) {
  const auto grid = [](int ctas, int tokens, bool receives) {
    return dispatch_grid({ctas, 4, tokens, 7168, false, 4096, 0}, kSends, receives);
  };
  for (const bool receives : {true, false}) {
    EXPECT_TRUE(grid(16, 128, receives).shares_work);
    EXPECT_TRUE(grid(48, 4096, receives).shares_work);
    EXPECT_EQ(grid(48, 4096, receives).num_ctas(kSends, receives), 48);
    EXPECT_EQ(grid(48, 4096, receives).shares, 1);
    EXPECT_FALSE(grid(48, 1, receives).shares_work);
    EXPECT_TRUE(grid(264, 4096, receives).shares_work);
    EXPECT_EQ(grid(264, 4096, receives).num_ctas(kSends, receives), 264);
    EXPECT_EQ(grid(264, 4096, receives).num_senders, receives ? 90 : 264);
    EXPECT_FALSE(grid(264, 512, receives).shares_work);
    // As many chunks at a time as leave each of 16 warps two items.
    EXPECT_EQ(grid(16, 128, receives).chunks_per_item, 2);
    EXPECT_EQ(grid(16, 512, receives).chunks_per_item, 14);
    EXPECT_EQ(grid(32, 512, receives).chunks_per_item, 7);
    EXPECT_EQ(grid(128, 4096, receives).chunks_per_item, 14);
    EXPECT_EQ(grid(264, 4096, receives).chunks_per_item, receives ? 14 : 2);
  }
}

TEST(GridTest, CombineHasEveryKindAndNoMoreThanWished) {
  for (const GridCase& c : cases()) {
    SCOPED_TRACE(c.text());
    const cuda::CombineGrid both = combine_grid(c, kSends, kReceives);
    ASSERT_GE(std::min(both.num_senders, both.num_receivers), 1);
    ASSERT_LE(room(both, both.num_senders + both.num_receivers), c.max_ctas);
    const cuda::CombineGrid sends = combine_grid(c, kSends, false);
    ASSERT_GE(sends.num_senders, 1);
    ASSERT_LE(room(sends, sends.num_senders), c.max_ctas);
    const cuda::CombineGrid receives = combine_grid(c, false, kReceives);
    ASSERT_GE(receives.num_receivers, 1);
    ASSERT_LE(room(receives, receives.num_receivers), c.max_ctas);
    const int chunks = layout_of(c).num_return_chunks;
    ASSERT_EQ(both.by_items.divisor, static_cast<std::uint32_t>(chunks));
    ASSERT_EQ(both.by_slot.divisor, static_cast<std::uint32_t>(chunks * c.ranks));
  }
}

// Few CTAs with much to return all send, then all receive, some chunks of a row at a time.
TEST(GridTest, FewCtasStream) {
  const auto grid = [](int ctas, int tokens, bool can_stream) {
    const GridCase c{ctas, 4, tokens, 7168, false, 4096, 0};
    GridRequest request = request_of(c, kSends, kReceives);
    request.can_stream = can_stream;
    return cuda::combine_grid(request, layout_of(c), tokens);
  };
  for (const int ctas : {3, 16, 48, 128}) {
    const cuda::CombineGrid streams = grid(ctas, 4096, true);
    ASSERT_TRUE(streams.streams);
    EXPECT_EQ(streams.num_ctas(kSends, kReceives), ctas);
    EXPECT_EQ(streams.num_ctas(kSends, false), ctas);
    EXPECT_EQ(streams.chunks_per_item % kStreamChunks, 0);
    EXPECT_EQ(streams.chunks_per_item * static_cast<int>(streams.by_items.divisor), 28);
    EXPECT_EQ(streams.by_slot.divisor, 4 * streams.by_items.divisor);
    EXPECT_FALSE(grid(ctas, 4096, false).streams);
    EXPECT_FALSE(grid(ctas, 1, true).streams);
  }
  EXPECT_EQ(grid(16, 4096, true).chunks_per_item, 28);
  EXPECT_EQ(grid(16, 128, true).chunks_per_item, 4);
  EXPECT_FALSE(grid(132, 4096, true).streams);
}

// Receivers and senders split their work into items for warps; a CTA without an item only waits.
TEST(GridTest, NoCtaIsWithoutAnItem) {
  for (const GridCase& c : cases()) {
    SCOPED_TRACE(c.text());
    const std::int64_t tokens = std::max(1, c.tokens);
    const cuda::DispatchGrid dispatch = dispatch_grid(c, kSends, kReceives);
    const cuda::CombineGrid combine = combine_grid(c, kSends, kReceives);
    const std::int64_t chunks = layout_of(c).num_chunks;
    ASSERT_LE(dispatch.num_senders, tokens * chunks);
    const std::int64_t most = std::max({tokens, c.call_max_tokens, c.max_tokens});
    ASSERT_LE(dispatch.num_receivers, most * c.ranks * (chunks + 1));
    for (const int warps : {dispatch.num_warps, combine.num_warps}) {
      const int threads = warps * kLanes;
      ASSERT_TRUE(threads == kExchangeThreads ||
                  (c.has_whole_gpu && threads == kMinExchangeThreads));
    }
    const std::int64_t returned = layout_of(c).num_return_chunks;
    ASSERT_LE(combine.num_senders, most * returned * std::min(c.ranks, kTopk));
    ASSERT_LE(combine.num_receivers, tokens * returned);
  }
}

// With one CTA fewer, some warps would have more items.
TEST(GridTest, RoundsAreEven) {
  const auto rounds = [](std::int64_t items, int ctas, int warps) {
    return (items + std::int64_t{ctas} * warps - 1) / (std::int64_t{ctas} * warps);
  };
  for (const GridCase& c : cases()) {
    SCOPED_TRACE(c.text());
    const std::int64_t tokens = std::max(1, c.tokens);
    const cuda::DispatchGrid dispatch = dispatch_grid(c, kSends, kReceives);
    const cuda::CombineGrid combine = combine_grid(c, kSends, kReceives);
    const std::int64_t sums = tokens * layout_of(c).num_return_chunks;
    if (combine.num_receivers > kSparseCtas) {
      ASSERT_LT(rounds(sums, combine.num_receivers, combine.num_warps),
                rounds(sums, combine.num_receivers - 1, combine.num_warps));
    }
    if (dispatch.shares_work || dispatch.num_senders <= kSparseCtas) continue;
    const std::int64_t sent = tokens * layout_of(c).num_chunks;
    ASSERT_LT(rounds(sent, dispatch.num_senders, dispatch.num_warps),
              rounds(sent, dispatch.num_senders - 1, dispatch.num_warps));
  }
}

// A rank with few tokens receives what the others send.
TEST(GridTest, ReceiversAreForTheTokensOfOthers) {
  constexpr int kCtas = 264;
  const auto grid = [](int tokens, std::int64_t max_tokens, std::int64_t call_max_tokens) {
    return dispatch_grid({kCtas, 8, tokens, 7168, true, max_tokens, call_max_tokens}, true, true);
  };
  const auto warps = [](const cuda::DispatchGrid& args) {
    return args.num_receivers * args.num_warps;
  };
  // Known limit: as if the rank had that many tokens itself.
  EXPECT_EQ(warps(grid(0, 4096, 8)), warps(grid(8, 8, 0)));
  EXPECT_GE(warps(grid(0, 4096, 128)), warps(grid(128, 128, 0)));
  // Unknown limit: for a sixteenth of the maximum, up to one small CTA per SM.
  EXPECT_EQ(warps(grid(0, 128, 0)), warps(grid(8, 8, 0)));
  EXPECT_EQ(grid(0, 4096, 0).num_receivers, kCtas / kExchangeCtasPerSm);
  EXPECT_EQ(warps(grid(128, 4096, 0)), warps(grid(128, 128, 0)));
}

// Returns how often tasks of `size` tokens contain each token.
std::vector<int> times_in(int num_tasks, int size, int tokens) {
  std::vector<int> times(static_cast<std::size_t>(tokens));
  for (int task = 0; task < num_tasks; ++task) {
    for (int t = task * size; t < std::min((task + 1) * size, tokens); ++t) {
      ++times[static_cast<std::size_t>(t)];
    }
  }
  return times;
}

TEST(GridTest, EveryTokenIsInOneRunAndInOneTaskOfTerms) {
  for (const GridCase& c : cases()) {
    for (const bool receives : {true, false}) {
      SCOPED_TRACE(c.text());
      const cuda::DispatchGrid a = dispatch_grid(c, kSends, receives);
      const std::vector<int> once(static_cast<std::size_t>(c.tokens), 1);
      ASSERT_GE(a.num_runs, 1);
      ASSERT_GE(a.tokens_per_run, 1);
      ASSERT_EQ(times_in(a.num_runs, a.tokens_per_run, c.tokens), once);
      ASSERT_EQ(times_in(c.ranks, a.tokens_per_task, c.tokens), once);
      // No run is empty, and no notify CTA is idle.
      ASSERT_LT((a.num_runs - 1) * a.tokens_per_run, std::max(1, c.tokens));
      ASSERT_LE(a.num_notify_ctas, c.ranks * (1 + a.num_runs));
    }
  }
}

// The kernel uses the same divisions to locate a sender's and a receiver's item.
TEST(GridTest, SharesAndDivisorsAreThoseOfTheKernel) {
  for (const GridCase& c : cases()) {
    SCOPED_TRACE(c.text());
    const cuda::DispatchGrid a = dispatch_grid(c, kSends, kReceives);
    const int chunks = layout_of(c).num_chunks;
    const int items = chunks / a.chunks_per_item;
    const int received_items = a.shares_work ? items : chunks + 1;
    const std::int64_t num_items = std::int64_t{std::max(1, c.tokens)} * items;
    ASSERT_EQ(a.chunks_per_item * items, chunks);
    ASSERT_GE(a.shares, 1);
    ASSERT_LE(a.shares, c.ranks);
    // Shares exist only for warps that would otherwise be idle.
    ASSERT_TRUE(a.shares == 1 || num_items * a.shares <= a.num_senders * a.num_warps);
    ASSERT_EQ(a.by_topk.divisor, static_cast<std::uint32_t>(kTopk));
    ASSERT_EQ(a.by_ranks.divisor, static_cast<std::uint32_t>(c.ranks));
    ASSERT_EQ(a.by_chunks.divisor, static_cast<std::uint32_t>(items));
    ASSERT_EQ(a.by_shares.divisor, static_cast<std::uint32_t>(num_items));
    ASSERT_EQ(a.by_items.divisor, static_cast<std::uint32_t>(received_items));
    ASSERT_EQ(a.by_slot.divisor, static_cast<std::uint32_t>(received_items * c.ranks));
  }
}

}  // namespace
}  // namespace switchyard
