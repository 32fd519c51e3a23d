// SPDX-License-Identifier: Apache-2.0
//
// dispatch_route.cuh: what follows from the ids of a token and of those before it: the number of
// its row among the rows for a rank, and its place among those for an expert. Routers tell it to
// the peers, while senders, which need none of it, send the rows themselves.
#pragma once

#include "cuda/dispatch_count.cuh"

namespace switchyard {

/// A choice of an expert that its token has chosen before.
struct Repeat {
  std::int32_t expert;
  std::int32_t token;  ///< of the chunk
};

struct Choice {
  std::int32_t id;
  float weight;
};

/// Up to 32 tokens of a router, in shared memory. Of each expert and rank a word says which of them
/// chose it: how many earlier ones did is a count of bits, whatever order threads work in.
struct TokenChunk {
  std::uint32_t* num_repeats;
  Repeat* repeats;
  Choice* choices;
  std::uint32_t* counts;  ///< [E + P] by the tokens before the chunk
  std::uint32_t* bits;    ///< [E + P]
  int size;               ///< E + P

  __device__ __forceinline__ TokenChunk(const DispatchArgs& a, std::byte* memory)
      : num_repeats(reinterpret_cast<std::uint32_t*>(memory)),
        repeats(reinterpret_cast<Repeat*>(memory) + 1),
        choices(reinterpret_cast<Choice*>(repeats + kLanes * a.num_topk)),
        counts(reinterpret_cast<std::uint32_t*>(choices + kLanes * a.num_topk)),
        bits(counts + a.ownership.num_experts + a.ownership.num_ranks),
        size(a.ownership.num_experts + a.ownership.num_ranks) {}

