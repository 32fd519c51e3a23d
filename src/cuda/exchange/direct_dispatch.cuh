// SPDX-License-Identifier: Apache-2.0
//
// direct_dispatch.cuh: the dispatch that stores rows straight to their places. The first CTAs,
// senders, count this rank's tokens and tell every rank, then wait for the counts of all ranks,
// store their share of the rows, fence, and set a flag at every peer. CTAs behind them, notify
// CTAs, announce how many rows each expert gets. Only the last of these waits for rows: when it
// runs, all others have started.
//
// One set of received rows, counts and flags suffices, and none of it is cleared. A rank tells the
// counts of call n in its dispatch n, so after whatever read its rows of n - 1 has ended; a sender
// stores rows of n when it has read the counts of n of every rank. A dispatch ends only after the
// flag of each sender of every peer, which follows what that sender read and stored. So nobody
// still waits for counts or flags of n when those of n + 1 take their place. The records of how
// many senders a rank has are read by the last CTA, which sets no flag, so there are two sets. The
// last CTA tells its own record before it waits, and senders wait for counts alone, which depend on
// no call but earlier ones. tests/unit/plan/direct_interleaving_test.cpp walks all interleavings.
#pragma once

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/direct_places.cuh"
#include "cuda/exchange/dispatch_scatter.cuh"

namespace switchyard::cuda {

/// Announces to rank `to` how many rows it gets, as dispatch_count.cuh does.
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
  announce(a, call.number, to, experts, sum);
  __syncthreads();
}

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

/// Some consecutive chunks of a token.
struct ItemPart {
  std::int32_t token;
  std::int32_t chunk;
  std::int32_t end;  ///< chunk
};

/// A chunk in wire form, without what certifies it on the wire, and its scales in shared memory.
template <class Form>
struct RowPart {
  std::uint32_t words[Form::kWords];

  __device__ __forceinline__ void load(const DirectDispatchArgs& a, const ItemPart& of, int lane,
                                       std::uint8_t* scales) {
    Form::make(a, VecSource(a, of.token, of.chunk, lane), lane, words, scales);
  }
  /// To row `row` of the rank whose window is `moved` bytes from the own one.
  __device__ __forceinline__ void store(const DirectDispatchArgs& a, const ItemPart& of, int lane,
                                        std::int32_t row, std::ptrdiff_t moved,
                                        const std::uint8_t* scales) const {
    Target target = target_of(a, row, 0);
    target.row = moved_by(target.row, moved);
    target.scales = moved_by(target.scales, moved);
    const bool has_elements =
        of.chunk * kChunkElements + lane * kVecElements < a.layout.shape.hidden;
    std::uint32_t copy[Form::kWords];
    scatter_chunk(a, of.chunk, lane, has_elements, words, copy, 1, &target,
                  LaneScale(a, of.chunk, lane, scales));
  }
};

/// Rows that are copied: chunks are of 32 units, and the first lanes have a unit of scales each.
struct CopyForm {
  static constexpr int kMaxUnits = kMaxCopiedChunks;  ///< per lane
};
template <>
struct RowPart<CopyForm> {
  uint4 units[CopyForm::kMaxUnits];
  uint4 scales_of_row;

