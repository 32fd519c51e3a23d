// SPDX-License-Identifier: Apache-2.0

#include "cuda/grid.h"

#include <algorithm>

namespace switchyard {
namespace {

// Tellers end early. Fewer senders do not fill the links, more take CTAs that receivers need more.
constexpr int kTellersOfDispatch = 6;
constexpr int kTokensOfRun = kLanes;
constexpr int kSendersOfDispatchTimes16 = 3;
// Returning rows reads and sums them first: two thirds of the grid.
constexpr int kSendersOfCombineTimes3 = 2;
constexpr int kMostShares = 4;

int clamp_int(std::int64_t value, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(value, least, std::max(least, most)));
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
  args.num_senders = clamp_int(
      num_pieces, 1, wish.receives ? wish.max_ctas * kSendersOfDispatchTimes16 / 16 : most);
  // Warps that would have nothing to do take a share of the destinations.
  const std::int64_t warps = std::int64_t{args.num_senders} * kExchangeWarps;
  args.shares = clamp_int(warps / num_pieces, 1, std::min(kMostShares, ranks));
  args.by_topk = FastDivisor(args.num_topk);
  args.by_ranks = FastDivisor(ranks);
  args.by_pieces = FastDivisor(pieces);
  args.by_shares = FastDivisor(num_pieces);
  args.by_items = FastDivisor(pieces + 1);
  args.by_slot = FastDivisor(std::int64_t{pieces + 1} * ranks);
  args.num_receivers = clamp_int(std::int64_t{ranks} * tokens * (pieces + 1), 1,
                                 wish.sends ? most - args.num_senders : wish.max_ctas);
}

void choose_grid(const GridWish& wish, CombineArgs& args) {
  const int pieces = args.layout.num_return_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * ranks);
  // Rows to return are about as many as own tokens have terms.
  const std::int64_t rows = std::int64_t{tokens} * std::min(ranks, args.num_topk);
  args.num_senders =
      clamp_int(rows * pieces, 1,
                wish.receives ? wish.max_ctas * kSendersOfCombineTimes3 / 3 : wish.max_ctas);
  args.num_receivers = clamp_int(std::int64_t{tokens} * pieces, 1,
                                 wish.sends ? wish.max_ctas - args.num_senders : wish.max_ctas);
}

}  // namespace switchyard
