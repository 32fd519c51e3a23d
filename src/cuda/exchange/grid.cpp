// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/grid.h"

#include <algorithm>

#include "core/round_up.h"

namespace switchyard {
namespace {

// Notify CTAs end early. Fewer senders do not saturate the links; more senders take CTAs that
// receivers need more.
constexpr int kNotifyCtasOfDispatch = 6;
constexpr int kTokensOfRun = kLanes;
constexpr int kSendersOfDispatchTimes64 = 11;
// Combine senders read and sum rows before they send, so they get the larger part.
constexpr int kReceiversOfCombineTimes24 = 7;
constexpr int kMaxShares = 4;
// Waiting CTAs all poll the same words, and that slows down the stores they wait for. So a call
// with few items gets the fewest CTAs that have a warp per item (two warps per item while that
// makes few CTAs), and CTAs of half the size. Combine announces nothing and is always faster with
// CTAs of that size.
constexpr int kSmallWarps = kMinExchangeThreads / kLanes;
constexpr int kSparseCtas = 32;
// A rank that does not know how many tokens others have makes room for this fraction of max_tokens,
// but for no more than one small CTA per SM.
constexpr int kGuessedPartOfMax = 16;

int clamp_int(std::int64_t value, int low, int high) {
  return static_cast<int>(std::clamp<std::int64_t>(value, low, std::max(low, high)));
}

/// The fewest CTAs with a warp per item; up to kSparseCtas, with two warps per item.
int min_ctas(std::int64_t items, int warps, int max_ctas_left) {
  const std::int64_t half_busy =
      std::min<std::int64_t>(kSparseCtas, cdiv<std::int64_t>(items, warps / 2));
  return clamp_int(std::max(cdiv<std::int64_t>(items, warps), half_busy), 1, max_ctas_left);
}

/// The same where items may outnumber warps: no more CTAs than the number of rounds requires.
int balanced_ctas(std::int64_t items, int warps, int max_ctas_left) {
  const std::int64_t rounds = cdiv(items, std::int64_t{warps} * std::max(1, max_ctas_left));
  return min_ctas(cdiv(items, rounds), warps, max_ctas_left);
}

/// The number of received items to provide warps for. `per_token` is the number of items if each
/// rank sends one token.
std::int64_t likely_items(const GridRequest& request, const PushShape& shape,
                          std::int64_t own_tokens, std::int64_t per_token) {
  const std::int64_t own = own_tokens * per_token;
  if (request.call_max_tokens > 0) return std::max(own, request.call_max_tokens * per_token);
  const std::int64_t guess = cdiv(shape.max_tokens, std::int64_t{kGuessedPartOfMax}) * per_token;
  const std::int64_t room = std::int64_t{request.max_ctas} / kExchangeCtasPerSm * kSmallWarps;
  return std::max(own, std::min(guess, room));
}

}  // namespace

void choose_grid(const GridRequest& request, DispatchArgs& args) {
  const int chunks = args.layout.num_chunks;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  const std::int64_t num_chunks = std::int64_t{tokens} * chunks;
  // As many runs of tokens as there are notify CTAs for (each run needs one per rank), but runs
  // need not be shorter than kTokensOfRun.
  const int max_notify_ctas = std::max(1, request.max_ctas / kNotifyCtasOfDispatch);
  const int runs = clamp_int(cdiv(tokens, kTokensOfRun), 1, max_notify_ctas / ranks - 1);
  args.tokens_per_run = cdiv(tokens, runs);
  args.num_runs = cdiv(tokens, args.tokens_per_run);
  args.num_notify_ctas = std::min(max_notify_ctas, ranks * (1 + args.num_runs));
  args.tokens_per_task = cdiv(tokens, ranks);
  const int max_ctas_left = request.max_ctas - args.num_notify_ctas;
  const std::int64_t num_items =
      likely_items(request, args.layout.shape, tokens, std::int64_t{ranks} * (chunks + 1));
  const bool is_small =
      request.has_whole_gpu && num_items <= std::int64_t{kSmallWarps} * max_ctas_left;
  args.num_warps = is_small ? kSmallWarps : kExchangeWarps;
  const int in_large = kExchangeWarps / args.num_warps;  // CTAs that fit in place of a large one
  const int max_senders =
      in_large *
      (request.receives ? request.max_ctas * kSendersOfDispatchTimes64 / 64 : max_ctas_left);
  args.num_senders = balanced_ctas(num_chunks, args.num_warps, max_senders);
  const int left =
      request.sends ? in_large * max_ctas_left - args.num_senders : in_large * request.max_ctas;
  args.num_receivers = min_ctas(num_items, args.num_warps, left);
  // Warps that would otherwise idle take a share of the destinations.
  const std::int64_t warps = std::int64_t{args.num_senders} * args.num_warps;
  args.shares = clamp_int(warps / num_chunks, 1, std::min(kMaxShares, ranks));
  args.by_topk = FastDivisor(args.num_topk);
  args.by_ranks = FastDivisor(ranks);
  args.by_chunks = FastDivisor(chunks);
  args.by_shares = FastDivisor(num_chunks);
  args.by_items = FastDivisor(chunks + 1);
  args.by_slot = FastDivisor(std::int64_t{chunks + 1} * ranks);
}

void choose_grid(const GridRequest& request, CombineArgs& args) {
  const int chunks = args.layout.num_return_chunks;
  const int ranks = args.ownership.num_ranks;
  const int tokens = std::max(1, args.num_tokens);
  args.by_chunks = FastDivisor(chunks);
  args.by_slot = FastDivisor(std::int64_t{chunks} * ranks);
  // A rank returns about as many rows as its own tokens have partial sums.
  const std::int64_t returns = likely_items(request, args.layout.shape, tokens,
                                            std::int64_t{std::min(ranks, args.num_topk)} * chunks);
  const std::int64_t sums = std::int64_t{tokens} * chunks;
  args.num_warps = request.has_whole_gpu ? kSmallWarps : kExchangeWarps;
  const int max_ctas_left = kExchangeWarps / args.num_warps * request.max_ctas;
  const int max_receivers =
      request.sends ? max_ctas_left * kReceiversOfCombineTimes24 / 24 : max_ctas_left;
  args.num_receivers = balanced_ctas(sums, args.num_warps, max_receivers);
  const int max_senders = request.receives ? max_ctas_left - args.num_receivers : max_ctas_left;
  args.num_senders = min_ctas(returns, args.num_warps, max_senders);
}

}  // namespace switchyard
