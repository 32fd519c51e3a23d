// SPDX-License-Identifier: Apache-2.0

#include "cuda/grid.h"

#include <algorithm>
#include <cstdlib>

namespace switchyard {
namespace {

int cdiv_int(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// For experiments.
int env_or(const char* name, int value) {
  const char* text = std::getenv(name);
  return text == nullptr ? value : std::atoi(text);
}

}  // namespace

void choose_grid(const GridWish& wish, DispatchArgs& args) {
  const int pieces = args.layout.num_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  args.watch.rest_ns = static_cast<std::uint32_t>(env_or("SY_NS", 0));
  const int most = std::max(1, wish.max_ctas - 1);  // but the announcer
  const int for_sending = wish.receives ? env_or("SY_DS", std::max(1, most / 4)) : most;
  // Few tokens: several CTAs share one.
  args.ctas_per_token = std::clamp(for_sending / tokens, 1, pieces);
  const int groups = std::clamp(for_sending / args.ctas_per_token, 1, tokens);
  args.num_senders = groups * args.ctas_per_token;
  args.tokens_per_group = cdiv_int(tokens, groups);
  // Warps that would have nothing to do take a share of the destinations.
  const int warps = args.num_senders * kExchangeWarps;
  args.shares =
      std::clamp(warps / (tokens * (pieces + 1)), 1, std::min(env_or("SY_SH", 4), ranks));
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * ranks);
  const int for_receiving = wish.sends ? std::max(1, most - args.num_senders) : wish.max_ctas;
  args.num_receivers = static_cast<int>(
      std::clamp<std::int64_t>(std::int64_t{ranks} * tokens * pieces, 1, for_receiving));
}

void choose_grid(const GridWish& wish, CombineArgs& args) {
  const int pieces = args.layout.num_return_pieces;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  args.watch.rest_ns = static_cast<std::uint32_t>(env_or("SY_NS", 0));
  const int half = std::max(1, env_or("SY_CS", wish.max_ctas * 2 / 3));
  // Rows to return are about as many as own tokens have terms. Enough of them: a warp does several
  // pieces of a row in one go.
  const std::int64_t rows = std::int64_t{tokens} * std::min(ranks, args.num_topk);
  args.pieces_per_run = env_or("SY_PR", 1);
  const int runs = cdiv_int(pieces, args.pieces_per_run);
  args.by_runs = FastDivisor(runs);
  args.by_slot = FastDivisor(std::int64_t{runs} * ranks);
  args.num_senders = static_cast<int>(
      std::clamp<std::int64_t>(rows * runs, 1, wish.receives ? half : wish.max_ctas));
  const int for_receiving = wish.sends ? std::max(1, wish.max_ctas - args.num_senders)
                                       : wish.max_ctas;
  args.num_receivers = static_cast<int>(
      std::clamp<std::int64_t>(std::int64_t{tokens} * runs, 1, for_receiving));
}

}  // namespace switchyard
