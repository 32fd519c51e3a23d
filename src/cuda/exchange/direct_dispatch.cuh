// SPDX-License-Identifier: Apache-2.0
//
// direct_dispatch.cuh: the dispatch that stores rows straight to their places. The first CTAs
// announce this rank's counts and wait for nobody. The others, senders, wait for the counts of all
// ranks, which the first CTAs of the peers send, store their share of the rows, fence, and set a
// flag at every rank. Only the last one then waits for rows: when it runs, all others have started.
#pragma once

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/direct_places.cuh"
#include "cuda/exchange/dispatch_scatter.cuh"

namespace switchyard::cuda {

/// Chunks that a warp makes before it stores the first. Where they are only copied, loads overlap.
template <class Form>
inline constexpr int kChunksTogether = 1;
template <>
inline constexpr int kChunksTogether<PlainForm16> = 2;
template <>
inline constexpr int kChunksTogether<StoredForm8> = 4;

/// Announces to rank `to` how many rows it gets, as dispatch_count.cuh does, and tells every rank
/// how many rows go there.
__device__ __forceinline__ void announce_counts(const DirectDispatchArgs& a,
                                                std::uint32_t prefetched, CallOfCta& call, int to,
                                                std::byte* memory) {
  TokenCount all(a, a.tokens.count);
  const ExpertRange experts(a, to);
  auto* words = reinterpret_cast<std::uint32_t*>(memory);
  const RankCount sum{words, words + 1};
  clear_words(words, 1 + experts.count);
  call.request(a, prefetched);
  __syncthreads();
  if (call.has_failed != 0) return;
  all.count(a, experts, sum);
  __syncthreads();
  stamp(a, Stage::kCallKnown);
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer < a.ownership.num_ranks) {
    store_record(a.windows.base[peer] + a.direct.count(a.rank, to), *sum.num_tokens,
                 tag_of(call.number));
  }
  announce(a, call.number, to, experts, sum);
  stamp(a, Stage::kFirstStore);
  __syncthreads();
}

/// Consecutive chunks of a token in wire form, without what certifies them on the wire.
template <class Form>
struct ChunkGroup {
  static constexpr int kChunks = kChunksTogether<Form>;
  static_assert(kChunks <= kMaxChunksTogether);
  std::uint32_t words[kChunks][Form::kWords];

  /// Those from `chunk` on that are before `end`.
  __device__ __forceinline__ void make(const DispatchArgs& a, int token, int chunk, int end,
                                       int lane, std::uint8_t* scales) {
    VecSource from(a, token, chunk, lane);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (chunk + i < end) Form::make(a, from, lane, words[i], scales + i * kMaxChunkScaleBytes);
      from.advance();
    }
  }
  __device__ __forceinline__ void store(const DispatchArgs& a, int chunk, int end, int lane,
                                        const Target& to, const std::uint8_t* scales) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (chunk + i >= end) break;
      const bool has_elements =
          (chunk + i) * kChunkElements + lane * kVecElements < a.layout.shape.hidden;
      std::uint32_t copy[Form::kWords];
      scatter_chunk(a, chunk + i, lane, has_elements, words[i], copy, 1, &to,
                    LaneScale(a, chunk + i, lane, scales + i * kMaxChunkScaleBytes));
    }
  }
};

/// The same place in the window of another rank.
template <typename T>
__device__ __forceinline__ T* moved_by(T* own, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(own) +
                              static_cast<std::uintptr_t>(bytes));
}
__device__ __forceinline__ std::ptrdiff_t distance_to(const DispatchArgs& a, int rank) {
  return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(a.windows.base[rank]) -
                                     reinterpret_cast<std::uintptr_t>(a.windows.base[a.rank]));
}

/// What lane k knows of a token: choice k.
struct TokenChoice {
  std::int32_t id;
  float weight;

  __device__ __forceinline__ TokenChoice(const DispatchArgs& a, int token, int lane)
      : id(-1), weight(1.0f) {
    if (lane >= a.num_topk) return;
    const std::int64_t at = std::int64_t{token} * a.num_topk + lane;
    GivenId given;
    given.request(a.tokens.ids, at);
    id = given.value(a.tokens.ids);
    if (a.tokens.topk_weights != nullptr) weight = a.tokens.topk_weights[at];
  }
};

/// Stores what keep_row (dispatch_receive.cuh) keeps, for row `row` of rank `to`, the `number`th of
/// this rank there.
__device__ __forceinline__ void store_row_facts(const DispatchArgs& a, int to, std::int32_t row,
                                                std::int32_t number, int token, int lane,
                                                const TokenChoice& choice) {
  const std::ptrdiff_t moved = distance_to(a, to);
  const int arrival = a.rank * static_cast<int>(a.layout.shape.max_tokens) + number;
  if (lane == 0) moved_by(a.state.arrival_token, moved)[arrival] = token;
  if (lane >= a.num_topk) return;
  const ExpertRange experts(a, to);
  const bool is_there = experts.has(choice.id);
  const std::int64_t kept_at = std::int64_t{arrival} * a.num_topk + lane;
  moved_by(a.state.arrival_rows, moved)[kept_at] = is_there ? row : -1;
  const std::int64_t at = std::int64_t{row} * a.num_topk + lane;
  if (a.received.row_ids != nullptr) {
    const std::int32_t global = names_expert(a, choice.id) ? choice.id : -1;
    const std::int32_t local = is_there ? choice.id - experts.first : -1;
    moved_by(a.received.row_ids, moved)[at] = a.rows_layout == Layout::kCompact ? local : global;
  }
  if (a.layout.shape.sends_weights && a.received.row_weights != nullptr) {
    moved_by(a.received.row_weights, moved)[at] = choice.weight;
  }
}

