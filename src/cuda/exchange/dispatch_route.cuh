// SPDX-License-Identifier: Apache-2.0
//
// dispatch_route.cuh: what follows from the ids of a token and of those before it: the number of
// its row among the rows for a rank, and its place among the rows for an expert (how often earlier
// tokens chose it). Notify CTAs send these routes to the peers, rank by rank. Senders need none of
// this and send the rows at the same time.
#pragma once

#include "cuda/exchange/dispatch_count.cuh"

namespace switchyard::cuda {

/// A choice of an expert that its token has already chosen.
struct Repeat {
  std::int32_t expert;
  std::int32_t token;  ///< index in the block
};

struct Choice {
  std::int32_t id;
  float weight;
};

/// The start of a notify CTA's dynamic shared memory. Rows and bits per expert of a rank follow,
/// then the repeats and choices of a block.
struct NotifyShared {
  std::uint32_t num_tokens;
  std::uint32_t num_repeats;
  std::uint32_t goes;  ///< mask of the tokens of the block that go to the rank
};

/// Up to 32 tokens and what a rank gets of them. Each expert has a word whose bits say which tokens
/// chose it. How many earlier ones did is then a popcount, in whatever order threads work.
struct TokenBlock {
  NotifyShared* shared;
  RankCount before;     ///< rows of the tokens before the block
  std::uint32_t* bits;  ///< one word per expert
  Repeat* repeats;
  Choice* choices;

  __device__ __forceinline__ TokenBlock(const DispatchArgs& a, int num_experts, std::byte* memory)
      : shared(reinterpret_cast<NotifyShared*>(memory)),
        before{&shared->num_tokens, reinterpret_cast<std::uint32_t*>(shared + 1)},
        bits(before.rows + num_experts),
        repeats(reinterpret_cast<Repeat*>(bits + num_experts)),
        choices(reinterpret_cast<Choice*>(repeats + kLanes * a.num_topk)) {}

  __device__ __forceinline__ void clear(const ExpertRange& experts) const {
    constexpr int kWords = sizeof(NotifyShared) / sizeof(std::uint32_t);
    clear_words(&shared->num_tokens, kWords + 2 * experts.count);
  }
  /// `index` is that of the choice in the block.
  __device__ __forceinline__ void add(const ExpertRange& experts, int token, int index,
                                      const Choice& choice) const {
    choices[index] = choice;
    if (!experts.has(choice.id)) return;
    const std::uint32_t bit = 1u << token;
    atomicOr(&shared->goes, bit);
    if ((atomicOr(bits + (choice.id - experts.first), bit) & bit) != 0) [[unlikely]] {
      repeats[atomicAdd(&shared->num_repeats, 1u)] = {choice.id, token};
    }
  }
  /// Adds the block's rows to `before` and clears its bits. Begins and ends with a barrier.
  __device__ __forceinline__ void advance(const ExpertRange& experts) const {
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < experts.count; i += cta_threads()) {
      before.rows[i] += __popc(bits[i]);
      bits[i] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < shared->num_repeats; i += blockDim.x) {
      atomicAdd(before.rows + (repeats[i].expert - experts.first), 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      shared->num_repeats = 0;
      shared->num_tokens += __popc(shared->goes);
      shared->goes = 0;
    }
    __syncthreads();
  }
};

/// Bytes of dynamic shared memory that a notify CTA needs.
inline std::size_t notify_shared_bytes(const DispatchArgs& a) {
  const auto choices = static_cast<std::size_t>(kLanes * a.num_topk);
  const auto experts = static_cast<std::size_t>(a.layout.shape.max_local_experts);
  return sizeof(NotifyShared) + 2 * experts * sizeof(std::uint32_t) +
         choices * (sizeof(Repeat) + sizeof(Choice));
}

/// Slow path: how many earlier choices of `id` the bits do not count: repeats in earlier tokens of
/// the block, and choices of the same token.
__device__ __noinline__ inline int count_repeats(const TokenBlock& block, std::int32_t id,
                                                 int token, unsigned own_below) {
  int before = 0;
#pragma unroll 1
  for (std::uint32_t i = 0; i < block.shared->num_repeats; ++i) {
    before += block.repeats[i].expert == id && block.repeats[i].token < token ? 1 : 0;
  }
  return before + __popc(__match_any_sync(kAllLanes, id) & own_below);
}

/// Sends rank `to` the routes of its rows, for as many tokens as fit in a warp, from token `first`
/// of the block on.
__device__ __forceinline__ void send_routes_to(const DispatchArgs& a, std::uint64_t call, int to,
                                               const ExpertRange& experts, const ChoiceLanes& lanes,
                                               const TokenBlock& block, int block_begin, int first,
                                               int size) {
  const int in_block = first + lanes.token;
  const bool is_there = lanes.is_there(first, size);
  Choice choice{-1, 0.0f};
  if (is_there) choice = block.choices[in_block * a.num_topk + lanes.k];
  int repeats = 0;
  if (block.shared->num_repeats != 0) [[unlikely]] {
    repeats = count_repeats(block, choice.id, in_block, lanes.own & lanes.below);
  }
  const std::uint32_t goes = block.shared->goes;
  if (!is_there || (goes >> in_block & 1) == 0) return;
  const std::uint32_t earlier = (1u << in_block) - 1;
  const std::uint32_t number = *block.before.num_tokens + __popc(goes & earlier);
  std::byte* at = a.windows.base[to] + a.layout.routes(call, a.rank, number);
  const bool is_local = experts.has(choice.id);
  const int local = is_local ? choice.id - experts.first : 0;
  std::uint32_t value =
      names_expert(a, choice.id) ? static_cast<std::uint32_t>(choice.id) : kNoRoute;
  if (a.layout.shape.sends_routes) {
    value = kNoRoute;
    if (is_local) {
      const std::uint32_t place = block.before.rows[local] + __popc(block.bits[local] & earlier) +
                                  static_cast<std::uint32_t>(repeats);
      value = static_cast<std::uint32_t>(local) << a.layout.place_bits | place;
    }
  }
  const std::uint32_t tag = tag_of(call);
  const auto token = static_cast<std::uint32_t>(block_begin + in_block);
  if (lanes.k == 0) store_record(at, token, tag);
  store_record(at + (1 + lanes.k) * static_cast<int>(kRecordBytes), value, tag);
  if (!a.layout.shape.sends_weights) return;
  store_record(at + (1 + a.num_topk + lanes.k) * static_cast<int>(kRecordBytes),
               __float_as_uint(choice.weight), tag);
}

/// Loads the choices of a block, one or more per thread.
struct TokenBlockLoad {
  ChoiceLanes lanes;
  int first;  ///< token of the block
  int size;
  GivenId id;
  float weight;

