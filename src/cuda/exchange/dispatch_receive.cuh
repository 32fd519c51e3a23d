// SPDX-License-Identifier: Apache-2.0
//
// dispatch_receive.cuh: the receive part of dispatch. A warp takes chunk after chunk and puts it at
// its rows, one for each local expert that the token chose.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/dispatch_places.cuh"

namespace switchyard::cuda {

/// 16 elements to a row, as whole units.
template <int kWords>
__device__ __forceinline__ void store_vec(std::byte* to, const std::uint32_t (&words)[kWords]) {
  if constexpr (kWords >= 4) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                         words[4 * i + 3]};
    }
  } else {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  }
}

/// The place of scale s of row n, in bytes, where scales lie in tiles.
__device__ __noinline__ inline std::int64_t tiled_scale_at(ScaleGeometry block, std::int32_t n,
                                                           std::int32_t s) {
  return block.index(n, s) * block.element_bytes;
}

/// Where row `row` of the receive buffer, of a local expert, begins. In every layout the place of
/// scale s is that of the row's first scale plus what s alone says.
__device__ __forceinline__ Target target_of(const DispatchArgs& a, std::int32_t row,
                                            std::int32_t expert) {
  const bool is_batched = a.scales.expert_stride != 0;
  const std::int32_t n =
      is_batched ? row - expert * static_cast<std::int32_t>(a.received.capacity) : row;
  std::byte* scales =
      a.scales.data + (is_batched ? static_cast<std::size_t>(expert) * a.scales.expert_stride : 0);
  scales += a.scales.are_tiled ? tiled_scale_at(a.scales.block, n, 0) : n * a.scales.row_step;
  return {a.received.rows + row * a.received.row_bytes, scales};
}

/// Where a token's row goes: lane k has choice k.
struct Routes {
  std::uint64_t token;  ///< a record, as the next
  std::uint64_t choice;

  /// Asks for them; they may not be there yet.
  __device__ __forceinline__ void ask(const DispatchArgs& a, std::size_t at, int lane) {
    const std::byte* from = a.windows.base[a.rank] + at;
    token = load_record(from);
    const int nth = lane < a.num_topk ? 1 + lane : 0;
    choice = load_record(from + static_cast<std::size_t>(nth) * kRecordBytes);
  }
  __device__ __forceinline__ bool is_there(std::uint64_t call) const {
    const std::uint32_t tag = tag_of(call);
    return __all_sync(kAllLanes, static_cast<std::uint32_t>(token >> 32) == tag &&
                                     static_cast<std::uint32_t>(choice >> 32) == tag);
  }
};

/// What a warp does at a time: takes a chunk of a row, or, after its last chunk, keeps what is to
/// be known of it.
struct ReceiveItem {
  std::int32_t source;
  std::int32_t number;  ///< of the source's rows for this rank
  std::int32_t chunk;

  __device__ __forceinline__ ReceiveItem(const DispatchArgs& a, int item) {
    number = a.grid.by_slot.quotient(item);
    const int rest = item - number * static_cast<int>(a.grid.by_slot.divisor);
    const int nth = a.grid.by_items.quotient(rest);
    chunk = rest - nth * static_cast<int>(a.grid.by_items.divisor);
    const int turned = nth + a.rank;
    source = turned < a.ownership.num_ranks ? turned : turned - a.ownership.num_ranks;
  }
};

/// A choice of a received token; row: of the receive buffer, -1: another rank's.
struct Placed {
  std::int32_t expert;  ///< local
  std::int32_t row;
};

__device__ __forceinline__ Placed place_choice(const DispatchArgs& a, const ReceiveItem& in,
                                               std::uint32_t choice, const ReceiverShared& block,
                                               const ReceivePlaces& places) {
  if (a.layout.shape.sends_routes) {
    if (choice == kNoRoute) return {0, -1};
    const auto expert = static_cast<std::int32_t>(choice >> a.layout.place_bits);
    const std::uint32_t place = choice & ((1u << a.layout.place_bits) - 1);
    return {expert, places.first_row[expert] +
                        places.before[in.source * places.num_local + expert] +
                        static_cast<std::int32_t>(place)};
  }
  const std::int32_t local = static_cast<std::int32_t>(choice) - a.ownership.first(a.rank);
  const bool is_local = local >= 0 && local < places.num_local;
  return {is_local ? local : -1, is_local ? block.rows_before[in.source] + in.number : -1};
}

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

/// A lane's part of a chunk: its elements, and, of the first lanes, a unit of scales.
template <int kWords>
struct ChunkUnits : VecUnits<kWords> {
  using VecUnits<kWords>::kUnitWords;
  using VecUnits<kWords>::kUnits;
  using VecUnits<kWords>::kLaneBytes;
  static constexpr unsigned kScales = 1u << kUnits;

  std::uint32_t words[kUnits][kUnitWords];
  std::uint32_t scales[4];