  __device__ __forceinline__ static bool has_scales(const DirectDispatchArgs& a, const ItemPart& of,
                                                    int lane) {
    return of.chunk == 0 && lane < a.units.scales;
  }
  __device__ __forceinline__ void load(const DirectDispatchArgs& a, const ItemPart& of, int lane,
                                       std::uint8_t*) {
    const int first = of.chunk * kLanes + lane;
    const int end = min(a.units.row, of.end * kLanes);
    const auto* from =
        reinterpret_cast<const uint4*>(a.tokens.data + of.token * a.tokens.stride) + first;
#pragma unroll
    for (int i = 0; i < CopyForm::kMaxUnits; ++i) {
      if (first + i * kLanes < end) units[i] = from[i * kLanes];
    }
    if (has_scales(a, of, lane)) {
      scales_of_row =
          reinterpret_cast<const uint4*>(a.tokens.scales + of.token * a.units.given_scales)[lane];
    }
  }
  __device__ __forceinline__ void store(const DirectDispatchArgs& a, const ItemPart& of, int lane,
                                        std::int32_t row, std::ptrdiff_t moved,
                                        const std::uint8_t*) const {
    const int first = of.chunk * kLanes + lane;
    const int end = min(a.units.row, of.end * kLanes);
    uint4* to =
        reinterpret_cast<uint4*>(moved_by(a.received.rows + row * a.received.row_bytes, moved)) +
        first;
#pragma unroll
    for (int i = 0; i < CopyForm::kMaxUnits; ++i) {
      if (first + i * kLanes < end) to[i * kLanes] = units[i];
    }
    if (has_scales(a, of, lane)) {
      reinterpret_cast<uint4*>(moved_by(a.scales.data + row * a.scales.row_step, moved))[lane] =
          scales_of_row;
    }
  }
};

/// What lane k knows of a token: choice k, on its way from memory.
struct TokenChoice {
  GivenId id;
  float weight;

  __device__ __forceinline__ void request(const DispatchArgs& a, int token, int lane) {
    id = {};
    weight = 1.0f;
    if (lane >= a.num_topk) return;
    const std::int64_t at = std::int64_t{token} * a.num_topk + lane;
    id.request(a.tokens.ids, at);
    if (a.tokens.topk_weights != nullptr) weight = a.tokens.topk_weights[at];
  }
};

/// Stores what keep_row (dispatch_receive.cuh) keeps, for row `row` of rank `to`, the `number`th of
/// this rank there.
__device__ __forceinline__ void store_row_facts(const DispatchArgs& a, int to, std::ptrdiff_t moved,
                                                std::int32_t row, std::int32_t number, int token,
                                                int lane, const TokenChoice& choice) {
  const int arrival = a.rank * static_cast<int>(a.layout.shape.max_tokens) + number;
  if (lane == 0) moved_by(a.state.arrival_token, moved)[arrival] = token;
  if (lane >= a.num_topk) return;
  const std::int32_t id = choice.id.value(a.tokens.ids);
  const ExpertRange experts(a, to);
  const bool is_there = experts.has(id);
  const std::int64_t kept_at = std::int64_t{arrival} * a.num_topk + lane;
  moved_by(a.state.arrival_rows, moved)[kept_at] = is_there ? row : -1;
  const std::int64_t at = std::int64_t{row} * a.num_topk + lane;
  if (a.received.row_ids != nullptr) {
    const std::int32_t global = names_expert(a, id) ? id : -1;
    const std::int32_t local = is_there ? id - experts.first : -1;
    moved_by(a.received.row_ids, moved)[at] = a.rows_layout == Layout::kCompact ? local : global;
  }
  if (a.layout.shape.sends_weights && a.received.row_weights != nullptr) {
    moved_by(a.received.row_weights, moved)[at] = choice.weight;
  }
}

/// Keeps for the combine the row of a token at each rank.
__device__ __forceinline__ void keep_places(const DirectDispatchArgs& a, int token, int lane,
                                            const std::int32_t* numbers,
                                            const DirectShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  auto* placed =
      reinterpret_cast<std::int32_t*>(a.windows.base[a.rank] + a.direct.placed_rows_offset) +
      std::int64_t{token} * num_ranks;
#pragma unroll 1
  for (int d = lane; d < num_ranks; d += kLanes) {
    placed[d] = numbers[d] < 0 ? -1 : shared.first[d] + shared.before[d] + numbers[d];
  }
}

/// What a sender has: items begin to end of all tokens, each some chunks of a token.
struct DirectShare {
  int of_token;
  int begin;
  int end;
  int first_token;
  int end_token;

  __device__ __forceinline__ DirectShare(const DispatchArgs& a, int sender)
      : of_token(static_cast<int>(a.grid.by_chunks.divisor)) {
    const std::int64_t all = std::int64_t{a.tokens.count} * of_token;
    begin = static_cast<int>(all * sender / a.grid.num_senders);
    end = static_cast<int>(all * (sender + 1) / a.grid.num_senders);
    first_token = a.grid.by_chunks.quotient(begin);
    end_token = a.grid.by_chunks.quotient(end + of_token - 1);
  }
};