  __device__ __forceinline__ void clear() const {
    if (threadIdx.x == 0) *num_repeats = 0;
    clear_words(counts, 2 * size);
  }
  /// `index`: of the choice in the chunk.
  __device__ __forceinline__ void add(const DispatchArgs& a, int token, int index,
                                      const Choice& choice) const {
    choices[index] = choice;
    const std::int32_t id = choice.id;
    if (!names_expert(a, id)) return;
    const std::uint32_t bit = 1u << token;
    atomicOr(bits + a.ownership.num_experts + a.ownership.owner(id), bit);
    if ((atomicOr(bits + id, bit) & bit) != 0) [[unlikely]] {
      repeats[atomicAdd(num_repeats, 1u)] = {id, token};
    }
  }
  /// How many tokens before one of the chunk chose an expert, or, from E on, a rank. Repeats of the
  /// chunk aside.
  __device__ __forceinline__ std::uint32_t before(int index, int token) const {
    return counts[index] + __popc(bits[index] & ((1u << token) - 1));
  }
  /// Begins and ends with a barrier.
  __device__ __forceinline__ void advance() const {
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kExchangeThreads) {
      counts[i] += __popc(bits[i]);
      bits[i] = 0;
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

/// Bytes of shared memory of a router.
inline std::size_t router_bytes(const DispatchArgs& a) {
  const auto choices = static_cast<std::size_t>(kLanes * a.num_topk);
  const auto size = static_cast<std::size_t>(a.ownership.num_experts + a.ownership.num_ranks);
  return (1 + choices) * sizeof(Repeat) + choices * sizeof(Choice) +
         2 * size * sizeof(std::uint32_t);
}

/// The rare way: how often a choice's expert was chosen again, by tokens of the chunk before, and
/// by its own.
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

/// Some tokens of a chunk, by a warp; a lane is a choice.
struct RoutedTokens {
  int lane;
  int k;
  int in_chunk;  ///< of the token
  bool is_there;
  Choice choice;
  bool is_valid;
  std::int32_t rank;  ///< -1: none
  unsigned own;       ///< the lanes of this lane's token
  int2 repeats;

  __device__ __forceinline__ RoutedTokens(const DispatchArgs& a, const ChoiceLanes& lanes,
                                          const TokenChunk& chunk, int first, int size)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        k(lanes.k),
        in_chunk(first + lanes.token),
        is_there(lanes.token < lanes.num_tokens && in_chunk < size),
        choice(is_there ? chunk.choices[in_chunk * a.num_topk + k] : Choice{-1, 0.0f}),
        is_valid(names_expert(a, choice.id)),
        rank(is_valid ? a.ownership.owner(choice.id) : -1),
        repeats{0, 0} {
    const int begin = lane - k;
    const int last = min(begin + a.num_topk, kLanes) - 1;
    own = (2u << last) - (1u << begin);
    const std::uint32_t num_repeats = *chunk.num_repeats;
    if (num_repeats != 0) [[unlikely]] {
      repeats = count_repeats(chunk.repeats, num_repeats, choice.id, in_chunk, own);
    }
  }

  /// Tells a rank what the rows are that it gets.
  __device__ __forceinline__ void tell(const DispatchArgs& a, std::uint64_t call, int token, int to,
                                       const TokenChunk& chunk) const {
    const unsigned chose = __ballot_sync(kAllLanes, rank == to) & own;
    if (!is_there || chose == 0) return;
    const std::uint32_t tag = tag_of(call);
    const std::uint32_t number = chunk.before(a.ownership.num_experts + to, in_chunk);
    std::byte* at = a.windows.base[to] + a.layout.routes(call, a.rank, number);
    std::uint32_t value = is_valid ? static_cast<std::uint32_t>(choice.id) : kNoRoute;
    if (a.layout.shape.sends_routes) {
      value = kNoRoute;
      if (rank == to) {
        const std::uint32_t place =
            chunk.before(choice.id, in_chunk) + static_cast<unsigned>(repeats.x + repeats.y);
        value = static_cast<std::uint32_t>(choice.id - a.ownership.first(to))
                    << a.layout.place_bits |
                place;
      }
    }
    if (k == 0) store_record(at, static_cast<std::uint32_t>(token), tag);
    store_record(at + (1 + k) * static_cast<int>(kRecordBytes), value, tag);
    if (a.layout.shape.sends_weights) {
      store_record(at + (1 + a.num_topk + k) * static_cast<int>(kRecordBytes),
                   __float_as_uint(choice.weight), tag);
    }
  }

  /// Keeps which returned rows a token's sum will have, in order, for its combine: the highest
  /// choice of each rank leads it.
  __device__ __forceinline__ void keep(const DispatchArgs& a, std::uint64_t call, int token) const {
    const bool by_choice = a.reduce == Reduce::kPerExpert;
    const unsigned same =
        __match_any_sync(kAllLanes, is_valid ? (lane - k) * kMaxPushRanks + rank : -1);
    const bool has_term = is_valid && (by_choice || same >> lane == 1);
    const unsigned terms = __ballot_sync(kAllLanes, has_term) & own;
    if (!is_there) return;
    const bool is_twice = is_valid && repeats.y != 0 && a.rows_layout == Layout::kBatched;
    if (choice.id < -1 || choice.id >= a.ownership.num_experts || is_twice) [[unlikely]] {
      give_up(a.watch, WaitFailure::kInvalidId, {WaitPlace::kInput, a.rank, token, call}, k,
              choice.id, 0);
    }
    if (k == 0) a.state.num_terms[token] = __popc(terms);
    if (!has_term) return;
    const std::int64_t to = std::int64_t{token} * a.num_topk + __popc(terms & ((1u << lane) - 1));
    a.state.columns[to] = by_choice ? k : a.layout.column(rank, k);
    a.state.term_ranks[to] = rank;
    if (by_choice) a.state.term_weights[to] = choice.weight;
  }
};

/// The choices of a chunk on their way to it, one or more of each thread.
struct ChunkLoad {
  ChoiceLanes lanes;
  int first;  ///< token
  int size;
  GivenId id;
  float weight;

  __device__ __forceinline__ ChunkLoad(const DispatchArgs& a, int begin, int end)
      : lanes(a), first(begin), size(min(end - begin, kLanes)) {
    ask(a, token(0));
  }
  /// This thread's token of a round, of the chunk.
  __device__ __forceinline__ int token(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return lanes.token < lanes.num_tokens
               ? (round * kExchangeWarps + warp) * lanes.num_tokens + lanes.token
               : kLanes;
  }
  __device__ __forceinline__ void ask(const DispatchArgs& a, int in_chunk) {
    if (in_chunk >= size) return;
    const std::int64_t at = std::int64_t{first + in_chunk} * a.num_topk + lanes.k;
    id.ask(a, at);
    weight = 1.0f;
    if (a.topk_weights != nullptr) weight = __ldg(a.topk_weights + at);
  }
  __device__ __forceinline__ void add_to(const DispatchArgs& a, const TokenChunk& chunk) {
#pragma unroll 1
    for (int round = 0, t = token(0); t < size;) {
      chunk.add(a, t, t * a.num_topk + lanes.k, {id.value(a), weight});
      t = token(++round);
      ask(a, t);
    }
  }
};

/// Tells where a run of tokens goes, and keeps it. `memory`: shared.
__device__ __forceinline__ void route_tokens(const DispatchArgs& a, CallOfCta& call, int router,
                                             std::byte* memory) {
  const int begin = router * a.tokens_per_router;
  const int end = min(begin + a.tokens_per_router, a.num_tokens);
  // All loads of the first wait, then what waits for them.
  TokenCount before(a, begin);
  ChunkLoad own(a, begin, end);
  const TokenChunk chunk(a, memory);
  chunk.clear();
  call.ask(a);
  __syncthreads();
  if (call.has_failed != 0) return;
  before.count(a, chunk.counts);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (;;) {
    own.add_to(a, chunk);
    __syncthreads();
    // A warp for each rank that gets some of the tokens, and one that keeps what they chose.
    int item = warp;
#pragma unroll 1
    for (;; item += kExchangeWarps) {
      const int group = a.by_told.quotient(item);
      const int to = item - group * static_cast<int>(a.by_told.divisor);
      const int first = group * own.lanes.num_tokens;
      if (first >= own.size) break;
      const RoutedTokens routed(a, own.lanes, chunk, first, own.size);
      const int token = own.first + routed.in_chunk;
      if (to < a.ownership.num_ranks) {
        routed.tell(a, call.number, token, to, chunk);
      } else {
        routed.keep(a, call.number, token);
      }
    }
    const int next = own.first + kLanes;
    if (next >= end) return;
    own = ChunkLoad(a, next, end);
    chunk.advance();
  }
}

}  // namespace switchyard