  /// Asks for the units of `wanted`.
  __device__ __forceinline__ void ask(const std::byte* elements, const std::byte* scale_unit,
                                      unsigned wanted) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if ((wanted >> u & 1) != 0) load_relaxed_sys(elements + u * kLanes * kLaneBytes, words[u]);
    }
    if ((wanted & kScales) != 0) load_relaxed_sys(scale_unit, scales);
  }
  /// Those of `wanted` that were not there.
  __device__ __forceinline__ unsigned missing(unsigned wanted) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (has_arrived(words[u])) wanted &= ~(1u << u);
    }
    return has_arrived(scales) ? wanted & ~kScales : wanted;
  }
};

/// Takes a chunk and puts it at every row that wants it. False: a lane gave up.
template <int kWords>
__device__ __forceinline__ bool receive_chunk(const DispatchArgs& a, std::uint64_t call,
                                              const ReceiveItem& in, int lane, const Routes& routes,
                                              const ReceiverShared& block, ChunkShared& shared,
                                              const ReceivePlaces& places) {
  using Units = ChunkUnits<kWords>;
  std::byte* own = a.windows.base[a.rank];
  const std::int32_t first = in.chunk * kChunkElements + lane * kVecElements;
  const int per_chunk = a.layout.shape.chunk_scale_bytes / static_cast<int>(kUnitBytes);
  const std::size_t row = a.layout.row(call, in.source, static_cast<std::uint32_t>(routes.token));
  std::byte* elements =
      own + a.layout.elements(row, in.chunk) + static_cast<unsigned>(lane) * Units::kLaneBytes;
  std::byte* scale_unit =
      own + a.layout.scales(row, in.chunk) + static_cast<unsigned>(lane) * kUnitBytes;
  const bool is_there = first < a.layout.shape.hidden;
  const bool has_unit = lane < per_chunk && in.chunk * per_chunk + lane < a.scales.units_per_row;
  unsigned missing = (is_there ? Units::kScales - 1 : 0) | (has_unit ? Units::kScales : 0);
  Units units{};
  units.ask(elements, scale_unit, missing);

  // On their way, the rows they go to.
  const auto choice = static_cast<std::uint32_t>(routes.choice);
  Placed to{0, -1};
  if (a.layout.shape.sends_routes) {
    if (lane < a.num_topk) to = place_choice(a, in, choice, block, places);
  } else if (lane == 0) {
    to.row = block.rows_before[in.source] + in.number;
  }
  const unsigned targets = __ballot_sync(kAllLanes, to.row >= 0);
  const int num_targets = __popc(targets);
  if (to.row >= 0) {
    shared.targets[__popc(targets & ((1u << lane) - 1))] = target_of(a, to.row, to.expert);
  }

  const auto what = [&] {
    return WaitFor{WaitPlace::kRow, in.source, static_cast<std::int32_t>(routes.token), call};
  };
  Spin spin;
  for (;;) {
    missing = units.missing(missing);
    if (__all_sync(kAllLanes, missing == 0)) break;
    if (__any_sync(kAllLanes, !spin.again(a.watch, what))) return false;
    units.ask(elements, scale_unit, missing);
  }

  // The slots are empty again for the call after the next.
  bool is_good = true;
#pragma unroll
  for (int u = 0; u < Units::kUnits; ++u) {
    if (!is_there) break;
    is_good &= empty_unit(own, elements + u * kLanes * Units::kLaneBytes, a.layout, a.watch, what,
                          units.words[u]);
  }
  if (has_unit) {
    is_good &= empty_unit(own, scale_unit, a.layout, a.watch, what, units.scales);
    reinterpret_cast<uint4*>(shared.scales)[lane] = {units.scales[0], units.scales[1],
                                                     units.scales[2], units.scales[3]};
  }
  __syncwarp();

  std::uint32_t vector[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    vector[i] = units.words[i / Units::kUnitWords][i % Units::kUnitWords];
  const std::int32_t offset = first * kWords / 4;
  const bool is_whole = a.received.are_aligned && first + kVecElements <= a.layout.shape.hidden;
  const std::int32_t s = in.chunk * a.scales.per_chunk + lane;
  const bool has_scale =
      per_chunk > 0 && lane < a.scales.per_chunk && s < a.scales.block.num_scales;
  const bool is_wide = a.scales.block.element_bytes == 4;
  const std::uint32_t scale = !has_scale ? 0
                              : is_wide
                                  ? reinterpret_cast<const std::uint32_t*>(shared.scales)[lane]
                                  : shared.scales[lane];
  const std::int64_t scale_at =
      a.scales.are_tiled ? tiled_scale_at(a.scales.block, 0, s) : s * a.scales.step;
  if (__all_sync(kAllLanes, is_whole && (is_wide || !has_scale))) {
#pragma unroll 1
    for (int i = 0; i < num_targets; ++i) {
      const Target target = shared.targets[i];
      store_vec(target.row + offset, vector);
      if (has_scale) *reinterpret_cast<std::uint32_t*>(target.scales + scale_at) = scale;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < num_targets; ++i) {
      const Target target = shared.targets[i];
      if (is_whole) {
        store_vec(target.row + offset, vector);
      } else if (is_there) {
        std::uint32_t copy[kWords];  // the vector itself stays in registers
#pragma unroll
        for (int w = 0; w < kWords; ++w) copy[w] = vector[w];
        const auto left = static_cast<int>(a.received.row_bytes) - offset;
        store_bytes(target.row + offset, left < 4 * kWords ? left : 4 * kWords, copy);
      }
      if (!has_scale) continue;
      if (is_wide) {
        *reinterpret_cast<std::uint32_t*>(target.scales + scale_at) = scale;
      } else {
        target.scales[scale_at] = static_cast<std::byte>(scale);
      }
    }
  }
  __syncwarp();
  return is_good;
}

/// The items of a warp, by the numbers of rows, in the order in which every source sends them; few
/// items go to as many CTAs. Routes of the next one are on their way while one is taken.
struct ReceiveWalk {
  int item;
  Routes routes;

  __device__ __forceinline__ ReceiveWalk(const DispatchArgs& a, int receiver)
      : item(static_cast<int>(threadIdx.x) / kLanes * a.grid.num_receivers + receiver) {}
  __device__ __forceinline__ void ask(const DispatchArgs& a, std::uint64_t call,
                                      const ReceiveItem& in) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    routes.ask(a, a.layout.routes(call, in.source, in.number), lane);
  }
  /// Asks for the routes of the first item, which may not come, when announcements begin to come.
  __device__ __forceinline__ void ask_first(const DispatchArgs& a, std::uint64_t call,
                                            const ReceiverShared& block) {
    const ReceiveItem in(a, item);
    while (*const_cast<volatile const std::int32_t*>(&block.num_done) == 0) {
    }
    if (in.number < a.layout.shape.max_tokens) ask(a, call, in);
  }
  /// Goes on to the next item that comes, or stays at one that does and was asked for. False: none.
  __device__ __forceinline__ bool find(const DispatchArgs& a, std::uint64_t call,
                                       const ReceiverShared& block, bool is_asked) {
    const int num_items = block.max_from * static_cast<int>(a.grid.by_slot.divisor);
    const int step = a.grid.num_receivers * a.grid.num_warps;
    if (!is_asked) item += step;
#pragma unroll 1
    for (; item < num_items; item += step, is_asked = false) {
      const ReceiveItem in(a, item);
      if (in.number >= block.num_from[in.source]) continue;
      if (!is_asked) ask(a, call, in);
      return true;
    }
    return false;
  }
};

