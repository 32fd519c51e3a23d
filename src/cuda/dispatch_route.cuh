// SPDX-License-Identifier: Apache-2.0
//
// dispatch_route.cuh: what follows from a rank's own ids: how many rows each peer gets for each
// expert, and, of each token, its number among the rows for a rank and its place among those for an
// expert: how often earlier tokens chose the same. Routers tell it to the peers, while senders,
// which need none of it, send the rows themselves.
#pragma once

#include "cuda/call.cuh"
#include "cuda/exchange_args.h"
#include "cuda/wire.cuh"

namespace switchyard {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// An id as given; a number that no expert has stays what it is, cut to 32 bits.
__device__ __forceinline__ std::int32_t load_id(const DispatchArgs& a, std::int64_t index) {
  if (!a.ids_are_64_bits) return __ldg(static_cast<const int*>(a.topk_ids) + index);
  const long long id = __ldg(static_cast<const long long*>(a.topk_ids) + index);
  return id < -1 || id > 0x7FFFFFFF ? 0x7FFFFFFF : static_cast<std::int32_t>(id);
}

__device__ __forceinline__ bool names_expert(const DispatchArgs& a, std::int32_t id) {
  return id >= 0 && id < a.ownership.num_experts;
}

/// A lane for each choice of as many whole tokens as fit in a warp.
struct ChoiceLanes {
  int num_tokens;  ///< of a warp
  int token;       ///< of this lane, from the warp's first; num_tokens or more: none
  int k;

  __device__ __forceinline__ explicit ChoiceLanes(const DispatchArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    num_tokens = a.by_topk.quotient(kLanes);
    token = a.by_topk.quotient(lane);
    k = lane - token * a.num_topk;
  }
  /// `first`: the warp's first token. -1 at `end` and beyond.
  __device__ __forceinline__ std::int32_t load(const DispatchArgs& a, int first, int end) const {
    const bool is_there = token < num_tokens && first + token < end;
    return is_there ? load_id(a, std::int64_t{first + token} * a.num_topk + k) : -1;
  }
};

/// Bytes of shared memory of a router.
inline std::size_t router_bytes(const DispatchArgs& a) {
  const auto chunk = static_cast<std::size_t>(a.chunk_words * kLanes * a.num_topk);
  const auto size = static_cast<std::size_t>(a.ownership.num_experts + a.ownership.num_ranks);
  return (1 + chunk) * 8 + size * static_cast<std::size_t>(1 + a.chunk_words) * 4;
}

/// A choice of an expert that its token has chosen before.
struct Repeat {
  std::int32_t expert;
  std::int32_t token;  ///< of the chunk
};

/// What the tokens of a chunk chose, as bits: of each expert, then of each rank, which of them did.
/// How many earlier ones did is a count of bits, whatever order threads work in. In shared memory.
struct TokenBits {
  std::uint32_t* num_repeats;
  Repeat* repeats;
  std::uint32_t* counts;  ///< [E + P] in the chunks before
  std::uint32_t* bits;    ///< [E + P, words]
  int words;
  int size;  ///< E + P

  __device__ __forceinline__ TokenBits(const DispatchArgs& a, std::byte* memory)
      : num_repeats(reinterpret_cast<std::uint32_t*>(memory)),
        repeats(reinterpret_cast<Repeat*>(memory + sizeof(Repeat))),
        counts(reinterpret_cast<std::uint32_t*>(repeats + a.chunk_words * kLanes * a.num_topk)),
        bits(counts + a.ownership.num_experts + a.ownership.num_ranks),
        words(a.chunk_words),
        size(a.ownership.num_experts + a.ownership.num_ranks) {}

