// SPDX-License-Identifier: Apache-2.0
//
// dispatch_receive.cuh: the receive part of dispatch. A warp receives item after item: a chunk of a
// row, or what the combine and the caller want to know of the row. dispatch_stream.cuh has larger
// items.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/dispatch_chunk.cuh"

namespace switchyard::cuda {

/// Keeps the token's number, rows and weights for its combine, and tells the caller ids and
/// weights. False: a lane gave up.
__device__ __forceinline__ bool keep_row(const DispatchArgs& a, std::uint64_t call,
                                         const ReceiveItem& in, int lane, const Routes& routes,
                                         const ReceiverShared& block, const ReceivePlaces& places) {
  const int arrival = in.source * static_cast<int>(a.layout.shape.max_tokens) + in.number;
  if (lane == 0) a.state.arrival_token[arrival] = static_cast<std::int32_t>(routes.token);
  if (lane >= a.num_topk) return true;
  const auto choice = static_cast<std::uint32_t>(routes.choice);
  const Placed to = place_choice(a, in, choice, block, places);
  const std::int64_t at = std::int64_t{arrival} * a.num_topk + lane;
  a.state.arrival_rows[at] = to.row;
  const bool has_routes = a.layout.shape.sends_routes;
  const std::int64_t own_row = block.rows_before[in.source] + in.number;
  if (!has_routes && a.received.row_ids != nullptr) {
    a.received.row_ids[own_row * a.num_topk + lane] =
        a.rows_layout == Layout::kCompact ? to.expert : static_cast<std::int32_t>(choice);
  }
  if (!a.layout.shape.sends_weights) return true;
  std::uint32_t bits = 0;
  const std::size_t nth = 1 + static_cast<std::size_t>(a.num_topk + lane);
  if (!wait_record(
          a.windows.base[a.rank] + a.layout.routes(call, in.source, in.number) + nth * kRecordBytes,
          a.watch, {WaitPlace::kRow, in.source, static_cast<std::int32_t>(routes.token), call},
          bits)) {
    return false;
  }
  const float weight = f32_from_bits(bits);
  a.state.arrival_weights[at] = weight;
  if (a.received.row_weights == nullptr) return true;
  if (!has_routes) {
    a.received.row_weights[own_row * a.num_topk + lane] = weight;
  } else if (to.row >= 0) {
    a.received.row_weights[to.row] = weight;
  }
  return true;
}

/// A fixed share of the items for each warp; few items go to as many CTAs.
struct SharedOutItems {
  int item;

  __device__ __forceinline__ SharedOutItems(const DispatchArgs& a, std::uint64_t, int receiver)
      : item(static_cast<int>(threadIdx.x) / kLanes * a.grid.num_receivers + receiver) {}
  __device__ __forceinline__ void advance(const DispatchArgs& a, std::uint64_t) {
    item += a.grid.num_receivers * a.grid.num_warps;
  }
};

/// What is left of the items. The next one is asked for while the last one is taken.
struct ItemsLeft {
  int item;
  int next;  ///< in lane 0

  __device__ __forceinline__ ItemsLeft(const DispatchArgs& a, std::uint64_t call, int) : next(0) {
    request(a, call);
    advance(a, call);
  }
  __device__ __forceinline__ void advance(const DispatchArgs& a, std::uint64_t call) {
    item = __shfl_sync(kAllLanes, next, 0);
    request(a, call);
  }

 private:
  __device__ __forceinline__ void request(const DispatchArgs& a, std::uint64_t call) {
    if (threadIdx.x % kLanes == 0) next = take_received(a.state, call);
  }
};

/// The items of a warp, by the numbers of rows, in the order in which every source sends them.
/// Routes of the next one are on their way while one is taken.
template <class Items>
struct ReceiveWalk {
  Items items;
  Routes routes;