  __device__ __forceinline__ TokenBlockLoad(const DispatchArgs& a, int begin, int end)
      : lanes(a), first(begin), size(min(end - begin, kLanes)) {
    request(a, token(0));
  }
  /// This thread's token in a round, as an index in the block.
  __device__ __forceinline__ int token(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    return lanes.token < lanes.num_tokens
               ? (round * cta_warps() + warp) * lanes.num_tokens + lanes.token
               : kLanes;
  }
  __device__ __forceinline__ void request(const DispatchArgs& a, int in_block) {
    if (in_block >= size) return;
    const std::int64_t at = std::int64_t{first + in_block} * a.num_topk + lanes.k;
    id.request(a.tokens.ids, at);
    weight = 1.0f;
    if (a.tokens.topk_weights != nullptr) weight = a.tokens.topk_weights[at];
  }
  __device__ __forceinline__ void add_to(const DispatchArgs& a, const ExpertRange& experts,
                                         const TokenBlock& block) {
#pragma unroll 1
    for (int round = 0, t = token(0); t < size;) {
      block.add(experts, t, t * a.num_topk + lanes.k, {id.value(a.tokens.ids), weight});
      t = token(++round);
      request(a, t);
    }
  }
};

/// Announces to rank `to` how many rows it gets; keeps the partial sums of a share of the tokens.
__device__ __forceinline__ void notify_counts(const DispatchArgs& a, std::uint32_t prefetched,
                                              CallOfCta& call, int to, std::byte* memory) {
  // All loads of the first wait, then what waits for them.
  TokenCount all(a, a.tokens.count);
  const ExpertRange experts(a, to);
  const TokenBlock block(a, experts.count, memory);
  block.clear(experts);
  call.request(a, prefetched);
  __syncthreads();
  if (call.has_failed != 0) return;
  all.count(a, experts, block.before);
  __syncthreads();
  stamp(a, Stage::kCallKnown);
  if (has_rank(a.sends_to, to)) announce(a, call.number, to, experts, block.before);
  stamp(a, Stage::kFirstStore);
  keep_partials(a, call.number, to * a.grid.tokens_per_task,
                min((to + 1) * a.grid.tokens_per_task, a.tokens.count));
}

/// Tells a rank where the rows of a run of tokens go. What the tokens before the run chose is
/// counted again from token 0: the CTA of the run before knows it, but a CTA that asks another one
/// waits for it, and only receivers may wait (dispatch_kernel.cuh). Ids are few beside rows, all
/// CTAs read the same ones, and their loads overlap (TokenCount).
__device__ __forceinline__ void notify_routes(const DispatchArgs& a, std::uint32_t prefetched,
                                              CallOfCta& call, int to, int begin,
                                              std::byte* memory) {
  const int end = min(begin + a.grid.tokens_per_run, a.tokens.count);
  TokenCount before(a, begin);
  TokenBlockLoad own(a, begin, end);
  const ExpertRange experts(a, to);
  const TokenBlock block(a, experts.count, memory);
  block.clear(experts);
  call.request(a, prefetched);
  __syncthreads();
  if (call.has_failed != 0) return;
  before.count(a, experts, block.before);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (;;) {
    own.add_to(a, experts, block);
    __syncthreads();
#pragma unroll 1
    for (int first = warp * own.lanes.num_tokens; first < own.size;
         first += cta_warps() * own.lanes.num_tokens) {
      send_routes_to(a, call.number, to, experts, own.lanes, block, own.first, first, own.size);
    }
    const int next = own.first + kLanes;
    if (next >= end) return;
    own = TokenBlockLoad(a, next, end);
    block.advance(experts);
  }
}

}  // namespace switchyard::cuda
