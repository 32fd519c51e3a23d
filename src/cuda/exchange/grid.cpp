// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/grid.h"

#include <algorithm>

#include "core/round_up.h"

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
// wait for. So few items get as few CTAs as have one for each warp, or for every other while those
// are few, and CTAs of half the size. Combine, where nothing is announced, is faster with those in
// any case.
constexpr int kSmallWarps = kLeastExchangeThreads / kLanes;
constexpr int kFewCtas = 32;
// Not told how many tokens others have, a rank makes room for this part of the most, but with no
// more than a small CTA for every SM.
constexpr int kLeastPartOfMost = 16;

int clamp_int(std::int64_t value, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(value, least, std::max(least, most)));
}

/// As few CTAs as have an item for each warp, or for every other while those are few.
int few_ctas(std::int64_t items, int warps, int most) {
  const std::int64_t half_busy =
      std::min<std::int64_t>(kFewCtas, cdiv<std::int64_t>(items, warps / 2));
  return clamp_int(std::max(cdiv<std::int64_t>(items, warps), half_busy), 1, most);
}

/// The same for more items than there are warps: no more CTAs than rounds need.
int even_ctas(std::int64_t items, int warps, int most) {
  const std::int64_t rounds = cdiv(items, std::int64_t{warps} * std::max(1, most));
  return few_ctas(cdiv(items, rounds), warps, most);
}

/// Warps are for so many items of received tokens; `per_token`: of one of each rank.
std::int64_t likely_items(const GridWish& wish, const PushShape& shape, std::int64_t own_tokens,
                          std::int64_t per_token) {
  const std::int64_t own = own_tokens * per_token;
  if (wish.most_tokens > 0) return std::max(own, wish.most_tokens * per_token);
  const std::int64_t guess = cdiv(shape.max_tokens, std::int64_t{kLeastPartOfMost}) * per_token;
  const std::int64_t room = std::int64_t{wish.max_ctas} / kExchangeCtasPerSm * kSmallWarps;
  return std::max(own, std::min(guess, room));
}

}  // namespace

void choose_grid(const GridWish& wish, DispatchArgs& args) {
  const int pieces = args.layout.num_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  const std::int64_t num_pieces = std::int64_t{tokens} * pieces;
  // As many runs of tokens as there are tellers for, each for every rank, but short ones suffice.
  const int most_tellers = std::max(1, wish.max_ctas / kTellersOfDispatch);
  const int runs = clamp_int(cdiv(tokens, kTokensOfRun), 1, most_tellers / ranks - 1);
  args.tokens_per_run = cdiv(tokens, runs);
  args.num_runs = cdiv(tokens, args.tokens_per_run);
  args.num_tellers = std::min(most_tellers, ranks * (1 + args.num_runs));
  args.terms_per_task = cdiv(tokens, ranks);
  const int most = wish.max_ctas - args.num_tellers;
  const std::int64_t num_items =
      likely_items(wish, args.layout.shape, tokens, std::int64_t{ranks} * (pieces + 1));
  const bool is_small = wish.has_whole_gpu && num_items <= std::int64_t{kSmallWarps} * most;
  args.num_warps = is_small ? kSmallWarps : kExchangeWarps;
  const int in_large = kExchangeWarps / args.num_warps;  // CTAs in the room of a large one
  const int most_senders =
      in_large * (wish.receives ? wish.max_ctas * kSendersOfDispatchTimes64 / 64 : most);
  args.num_senders = even_ctas(num_pieces, args.num_warps, most_senders);
  const int left = wish.sends ? in_large * most - args.num_senders : in_large * wish.max_ctas;
  args.num_receivers = few_ctas(num_items, args.num_warps, left);
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
  const std::int64_t returns = likely_items(wish, args.layout.shape, tokens,
                                            std::int64_t{std::min(ranks, args.num_topk)} * pieces);
  const std::int64_t sums = std::int64_t{tokens} * pieces;
  args.num_warps = wish.has_whole_gpu ? kSmallWarps : kExchangeWarps;
  const int most = kExchangeWarps / args.num_warps * wish.max_ctas;
  const int most_receivers = wish.sends ? most * kReceiversOfCombineTimes24 / 24 : most;
  args.num_receivers = even_ctas(sums, args.num_warps, most_receivers);
  const int most_senders = wish.receives ? most - args.num_receivers : most;
  args.num_senders = few_ctas(returns, args.num_warps, most_senders);
}

}  // namespace switchyard
