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
  const int most = std::max(1, wish.receives ? wish.max_ctas - 1 : wish.max_ctas - 1);
  const int for_sending = wish.receives ? env_or("SY_DS", std::max(1, most / 3)) : most;
  const auto tokens = std::max(1, args.num_tokens);
  // Few tokens: several CTAs share one.
  args.ctas_per_token = std::clamp(for_sending / tokens, 1, std::max(1, pieces));
  const int groups = std::clamp(for_sending / args.ctas_per_token, 1, tokens);
  args.num_senders = groups * args.ctas_per_token;
  args.tokens_per_group = cdiv_int(tokens, groups);
  const int items = args.ownership.num_ranks * tokens * pieces;
  const int for_receiving = wish.sends ? most - args.num_senders : wish.max_ctas;
  // Warps that would have nothing to do take a share of the destinations.
  const int warps = args.num_senders * kExchangeWarps;
  args.shares = std::clamp(warps / (tokens * (pieces + 1)), 1,
                           std::min(env_or("SY_SH", 4), args.ownership.num_ranks));
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * args.ownership.num_ranks);
  args.num_receivers = std::clamp(cdiv_int(items, env_or("SY_DR", 1)), 1, std::max(1, for_receiving));
}

void choose_grid(const GridWish& wish, CombineArgs& args) {
  const int pieces = args.layout.num_return_pieces;
  const int tokens = std::max(1, args.num_tokens);
  const int half = std::max(1, env_or("SY_CS", wish.max_ctas / 2));
  const int ranks = args.ownership.num_ranks;
  // Rows to return are about as many as own tokens have terms.
  const std::int64_t rows = std::int64_t{tokens} * std::min(ranks, args.num_topk);
  const std::int64_t warps = std::int64_t{half} * kExchangeWarps;
  args.pieces_per_run = env_or("SY_PR", static_cast<int>(std::clamp<std::int64_t>(rows * pieces / (2 * warps), 1, 4)));
  const int runs = cdiv_int(pieces, args.pieces_per_run);
  args.by_runs = FastDivisor(runs);
  args.by_slot = FastDivisor(std::int64_t{runs} * ranks);
  args.num_senders = std::clamp(static_cast<int>(std::min<std::int64_t>(rows * runs, 1 << 20)), 1,
                                wish.receives ? half : wish.max_ctas);
  args.num_receivers =
      std::clamp(tokens * runs, 1, std::max(1, wish.sends ? wish.max_ctas - args.num_senders : wish.max_ctas));
}

}  // namespace

void choose_grid(const GridWish& wish, DispatchArgs& args) {
  const int pieces = args.layout.num_pieces;
  const int most = std::max(1, wish.receives ? wish.max_ctas - 1 : wish.max_ctas - 1);
  const int for_sending = wish.receives ? env_or("SY_DS", std::max(1, most / 3)) : most;
  const auto tokens = std::max(1, args.num_tokens);
  // Few tokens: several CTAs share one.
  args.ctas_per_token = std::clamp(for_sending / tokens, 1, std::max(1, pieces));
  const int groups = std::clamp(for_sending / args.ctas_per_token, 1, tokens);
  args.num_senders = groups * args.ctas_per_token;
  args.tokens_per_group = cdiv_int(tokens, groups);
  const int items = args.ownership.num_ranks * tokens * pieces;
  const int for_receiving = wish.sends ? most - args.num_senders : wish.max_ctas;
  // Warps that would have nothing to do take a share of the destinations.
  const int warps = args.num_senders * kExchangeWarps;
  args.shares = std::clamp(warps / (tokens * (pieces + 1)), 1,
                           std::min(env_or("SY_SH", 4), args.ownership.num_ranks));
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * args.ownership.num_ranks);
  args.num_receivers = std::clamp(cdiv_int(items, env_or("SY_DR", 1)), 1, std::max(1, for_receiving));
}

void choose_grid(const GridWish& wish, CombineArgs& args) {
  const int pieces = args.layout.num_return_pieces;
  args.by_pieces = FastDivisor(pieces);
  args.by_slot = FastDivisor(std::int64_t{pieces} * args.ownership.num_ranks);
  const std::int64_t items = std::int64_t{std::max(1, args.num_tokens)} * pieces;
  const int half = std::max(1, env_or("SY_CS", wish.max_ctas / 2));
  const int per_cta = env_or("SY_CI", 1);
  args.num_senders =
      std::clamp(cdiv_int(items * args.num_topk, per_cta), 1, wish.receives ? half : wish.max_ctas);
  args.num_receivers =
      std::clamp(cdiv_int(items, per_cta), 1,
                 std::max(1, wish.sends ? wish.max_ctas - args.num_senders : wish.max_ctas));
}

}  // namespace switchyard