  __device__ __forceinline__ void clear() const {
    if (threadIdx.x == 0) *num_repeats = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < size * (1 + words); i += kExchangeThreads) {
      counts[i] = 0;
    }
  }
  /// `token`: of the chunk.
  __device__ __forceinline__ void add(const DispatchArgs& a, int token, std::int32_t id) const {
    if (!names_expert(a, id)) return;
    const std::uint32_t bit = 1u << token % kLanes;
    const int word = token / kLanes;
    const int rank = a.ownership.num_experts + a.ownership.owner(id);
    atomicOr(bits + rank * words + word, bit);
    if ((atomicOr(bits + id * words + word, bit) & bit) != 0) [[unlikely]] {
      repeats[atomicAdd(num_repeats, 1u)] = {id, token};
    }
  }
  /// How many tokens before `token` chose the expert, or the rank. Repeats aside.
  __device__ __forceinline__ std::uint32_t before(int index, int token) const {
    std::uint32_t sum = counts[index];
    const std::uint32_t* own = bits + index * words;
#pragma unroll 1
    for (int w = 0; w < token / kLanes; ++w) sum += __popc(own[w]);
    return sum + __popc(own[token / kLanes] & ((1u << token % kLanes) - 1));
  }
  /// How many chose it, with this chunk. Repeats of the chunk aside.
  __device__ __forceinline__ std::uint32_t total(int index) const {
    std::uint32_t sum = counts[index];
#pragma unroll 1
    for (int w = 0; w < words; ++w) sum += __popc(bits[index * words + w]);
    return sum;
  }
  /// Goes on to the next chunk, by all threads. Ends with a barrier.
  __device__ __forceinline__ void advance() const {
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) {
      counts[i] = total(i);
#pragma unroll 1
      for (int w = 0; w < words; ++w) bits[i * words + w] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < *num_repeats; i += kExchangeThreads) {
      atomicAdd(counts + repeats[i].expert, 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) *num_repeats = 0;
    __syncthreads();
  }
};

/// The rare way: how often a choice's expert was chosen again by tokens before, and by its own.
__device__ __noinline__ inline int2 count_repeats(const Repeat* repeats, std::uint32_t num,
                                                  std::int32_t id, int token, unsigned own) {
  const unsigned below = (1u << threadIdx.x % kLanes) - 1;
  int before = 0;
#pragma unroll 1
  for (std::uint32_t i = 0; i < num; ++i) {
    before += repeats[i].expert == id && repeats[i].token < token ? 1 : 0;
  }
  return {before, __popc(__match_any_sync(kAllLanes, id) & own & below)};
}

/// Tells every peer what comes. `chosen`: by all tokens.
__device__ __forceinline__ void announce(const DispatchArgs& a, std::uint64_t call,
                                         const TokenBits& chosen) {
  const std::size_t at = a.layout.announcement(call, a.rank);
  const int num_experts = a.ownership.num_experts;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_experts + a.ownership.num_ranks;
       i += kExchangeThreads) {
    const bool is_rank = i >= num_experts;
    const int to = is_rank ? i - num_experts : a.ownership.owner(i);
    const int nth = is_rank ? 0 : 1 + i - a.ownership.first(to);
    store_record(a.windows.base[to] + at + static_cast<std::size_t>(nth) * kRecordBytes,
                 chosen.total(i), tag_of(call));
  }
}

/// Some tokens of a chunk and where they go, by a warp; a lane is a choice. The highest choice of
/// each rank leads it: returned rows are summed in that order.
struct RoutedTokens {
  int lane;
  int token;  ///< of this lane; -1: none
  int k;
  std::int32_t id;
  bool is_valid;
  std::int32_t rank;     ///< -1: none
  unsigned leaders;      ///< choices of this lane's token that lead, as lanes
  std::uint32_t number;  ///< of the token's row for this rank, if this choice leads
  std::uint32_t place;   ///< of the choice's row for its expert