  __device__ __forceinline__ ReceiveWalk(const DispatchArgs& a, std::uint64_t call, int receiver)
      : items(a, call, receiver) {}
  __device__ __forceinline__ ReceiveItem now(const DispatchArgs& a) const {
    return ReceiveItem(a, items.item);
  }
  __device__ __forceinline__ void request(const DispatchArgs& a, std::uint64_t call,
                                          const ReceiveItem& in) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    routes.request(a, a.layout.routes(call, in.source, in.number), lane);
  }
  /// Requests the routes of the first item, which may not come, when announcements begin to come.
  __device__ __forceinline__ void request_first(const DispatchArgs& a, std::uint64_t call,
                                                const ReceiverShared& block) {
    const ReceiveItem in = now(a);
    while (*const_cast<volatile const std::int32_t*>(&block.num_done) == 0) {
    }
    if (in.number < a.layout.shape.max_tokens) request(a, call, in);
  }
  /// Goes on to the next item that comes, or stays at one that does and was requested. False: none.
  __device__ __forceinline__ bool find(const DispatchArgs& a, std::uint64_t call,
                                       const ReceiverShared& block, bool is_requested) {
    const int num_items = block.max_from * static_cast<int>(a.grid.by_slot.divisor);
    if (!is_requested) items.advance(a, call);
#pragma unroll 1
    for (; items.item < num_items; items.advance(a, call), is_requested = false) {
      const ReceiveItem in = now(a);
      if (in.number >= block.num_from[in.source]) continue;
      if (!is_requested) request(a, call, in);
      return true;
    }
    return false;
  }
};

/// Receives a chunk, or keeps what is to be known of its row. False: a lane gave up.
template <int kWords>
struct OneChunk {
  using Items = SharedOutItems;

  __device__ __forceinline__ bool receive(const DispatchArgs& a, std::uint64_t call,
                                          const ReceiveItem& in, int lane, const Routes& routes,
                                          ReceiverShared& shared,
                                          const ReceivePlaces& places) const {
    if (in.chunk == a.layout.num_chunks) {
      return keep_row(a, call, in, lane, routes, shared, places);
    }
    return receive_chunk<kWords>(a, call, in, lane, routes, shared,
                                 shared.chunks[threadIdx.x / kLanes], places);
  }
};

template <class Chunks>
__device__ __forceinline__ void receive_items(const DispatchArgs& a, std::uint64_t call,
                                              ReceiveWalk<typename Chunks::Items>& walk,
                                              const Chunks& chunks, ReceiverShared& shared,
                                              const ReceivePlaces& places) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  bool is_there = walk.find(a, call, shared, true);
#pragma unroll 1
  while (is_there) {
    const ReceiveItem in = walk.now(a);
    Spin spin;
    while (!walk.routes.is_there(call)) {
      const auto what = [&] { return WaitFor{WaitPlace::kRow, in.source, in.number, call}; };
      if (__any_sync(kAllLanes, !spin.again(a.watch, what))) return;
      walk.request(a, call, in);
    }
    stamp(a, Stage::kRouteSeen);
    const Routes now = walk.routes;
    is_there = walk.find(a, call, shared, false);
    const bool is_good = chunks.receive(a, call, in, lane, now, shared, places);
    if (!__all_sync(kAllLanes, is_good)) return;
  }
}

/// `chunks` says how a warp receives an item, and which ones; `memory` has the places (see
/// ReceiverShared).
template <class Chunks>
__device__ __forceinline__ void receive_rows(const DispatchArgs& a, const CallOfCta& current,
                                             int receiver, const Chunks& chunks,
                                             ReceiverShared& shared, std::int32_t* memory) {
  const int num_local = a.ownership.count(a.rank);
  const ReceivePlaces places{memory, memory + a.ownership.num_ranks * num_local, num_local};
  const bool reports = receiver == a.grid.num_receivers - 1;
  // After a failure slots may hold what nobody took.
  if (threadIdx.x == 0) {
    shared.failed = current.has_failed;
    shared.num_done = 0;
  }
  __syncthreads();
  const std::uint64_t call = current.number;
  stamp(a, Stage::kCallKnown);
  ReceiveWalk<typename Chunks::Items> walk(a, call, receiver);
  receive_announcements(a, call, reports, shared, places);
  walk.request_first(a, call, shared);
  __syncthreads();
  stamp(a, Stage::kAnnouncementSeen);
  find_first_rows(a, places);
  if (shared.failed != 0) return;
  receive_items(a, call, walk, chunks, shared, places);
  if (reports) report_totals(a, shared, places);
}

}  // namespace switchyard::cuda
