// SPDX-License-Identifier: Apache-2.0

#include "cuda/grid.h"

#include <algorithm>

namespace switchyard {
namespace {

// Announcing and receiving CTAs wait most of the time; a quarter of the grid saturates the links.
constexpr int kSendersOfDispatch = 4;
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
  const int most = std::max(1, wish.max_ctas - 1);  // but the announcer
  const int for_sending = wish.receives ? std::max(1, most / kSendersOfDispatch) : most;
  // Few tokens: several CTAs share one.
  args.ctas_per_token = clamp_int(for_sending / tokens, 1, pieces);
  const int most_groups = clamp_int(for_sending / args.ctas_per_token, 1, tokens);
  args.tokens_per_group = (tokens + most_groups - 1) / most_groups;
  const int groups = (tokens + args.tokens_per_group - 1) / args.tokens_per_group;  // none is idle
  args.num_senders = groups * args.ctas_per_token;
  // Warps that would have nothing to do take a share of the destinations.
  const std::int64_t warps = std::int64_t{args.num_senders} * kMakerWarps;
  args.shares =
      clamp_int(warps / (std::int64_t{tokens} * (pieces + 1)), 1, std::min(kMostShares, ranks));
  args.items_per_token = (pieces + args.ctas_per_token - 1) / args.ctas_per_token * args.shares + 1;
  args.by_ctas = FastDivisor(args.ctas_per_token);
  args.by_items = FastDivisor(args.items_per_token);
  args.by_shares = FastDivisor(args.shares);
  args.by_topk = FastDivisor(args.num_topk);
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * ranks);
  args.num_receivers = clamp_int(std::int64_t{ranks} * tokens * pieces, 1,
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