  __device__ __forceinline__ RoutedTokens(const DispatchArgs& a, std::uint64_t call,
                                          const ChoiceLanes& lanes, const TokenBits& chosen,
                                          std::int32_t own_id, int chunk, int first, int end)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        token(lanes.token < lanes.num_tokens && first + lanes.token < end ? first + lanes.token
                                                                          : -1),
        k(lanes.k),
        id(own_id),
        is_valid(names_expert(a, id)),
        rank(is_valid ? a.ownership.owner(id) : -1) {
    const unsigned own = own_lanes(a);
    const int in_chunk = token - chunk;
    const unsigned same_rank =
        __match_any_sync(kAllLanes, is_valid ? lanes.token * kMaxPushRanks + rank : -1);
    const bool leads = is_valid && same_rank >> lane == 1;
    leaders = __ballot_sync(kAllLanes, leads) & own;
    number = leads ? chosen.before(a.ownership.num_experts + rank, in_chunk) : 0;
    place = is_valid ? chosen.before(id, in_chunk) : 0;
    bool is_twice = false;
    if (*chosen.num_repeats != 0) [[unlikely]] {
      const int2 again = count_repeats(chosen.repeats, *chosen.num_repeats, id, in_chunk, own);
      place += again.x + again.y;
      is_twice = is_valid && again.y != 0 && a.rows_layout == Layout::kBatched;
    }
    const bool is_bad = token >= 0 && (id < -1 || id >= a.ownership.num_experts || is_twice);
    if (is_bad) [[unlikely]] {
      give_up(a.watch, WaitFailure::kInvalidId, {WaitPlace::kInput, a.rank, token, call}, k, id, 0);
    }
    __syncwarp();
  }

  /// Tells every rank that gets a row what it is.
  __device__ __forceinline__ void tell(const DispatchArgs& a, std::uint64_t call,
                                       float weight) const {
    const std::uint32_t tag = tag_of(call);
    const bool has_routes = a.layout.shape.sends_routes;
    const auto local = static_cast<std::uint32_t>(is_valid ? id - a.ownership.first(rank) : 0);
    const std::uint32_t route = local << a.layout.place_bits | place;
    const auto sent_id = static_cast<std::uint32_t>(is_valid ? id : -1);
    unsigned left = token < 0 ? 0 : leaders;
#pragma unroll 1
    while (__any_sync(kAllLanes, left != 0)) {
      const int leader = left == 0 ? lane : __ffs(left) - 1;
      const int to = __shfl_sync(kAllLanes, rank, leader);
      const std::uint32_t n = __shfl_sync(kAllLanes, number, leader);
      if (left != 0) {
        std::byte* at = a.windows.base[to] + a.layout.routes(call, a.rank, n);
        std::byte* own = at + (1 + static_cast<std::size_t>(k)) * kRecordBytes;
        const std::uint32_t here = rank == to ? route : kNoRoute;
        if (k == 0) store_record(at, static_cast<std::uint32_t>(token), tag);
        store_record(own, has_routes ? here : sent_id, tag);
        if (a.layout.shape.sends_weights) {
          store_record(own + static_cast<std::size_t>(a.num_topk) * kRecordBytes,
                       __float_as_uint(weight), tag);
        }
      }
      left &= left - 1;
    }
  }

  /// Which returned rows a token's sum will have, in order, for its combine.
  __device__ __forceinline__ void keep_terms(const DispatchArgs& a, float weight) const {
    const bool by_choice = a.reduce == Reduce::kPerExpert;
    const unsigned valid = __ballot_sync(kAllLanes, is_valid);
    if (token < 0) return;
    const unsigned terms = by_choice ? valid & own_lanes(a) : leaders;
    if (k == 0) a.state.num_terms[token] = __popc(terms);
    if ((terms >> lane & 1) == 0) return;
    const std::int64_t to = std::int64_t{token} * a.num_topk + __popc(terms & ((1u << lane) - 1));
    a.state.columns[to] = by_choice ? k : a.layout.column(rank, k);
    a.state.term_ranks[to] = rank;
    if (by_choice) a.state.term_weights[to] = weight;
  }

 private:
  /// The lanes of this lane's token.
  __device__ __forceinline__ unsigned own_lanes(const DispatchArgs& a) const {
    const int first = lane - k;
    const int last = min(first + a.num_topk, kLanes) - 1;
    return (2u << last) - (1u << first);
  }
};