/// A warp's next item. It is loaded before its place is known.
template <class Form>
struct DirectItem {
  int item;
  ItemPart of;
  TokenChoice choice;
  RowPart<Form> part;

  __device__ __forceinline__ void load(const DirectDispatchArgs& a, int end, int lane,
                                       std::uint8_t* scales) {
    if (item >= end) return;
    of.token = a.grid.by_chunks.quotient(item);
    of.chunk =
        (item - of.token * static_cast<int>(a.grid.by_chunks.divisor)) * a.grid.chunks_per_item;
    of.end = of.chunk + a.grid.chunks_per_item;
    if (of.chunk == 0) choice.request(a, of.token, lane);
    part.load(a, of, lane, scales);
  }
  /// `batch`: the first token of shared.numbers().
  __device__ __forceinline__ void store(const DirectDispatchArgs& a, int batch, int lane,
                                        const std::uint8_t* scales, DirectShared& shared) const {
    const std::int32_t* numbers = shared.numbers(a) + (of.token - batch) * a.ownership.num_ranks;
    std::uint64_t left = shared.goes()[of.token - batch];
    if (of.chunk == 0) keep_places(a, of.token, lane, numbers, shared);
    // From the rank behind this one on.
    const std::uint64_t above = ~((std::uint64_t{2} << a.rank) - 1);
#pragma unroll 1
    while (left != 0) {
      const std::uint64_t next = (left & above) != 0 ? left & above : left;
      const int to = __ffsll(static_cast<long long>(next)) - 1;
      left &= ~(std::uint64_t{1} << to);
      const std::int32_t number = shared.before[to] + numbers[to];
      const std::int32_t row = shared.first[to] + number;
      const std::ptrdiff_t moved = distance_to(a, to);
      part.store(a, of, lane, row, moved, scales);
      if (of.chunk == 0) store_row_facts(a, to, moved, row, number, of.token, lane, choice);
    }
    stamp(a, Stage::kFirstStore);
    __syncwarp();
  }
};

/// Stores a sender's share of the rows, then its flags.
template <class Form>
__device__ __forceinline__ void send_share(const DirectDispatchArgs& a, std::uint32_t prefetched,
                                           CallOfCta& current, int sender, bool publishes,
                                           DirectShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_ranks = a.ownership.num_ranks;
  const DirectShare share(a, sender);
  std::uint8_t* scales = shared.scales[warp];
  current.request(a, prefetched);
  DirectItem<Form> own;
  own.item = share.begin + warp;
  own.load(a, share.end, lane, scales);
  // Others wait for these.
  if (publishes) publish_counts(a, current, sender, a.grid.num_senders, shared);
  const int own_part = a.by_part.quotient(share.first_token);
  count_tokens(a, own_part * a.parts.tokens, share.first_token, shared.before);
  if (warp == cta_warps() - 1) {
    number_rows(a, share.first_token, share.end_token, lane, shared);
  }
  __syncthreads();
  stamp(a, Stage::kCallKnown);
  if (current.has_failed != 0) return;
  const std::uint64_t call = current.number;
  if (sender == 0 && static_cast<int>(threadIdx.x) < num_ranks) {
    store_record(a.windows.base[threadIdx.x] + a.direct.senders(call, a.rank),
                 static_cast<std::uint32_t>(a.grid.num_senders), tag_of(call));
  }
  receive_counts(a, call, own_part, shared);
  __syncthreads();
  stamp(a, Stage::kAnnouncementSeen);
  if (shared.failed != 0) return;
#pragma unroll 1
  for (int batch = share.first_token;;) {
    const int next = batch + a.units.tokens_of_batch;
    const int end = min(share.end, next * share.of_token);
#pragma unroll 1
    while (own.item < end) {
      own.store(a, batch, lane, scales, shared);
      own.item += cta_warps();
      own.load(a, share.end, lane, scales);
    }
    __syncthreads();
    if (next >= share.end_token) break;
    batch = next;
    if (warp == cta_warps() - 1) number_rows(a, batch, share.end_token, lane, shared);
    __syncthreads();
  }
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer < num_ranks && peer != a.rank) {
    __threadfence_system();  // behind the stores of all threads
    store_record(a.windows.base[peer] + a.direct.flag(a.rank, sender), 1, tag_of(call));
  }
  keep_partials(a, call, (share.begin + share.of_token - 1) / share.of_token, share.end_token);
}