template <int kWords>
__device__ __forceinline__ void receive_chunks(const DispatchArgs& a, std::uint64_t call,
                                               ReceiveWalk& walk, ReceiverShared& shared,
                                               const ReceivePlaces& places) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  bool is_there = walk.find(a, call, shared, true);
#pragma unroll 1
  while (is_there) {
    const ReceiveItem in(a, walk.item);
    Spin spin;
    while (!walk.routes.is_there(call)) {
      const auto what = [&] { return WaitFor{WaitPlace::kRow, in.source, in.number, call}; };
      if (__any_sync(kAllLanes, !spin.again(a.watch, what))) return;
      walk.ask(a, call, in);
    }
    const Routes now = walk.routes;
    is_there = walk.find(a, call, shared, false);
    const bool is_chunk = in.chunk < a.layout.num_chunks;
    const bool is_good = is_chunk ? receive_chunk<kWords>(a, call, in, lane, now, shared,
                                                          shared.chunks[warp], places)
                                  : keep_row(a, call, in, lane, now, shared, places);
    if (!__all_sync(kAllLanes, is_good)) return;
  }
}

template <int kWords>
__device__ __forceinline__ void receive_rows(const DispatchArgs& a, const CallOfCta& asked,
                                             int receiver, ReceiverShared& shared,
                                             std::int32_t* memory) {
  const int num_local = a.ownership.count(a.rank);
  const ReceivePlaces places{memory, memory + a.ownership.num_ranks * num_local, num_local};
  const bool reports = receiver == a.grid.num_receivers - 1;
  // After a failure slots may hold what nobody took.
  if (threadIdx.x == 0) {
    shared.failed = asked.has_failed;
    shared.num_done = 0;
  }
  __syncthreads();
  const std::uint64_t call = asked.number;
  ReceiveWalk walk(a, receiver);
  receive_announcements(a, call, reports, shared, places);
  walk.ask_first(a, call, shared);
  __syncthreads();
  find_first_rows(a, places);
  if (shared.failed != 0) return;
  receive_chunks<kWords>(a, call, walk, shared, places);
  if (reports) report_totals(a, shared, places);
}

}  // namespace switchyard::cuda