/// What a router does: goes through the tokens chunk by chunk and tells where its own go. The first
/// router has none and, after all, announces.
struct Router {
  const DispatchArgs& a;
  TokenBits chosen;
  ChoiceLanes lanes;
  int begin;  ///< its tokens
  int end;
  int last;  ///< beyond the tokens that it looks at
  // Asked for: ids of two rounds, then id and weight of what this warp tells first.
  std::int32_t ids[2];
  std::int32_t own_id;
  float own_weight;

  __device__ __forceinline__ Router(const DispatchArgs& args, int router, std::byte* memory)
      : a(args), chosen(args, memory), lanes(args) {
    begin = (router - 1) * a.tokens_per_router;
    end = min(begin + a.tokens_per_router, a.num_tokens);
    if (router == 0) begin = end = a.num_tokens;
    last = end;
    ask(0);
  }
  /// This warp's first token of a round.
  __device__ __forceinline__ int first(int round, int chunk) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return chunk + (round * kExchangeWarps + warp) * lanes.num_tokens;
  }
  __device__ __forceinline__ int end_of(int chunk) const {
    return min(chunk + chosen.words * kLanes, last);
  }
  __device__ __forceinline__ int first_own(int chunk) const {
    return max(begin, chunk) + static_cast<int>(threadIdx.x) / kLanes * lanes.num_tokens;
  }
  /// All loads of a chunk's first wait.
  __device__ __forceinline__ void ask(int chunk) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ids[i] = lanes.load(a, first(i, chunk), end_of(chunk));
    ask_own(first_own(chunk), chunk);
  }
  __device__ __forceinline__ void ask_own(int at, int chunk) {
    const int stop = min(end, end_of(chunk));
    own_id = lanes.load(a, at, stop);
    const bool has_weight =
        a.topk_weights != nullptr && lanes.token < lanes.num_tokens && at + lanes.token < stop;
    const std::int64_t choice = std::int64_t{at + lanes.token} * a.num_topk + lanes.k;
    own_weight = has_weight ? __ldg(a.topk_weights + choice) : 1.0f;
  }
  /// Takes a chunk in; loads are a round ahead.
  __device__ __forceinline__ void look_at(int chunk) {
#pragma unroll 1
    for (int round = 0; first(round, chunk) < end_of(chunk); round += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int32_t id = ids[i];
        ids[i] = lanes.load(a, first(round + 2 + i, chunk), end_of(chunk));
        chosen.add(a, first(round + i, chunk) - chunk + lanes.token, id);
      }
    }
  }
  __device__ __forceinline__ void tell_own(std::uint64_t call, int chunk) {
    const int stop = min(end, end_of(chunk));
#pragma unroll 1
    for (int at = first_own(chunk); at < stop;) {
      const RoutedTokens routed(a, call, lanes, chosen, own_id, chunk, at, stop);
      const float weight = own_weight;
      at += kExchangeWarps * lanes.num_tokens;
      ask_own(at, chunk);
      routed.tell(a, call, weight);
      routed.keep_terms(a, weight);
    }
  }
};

/// `memory`: shared.
__device__ __forceinline__ void route_tokens(const DispatchArgs& a, CallOfCta& call, int number,
                                             std::byte* memory) {
  Router router(a, number, memory);
  router.chosen.clear();
  call.ask(a);
  __syncthreads();
  if (call.has_failed != 0) return;
#pragma unroll 1
  for (int chunk = 0;;) {
    router.look_at(chunk);
    __syncthreads();
    router.tell_own(call.number, chunk);
    const int next = router.end_of(chunk);
    const bool is_over = next >= router.last;
    if (is_over && (number != 0 || *router.chosen.num_repeats == 0)) break;
    __syncthreads();
    router.chosen.advance();
    if (is_over) break;
    chunk = next;
    router.ask(chunk);
  }
  if (number == 0) announce(a, call.number, router.chosen);
}

}  // namespace switchyard