/// Waits for the rows of all peers; one CTA does so.
__device__ __forceinline__ void await_rows(const DirectDispatchArgs& a, std::uint64_t call) {
  __shared__ std::int32_t num_senders[kMaxPushRanks];
  __shared__ std::int32_t max_senders;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_ranks = a.ownership.num_ranks;
  const std::byte* own = a.windows.base[a.rank];
  const auto wait = [&](int source, std::size_t at, std::uint32_t& value) {
    return wait_record(own + at, a.watch, {WaitPlace::kRow, source, -1, call}, value);
  };
  if (threadIdx.x == 0) max_senders = 0;
  __syncthreads();
  const auto source = static_cast<int>(threadIdx.x);
  if (source < num_ranks) {
    std::uint32_t value = 0;
    if (source != a.rank && !wait(source, a.direct.senders(call, source), value)) {
      value = 0;  // then all other waits end
    }
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
    if (sender < num_senders[from] && !wait(from, a.direct.flag(from, sender), value)) return;
  }
  __threadfence_system();  // before what the next kernels read
  stamp(a, Stage::kChunkSeen);
}

/// What the last CTA does at its end. `memory`: see ReceiverShared.
__device__ __forceinline__ void receive_all(const DirectDispatchArgs& a, std::uint64_t call,
                                            std::byte* memory) {
  auto& shared = *reinterpret_cast<ReceiverShared*>(memory);
  auto* words = reinterpret_cast<std::int32_t*>(&shared + 1);
  const int num_local = a.ownership.count(a.rank);
  const ReceivePlaces places{words, words + a.ownership.num_ranks * num_local, num_local};
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
  auto& shared = *reinterpret_cast<DirectShared*>(memory);
  const auto cta = static_cast<int>(blockIdx.x);
  const int num_senders = receives ? a.grid.num_senders : 0;
  shared.clear(a);
  __syncthreads();
  const std::uint32_t prefetched = begin_kernel(a);
  if (cta < num_senders) {
    send_share<Form>(a, prefetched, call, cta, sends, shared);
  } else {
    const int nth = cta - num_senders;
    const int num_notify = a.grid.num_notify_ctas;
    call.request(a, prefetched);
    if (sends && !receives) publish_counts(a, call, nth, num_notify, shared);
    __syncthreads();
#pragma unroll 1
    for (int i = nth; sends && i < a.ownership.num_ranks; i += num_notify) {
      const int to = i + a.rank;
      announce_counts(a, prefetched, call,
                      to < a.ownership.num_ranks ? to : to - a.ownership.num_ranks, memory);
    }
    if (receives && blockIdx.x == gridDim.x - 1 && call.has_failed == 0) {
      receive_all(a, call.number, memory);
    }
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
  const std::size_t of_token = sizeof(std::uint64_t) + ranks * sizeof(std::int32_t);
  const std::size_t shared = std::max(
      sizeof(DirectShared) + static_cast<std::size_t>(args.units.tokens_of_batch) * of_token,
      sizeof(ReceiverShared) + (ranks + 1) * local * sizeof(std::int32_t));
  const int notify_ctas = sends(phases) ? args.grid.num_notify_ctas : 1;
  const int ctas = receives(phases) ? args.grid.num_senders + notify_ctas : notify_ctas;
  const auto kernel = direct_dispatch_kernel<Form>;
  if (phases == Phases::kNone) allow_shared_memory(kernel, shared, "dispatch");
  launch_kernel(kernel, {ctas, kExchangeThreads, shared, programmatic, stream}, "dispatch", args,
                sends(phases), receives(phases));
}

}  // namespace switchyard::cuda