/// What a sender has: items begin to end of all tokens, each some chunks of a token.
struct DirectShare {
  int begin;
  int end;
  int of_token;

  __device__ __forceinline__ DirectShare(const DispatchArgs& a, int sender)
      : of_token(static_cast<int>(a.grid.by_chunks.divisor)) {
    const std::int64_t all = std::int64_t{a.tokens.count} * of_token;
    begin = static_cast<int>(all * sender / a.grid.num_senders);
    end = static_cast<int>(all * (sender + 1) / a.grid.num_senders);
  }
};

/// A warp's next item, and its first chunks where they are made already.
template <class Form>
struct DirectItem {
  int item;
  bool is_made = false;
  ChunkGroup<Form> group;

  __device__ __forceinline__ void make_first(const DispatchArgs& a, int end, int lane,
                                             std::uint8_t* scales) {
    if (item >= end) return;
    const int token = a.grid.by_chunks.quotient(item);
    const int chunk =
        (item - token * static_cast<int>(a.grid.by_chunks.divisor)) * a.grid.chunks_per_item;
    group.make(a, token, chunk, min(chunk + a.grid.chunks_per_item, a.layout.num_chunks), lane,
               scales);
    is_made = true;
  }
  /// `batch`: the first token of shared.numbers().
  __device__ __forceinline__ void send(const DirectDispatchArgs& a, int batch, int lane,
                                       std::uint8_t* scales, DirectShared& shared) {
    const int num_ranks = a.ownership.num_ranks;
    const int token = a.grid.by_chunks.quotient(item);
    const int first =
        (item - token * static_cast<int>(a.grid.by_chunks.divisor)) * a.grid.chunks_per_item;
    const int end = min(first + a.grid.chunks_per_item, a.layout.num_chunks);
    const std::int32_t* numbers = shared.numbers() + (token - batch) * num_ranks;
    const auto for_each_rank = [&](const auto& store) {
#pragma unroll 1
      for (int turn = 1; turn <= num_ranks; ++turn) {
        const int to = a.rank + turn < num_ranks ? a.rank + turn : a.rank + turn - num_ranks;
        if (numbers[to] >= 0) store(to, shared.first[to] + numbers[to], numbers[to]);
      }
    };
    if (first == 0) {
      const TokenChoice choice(a, token, lane);
      for_each_rank([&](int to, std::int32_t row, std::int32_t number) {
        store_row_facts(a, to, row, number, token, lane, choice);
      });
    }
#pragma unroll 1
    for (int chunk = first; chunk < end; chunk += ChunkGroup<Form>::kChunks) {
      if (!is_made) group.make(a, token, chunk, end, lane, scales);
      is_made = false;
      for_each_rank([&](int to, std::int32_t row, std::int32_t) {
        const std::ptrdiff_t moved = distance_to(a, to);
        Target target = target_of(a, row, 0);
        target.row = moved_by(target.row, moved);
        target.scales = moved_by(target.scales, moved);
        group.store(a, chunk, end, lane, target, scales);
      });
      stamp(a, Stage::kFirstStore);
      __syncwarp();
    }
  }
};

/// Stores a sender's share of the rows, then its flags. False: gave up, or has failed before.
template <class Form>
__device__ __forceinline__ bool store_rows(const DirectDispatchArgs& a, std::uint32_t prefetched,
                                           CallOfCta& current, int sender, DirectShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_ranks = a.ownership.num_ranks;
  const DirectShare share(a, sender);
  std::uint8_t* scales = shared.scales[warp];
  DirectItem<Form> own;
  own.item = share.begin + warp;
  own.make_first(a, share.end, lane, scales);
  current.request(a, prefetched);
  static_assert(kMaxPushRanks <= kMinExchangeThreads);
  if (threadIdx.x < kMaxPushRanks) {
    shared.next[threadIdx.x] = 0;
    shared.first[threadIdx.x] = a.rank * a.received.source_rows;
  }
  if (threadIdx.x == 0) shared.failed = 0;
  __syncthreads();
  stamp(a, Stage::kCallKnown);
  if (current.has_failed != 0) return false;
  const std::uint64_t call = current.number;
  const int first_token = share.begin / share.of_token;
  const int end_token = (share.end + share.of_token - 1) / share.of_token;
  count_tokens_before(a, first_token, shared);
  keep_partials(a, call, (share.begin + share.of_token - 1) / share.of_token, end_token);
  receive_counts(a, call, shared);
  __syncthreads();
  stamp(a, Stage::kAnnouncementSeen);
  if (shared.failed != 0) return false;
#pragma unroll 1
  for (int batch = first_token; batch < end_token; batch += kDirectTokens) {
    if (warp == 0) find_direct_rows(a, batch, end_token, lane, shared);
    __syncthreads();
    const int end = min(share.end, (batch + kDirectTokens) * share.of_token);
#pragma unroll 1
    for (; own.item < end; own.item += cta_warps()) own.send(a, batch, lane, scales, shared);
    __syncthreads();
  }
  if (static_cast<int>(threadIdx.x) < num_ranks) {
    __threadfence_system();  // behind the stores of all threads
    store_record(a.windows.base[threadIdx.x] + a.direct.flag(a.rank, sender),
                 static_cast<std::uint32_t>(a.grid.num_senders), tag_of(call));
  }
  return true;
}

