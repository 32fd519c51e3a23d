// SPDX-License-Identifier: Apache-2.0

#include "cuda/grid.h"

#include <algorithm>

namespace switchyard {
namespace {

// Tellers end early. Fewer senders do not fill the links, more take CTAs that receivers need more.
constexpr int kTellersOfDispatch = 6;
constexpr int kTokensOfRun = kLanes;
constexpr int kSendersOfDispatchTimes64 = 11;
// Returning rows reads and sums them first.
constexpr int kReceiversOfCombineTimes24 = 7;
constexpr int kMostShares = 4;
// A CTA that waits looks for the words that all others look for, and that slows the stores they
// wait for. So few tokens get CTAs of half the size, as few as have an item for each warp, or for
// every other while those are few. Combine, where nothing is announced, is faster with those in any
// case.
constexpr int kSmallWarps = kLeastExchangeThreads / kLanes;
constexpr int kFewCtas = 32;
// Not told how many tokens others have, a rank makes room for this part of the most.
constexpr int kLeastPartOfMost = 16;
// Beyond this the shared memory of receivers matters: twice as many CTAs would take twice as much.
constexpr std::int64_t kMostPlacesOfSmall = 4096;

int clamp_int(std::int64_t value, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(value, least, std::max(least, most)));
}

std::int64_t cdiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// As few CTAs as have an item for each warp, or for every other while those are few.
int few_ctas(std::int64_t items, int warps, int most) {
  const std::int64_t half_busy = std::min<std::int64_t>(kFewCtas, cdiv(items, warps / 2));
  return clamp_int(std::max(cdiv(items, warps), half_busy), 1, most);
}

/// The same for more items than there are warps: no more CTAs than rounds need.
int even_ctas(std::int64_t items, int warps, int most) {
  const std::int64_t rounds = cdiv(items, std::int64_t{warps} * std::max(1, most));
  return few_ctas(cdiv(items, rounds), warps, most);
}

/// Of a rank, for what is received.
std::int64_t likely_tokens(const GridWish& wish, const PushShape& shape, std::int64_t own) {
  const bool is_told = wish.most_tokens > 0;
  return std::max(own, is_told ? wish.most_tokens : cdiv(shape.max_tokens, kLeastPartOfMost));
}

}  // namespace

void choose_grid(const GridWish& wish, DispatchArgs& args) {
  const int pieces = args.layout.num_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  const std::int64_t num_pieces = std::int64_t{tokens} * pieces;
  // As many runs of tokens as there are tellers for, each for every rank, but short ones suffice.
  const int most_tellers = std::max(1, wish.max_ctas / kTellersOfDispatch);
  const int runs =
      clamp_int((tokens + kTokensOfRun - 1) / kTokensOfRun, 1, most_tellers / ranks - 1);
  args.tokens_per_run = (tokens + runs - 1) / runs;
  args.num_runs = (tokens + args.tokens_per_run - 1) / args.tokens_per_run;
  args.num_tellers = std::min(most_tellers, ranks * (1 + args.num_runs));
  args.terms_per_task = (tokens + ranks - 1) / ranks;
  const int most = wish.max_ctas - args.num_tellers;
  const std::int64_t num_items =
      ranks * likely_tokens(wish, args.layout.shape, tokens) * (pieces + 1);
  const bool is_small =
      wish.has_whole_gpu && num_items <= std::int64_t{kSmallWarps} * most &&
      std::int64_t{ranks + 1} * args.layout.shape.max_local_experts <= kMostPlacesOfSmall;
  args.num_warps = is_small ? kSmallWarps : kExchangeWarps;
  const int in_largest = kExchangeWarps / args.num_warps;
  const int most_senders =
      in_largest * (wish.receives ? wish.max_ctas * kSendersOfDispatchTimes64 / 64 : most);
  args.num_senders = even_ctas(num_pieces, args.num_warps, most_senders);
  const int left = wish.sends ? in_largest * most - args.num_senders : in_largest * wish.max_ctas;
  args.num_receivers =
      is_small ? few_ctas(num_items, args.num_warps, left) : clamp_int(num_items, 1, left);
  // Warps that would have nothing to do take a share of the destinations.
  const std::int64_t warps = std::int64_t{args.num_senders} * args.num_warps;
  args.shares = clamp_int(warps / num_pieces, 1, std::min(kMostShares, ranks));
  args.by_topk = FastDivisor(args.num_topk);
  args.by_ranks = FastDivisor(ranks);
  args.by_pieces = FastDivisor(pieces);
  args.by_shares = FastDivisor(num_pieces);
  args.by_items = FastDivisor(pieces + 1);
  args.by_slot = FastDivisor(std::int64_t{pieces + 1} * ranks);
}

void choose_grid(const GridWish& wish, CombineArgs& args) {
  const int pieces = args.layout.num_return_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * ranks);
  // Rows to return are about as many as a rank's tokens have terms.
  const std::int64_t rows =
      likely_tokens(wish, args.layout.shape, tokens) * std::min(ranks, args.num_topk);
  const std::int64_t sums = std::int64_t{tokens} * pieces;
  args.num_warps = wish.has_whole_gpu ? kSmallWarps : kExchangeWarps;
  const int most = kExchangeWarps / args.num_warps * wish.max_ctas;
  const int most_receivers = wish.sends ? most * kReceiversOfCombineTimes24 / 24 : most;
  args.num_receivers = even_ctas(sums, args.num_warps, most_receivers);
  const int most_senders = wish.receives ? most - args.num_receivers : most;
  args.num_senders = few_ctas(rows * pieces, args.num_warps, most_senders);
}

}  // namespace switchyard
