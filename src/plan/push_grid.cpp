// SPDX-License-Identifier: Apache-2.0

#include "plan/push_grid.h"

#include <algorithm>

#include "core/round_up.h"
#include "plan/direct_layout.h"

namespace switchyard {
namespace {

// Notify CTAs end early. Fewer senders do not fill the links, more take CTAs that receivers need
// more.
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

// CTAs share work if each of their warps has some chunks to send. Few of them all do everything. Of
// many, some only receive in a dispatch, so that rows are received while others leave; a combine is
// faster in fixed parts.
constexpr int kMaxCtasThatDoAll = 128;
constexpr int kSendersOfSharedWorkTimes64 = 22;
constexpr std::int64_t kMinChunksOfSharingWarp = 4;
constexpr std::int64_t kMinItemsOfSharingWarp = 2;
constexpr std::int64_t kMinItemsOfStreamingWarp = 3;

// Direct: of a CTA of a combine, the warps that return rows, and the most chunks that one sums at a
// time.
constexpr int kReturningWarpsOfCta = 2;
constexpr int kMaxSummedChunks = 8;

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

/// As many of a row's chunks, a multiple of `step`, as leave each warp `min_items`; 0: there are
/// too few for all warps. `all`: the chunks of all rows.
int streamed_chunks(std::int64_t all, int chunks, int step, std::int64_t min_items, int ctas) {
  const std::int64_t warps = std::int64_t{kExchangeWarps} * ctas;
  int most = 0;
  for (int count = step; count <= chunks; count += step) {
    if (chunks % count == 0 && all / count >= min_items * warps) most = count;
  }
  return most;
}

/// The same for a dispatch, and no more than a warp can take.
int taken_chunks(std::int64_t all, int chunks, std::int64_t min_items, int ctas) {
  int count = std::max(1, streamed_chunks(all, chunks, 1, min_items, ctas));
  while (count > kMaxChunksPerItem || chunks % count != 0) --count;
  return count;
}

}  // namespace

bool can_stream(const PushLayout& layout, Reduce reduce) {
  return reduce != Reduce::kPerExpert && layout.num_return_chunks % kStreamChunks == 0;
}

DispatchCtas dispatch_ctas(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens) {
  DispatchCtas grid;
  const int chunks = layout.num_chunks;
  const int ranks = layout.shape.num_ranks;
  const int tokens = std::max(1, num_tokens);
  const std::int64_t num_chunks = std::int64_t{tokens} * chunks;
  // As many runs of tokens as there are notify CTAs for (each run needs one per rank), but runs
  // need not be shorter than kTokensOfRun.
  grid.shares_work = request.may_share &&
                     num_chunks >= kMinChunksOfSharingWarp * kExchangeWarps * request.max_ctas;
  const bool all_do_all = grid.shares_work && request.max_ctas <= kMaxCtasThatDoAll;
  const int max_notify_ctas =
      all_do_all ? request.max_ctas : std::max(1, request.max_ctas / kNotifyCtasOfDispatch);
  const int runs = clamp_int(cdiv(tokens, kTokensOfRun), 1, max_notify_ctas / ranks - 1);
  grid.tokens_per_run = cdiv(tokens, runs);
  grid.num_runs = cdiv(tokens, grid.tokens_per_run);
  grid.num_notify_ctas = std::min(max_notify_ctas, ranks * (1 + grid.num_runs));
  grid.tokens_per_task = cdiv(tokens, ranks);
  const int max_ctas_left = request.max_ctas - grid.num_notify_ctas;
  const std::int64_t num_items =
      likely_items(request, layout.shape, tokens, std::int64_t{ranks} * (chunks + 1));
  const bool is_small =
      request.has_whole_gpu && num_items <= std::int64_t{kSmallWarps} * max_ctas_left;
  grid.num_warps = is_small ? kSmallWarps : kExchangeWarps;
  const int in_large = kExchangeWarps / grid.num_warps;  // CTAs in the room of a large one
  const int max_senders =
      in_large *
      (request.receives ? request.max_ctas * kSendersOfDispatchTimes64 / 64 : max_ctas_left);
  grid.num_senders = balanced_ctas(num_chunks, grid.num_warps, max_senders);
  const int left =
      request.sends ? in_large * max_ctas_left - grid.num_senders : in_large * request.max_ctas;
  grid.num_receivers = min_ctas(num_items, grid.num_warps, left);
  if (grid.shares_work) {
    grid.num_warps = kExchangeWarps;
    grid.num_notify_ctas = 0;
    grid.num_senders = all_do_all || !request.receives
                           ? request.max_ctas
                           : request.max_ctas * kSendersOfSharedWorkTimes64 / 64;
    grid.num_receivers = request.max_ctas;
    grid.chunks_per_item =
        taken_chunks(num_chunks, chunks, kMinItemsOfSharingWarp, grid.num_senders);
  }
  // Warps that would have nothing to do take a share of the destinations.
  const std::int64_t warps = grid.shares_work ? 0 : std::int64_t{grid.num_senders} * grid.num_warps;
  grid.shares = clamp_int(warps / num_chunks, 1, std::min(kMaxShares, ranks));
  return grid;
}

CombineCtas combine_ctas(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens) {
  CombineCtas grid;
  const int chunks = layout.num_return_chunks;
  const int ranks = layout.shape.num_ranks;
  const int tokens = std::max(1, num_tokens);
  // Rows to return are about as many as a rank's tokens have partials.
  const std::int64_t returns = likely_items(
      request, layout.shape, tokens, std::int64_t{std::min(ranks, layout.shape.num_topk)} * chunks);
  const std::int64_t sums = std::int64_t{tokens} * chunks;
  grid.num_warps = request.has_whole_gpu ? kSmallWarps : kExchangeWarps;
  const int max_ctas_left = kExchangeWarps / grid.num_warps * request.max_ctas;
  const int max_receivers =
      request.sends ? max_ctas_left * kReceiversOfCombineTimes24 / 24 : max_ctas_left;
  grid.num_receivers = balanced_ctas(sums, grid.num_warps, max_receivers);
  const int max_senders = request.receives ? max_ctas_left - grid.num_receivers : max_ctas_left;
  grid.num_senders = min_ctas(returns, grid.num_warps, max_senders);
  const bool streams = request.can_stream && request.max_ctas <= kMaxCtasThatDoAll;
  const int streamed = streams ? streamed_chunks(sums, chunks, kStreamChunks,
                                                 kMinItemsOfStreamingWarp, request.max_ctas)
                               : 0;
  if (streamed > 0) {
    grid.streams = true;
    grid.chunks_per_item = streamed;
    grid.num_warps = kExchangeWarps;
    grid.num_senders = request.max_ctas;
    grid.num_receivers = request.max_ctas;
  }
  return grid;
}

DispatchCtas direct_dispatch_ctas(const GridRequest& request, const PushLayout& layout,
                                  std::int32_t num_tokens, const DirectChunks& chunks) {
  DispatchCtas grid;
  const std::int64_t num_chunks = std::int64_t{std::max(1, num_tokens)} * chunks.of_row;
  grid.num_notify_ctas =
      clamp_int(layout.shape.num_ranks, 1, request.max_ctas / kNotifyCtasOfDispatch);
  // One that receives where none announces.
  const int others = request.sends ? grid.num_notify_ctas : 1;
  grid.num_senders = clamp_int(cdiv<std::int64_t>(num_chunks, kExchangeWarps), 1,
                               std::min(kMaxDirectSenders, request.max_ctas - others));
  // As few rounds as possible, of short items.
  const std::int64_t warps = std::int64_t{grid.num_senders} * kExchangeWarps;
  grid.chunks_per_item = clamp_int(cdiv(num_chunks, warps), 1, chunks.together);
  return grid;
}

CombineCtas direct_combine_ctas(const GridRequest& request, const PushLayout& layout,
                                std::int32_t num_tokens) {
  CombineCtas grid;
  constexpr int kSummingWarps = kExchangeWarps - kReturningWarpsOfCta;
  const int ranks = layout.shape.num_ranks;
  const int tokens = std::max(1, num_tokens);
  const int chunks = layout.num_return_chunks;
  const std::int64_t returns =
      likely_items(request, layout.shape, tokens, std::min(ranks, layout.shape.num_topk) - 1);
  // A warp sums as many chunks as leave each warp two items.
  int count = 1;
  for (int more = 2; more <= std::min(kMaxSummedChunks, chunks); ++more) {
    const std::int64_t items = std::int64_t{tokens} * (chunks / more);
    const bool is_enough = more == 2 || items >= std::int64_t{2} * kSummingWarps * request.max_ctas;
    if (chunks % more == 0 && is_enough) count = more;
  }
  grid.chunks_per_item = count;
  const std::int64_t items = std::int64_t{tokens} * (chunks / count);
  const std::int64_t wanted = std::max(cdiv<std::int64_t>(returns, kReturningWarpsOfCta),
                                       cdiv<std::int64_t>(items, kSummingWarps));
  grid.num_senders = clamp_int(wanted, 1, request.max_ctas);
  grid.num_receivers = grid.num_senders;
  return grid;
}

}  // namespace switchyard