/// Waits for the rows of all ranks; one CTA does so.
__device__ __forceinline__ void await_rows(const DirectDispatchArgs& a, std::uint64_t call) {
  __shared__ std::int32_t num_senders[kMaxPushRanks];
  __shared__ std::int32_t max_senders;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_ranks = a.ownership.num_ranks;
  const std::byte* own = a.windows.base[a.rank];
  const auto wait = [&](int source, int sender, std::uint32_t& value) {
    return wait_record(own + a.direct.flag(source, sender), a.watch,
                       {WaitPlace::kRow, source, -1, call}, value);
  };
  if (threadIdx.x == 0) max_senders = 0;
  __syncthreads();
  const auto source = static_cast<int>(threadIdx.x);
  if (source < num_ranks) {
    std::uint32_t value = 0;
    if (!wait(source, 0, value)) value = 0;  // then all other waits end
    num_senders[source] = static_cast<std::int32_t>(value);
    atomicMax(&max_senders, num_senders[source]);
  }
  __syncthreads();
  const int blocks = (max_senders + kLanes - 1) / kLanes;
#pragma unroll 1
  for (int i = warp; i < blocks * num_ranks; i += cta_warps()) {
    const int block = a.grid.by_ranks.quotient(i);
    const int from = i - block * num_ranks;
    const int sender = block * kLanes + lane;
    std::uint32_t value = 0;
    if (sender < num_senders[from] && !wait(from, sender, value)) return;
  }
  __threadfence_system();  // before what the next kernels read
  stamp(a, Stage::kChunkSeen);
}

/// What the last CTA does when it has sent its share. `memory`: see ReceiverShared.
__device__ __forceinline__ void receive_all(const DirectDispatchArgs& a, std::uint64_t call,
                                            std::byte* memory) {
  auto& shared = *reinterpret_cast<ReceiverShared*>(memory);
  auto* words = reinterpret_cast<std::int32_t*>(&shared + 1);
  const int num_local = a.ownership.count(a.rank);
  const ReceivePlaces places{words, words + a.ownership.num_ranks * num_local, num_local};
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.failed = 0;
    shared.num_done = 0;
  }
  __syncthreads();
  receive_announcements(a, call, true, shared, places);
  __syncthreads();
  if (shared.failed != 0) return;
  report_totals(a, shared, places);
  await_rows(a, call);
}

template <class Form>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    direct_dispatch_kernel(const __grid_constant__ DirectDispatchArgs a, bool sends,
                           bool receives) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ CallOfCta call;
  const std::uint32_t prefetched = begin_kernel(a);
  const int cta = static_cast<int>(blockIdx.x);
  const int num_notifying = sends ? a.grid.num_notify_ctas : 0;
  if (cta < num_notifying) {
#pragma unroll 1
    for (int nth = cta; nth < a.ownership.num_ranks; nth += num_notifying) {
      const int to = nth + a.rank;
      announce_counts(a, prefetched, call,
                      to < a.ownership.num_ranks ? to : to - a.ownership.num_ranks, memory);
    }
  } else if (receives) {
    const bool is_good = store_rows<Form>(a, prefetched, call, cta - num_notifying,
                                          *reinterpret_cast<DirectShared*>(memory));
    if (is_good && blockIdx.x == gridDim.x - 1) receive_all(a, call.number, memory);
  }
  stamp_end(a);
  if (!receives) return;
  __syncthreads();
  advance_call(a.state, call.number);
}

template <class Form>
void launch_direct_form(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(args.ownership.num_ranks);
  const auto local = static_cast<std::size_t>(args.layout.shape.max_local_experts);
  const std::size_t shared =
      std::max(sizeof(DirectShared) + kDirectTokens * ranks * sizeof(std::int32_t),
               sizeof(ReceiverShared) + (ranks + 1) * local * sizeof(std::int32_t));
  const int ctas = (sends(phases) ? args.grid.num_notify_ctas : 0) +
                   (receives(phases) ? args.grid.num_senders : 0);
  const auto kernel = direct_dispatch_kernel<Form>;
  if (phases == Phases::kNone) allow_shared_memory(kernel, shared, "dispatch");
  launch_kernel(kernel, {std::max(1, ctas), kExchangeThreads, shared, programmatic, stream},
                "dispatch", args, sends(phases), receives(phases));
}

}  // namespace switchyard::cuda
