// SPDX-License-Identifier: Apache-2.0
//
// dispatch_chunk.cuh: how a warp receives one chunk: it finds the slot, polls it, empties it, and
// puts the chunk at its rows, one for each local expert that the token chose.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/dispatch_scatter.cuh"

namespace switchyard::cuda {

/// Where a token's row goes: lane k has choice k.
struct Routes {
  std::uint64_t token;  ///< a record, as the next
  std::uint64_t choice;

  /// Requests them; they may not be there yet.
  __device__ __forceinline__ void request(const DispatchArgs& a, std::size_t at, int lane) {
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
  std::int32_t chunk;   ///< the first

  __device__ __forceinline__ ReceiveItem(const DispatchArgs& a, int item) {
    number = a.grid.by_slot.quotient(item);
    const int rest = item - number * static_cast<int>(a.grid.by_slot.divisor);
    const int nth = a.grid.by_items.quotient(rest);
    chunk = (rest - nth * static_cast<int>(a.grid.by_items.divisor)) * a.grid.chunks_per_item;
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

/// A lane's elements of a chunk.
template <int kWords>
struct ElementUnits : VecUnits<kWords> {
  using VecUnits<kWords>::kUnitWords;
  using VecUnits<kWords>::kUnits;
  using VecUnits<kWords>::kLaneBytes;

  std::uint32_t words[kUnits][kUnitWords];

  /// Requests the units of `wanted`.
  __device__ __forceinline__ void request(const std::byte* elements, unsigned wanted) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if ((wanted >> u & 1) != 0) load_relaxed_sys(elements + u * kLanes * kLaneBytes, words[u]);
    }
  }
  /// Those of `wanted` that were not there.
  __device__ __forceinline__ unsigned missing(unsigned wanted) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (has_arrived(words[u])) wanted &= ~(1u << u);
    }
    return wanted;
  }
  /// Gives escaped words their values back, and empties the slot for the call after the next.
  /// False: gave up.
  template <typename What>
  __device__ __forceinline__ bool empty(std::byte* window, std::byte* elements,
                                        const PushLayout& layout, const Watch& watch,
                                        const What& what) {
    bool is_good = true;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      is_good &=
          empty_unit(window, elements + u * kLanes * kLaneBytes, layout, watch, what, words[u]);
    }
    return is_good;
  }
  __device__ __forceinline__ void copy_to(std::uint32_t (&vector)[kWords],
                                          std::uint32_t flip) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) vector[i] = words[i / kUnitWords][i % kUnitWords] ^ flip;
  }
};

/// A lane's part of a chunk: its elements and, in the first lanes, a unit of scales.
template <int kWords>
struct ChunkUnits : ElementUnits<kWords> {
  static constexpr unsigned kScales = 1u << VecUnits<kWords>::kUnits;

  std::uint32_t scales[4];

  __device__ __forceinline__ void request(const std::byte* elements, const std::byte* scale_unit,
                                          unsigned wanted) {
    ElementUnits<kWords>::request(elements, wanted);
    if ((wanted & kScales) != 0) load_relaxed_sys(scale_unit, scales);
  }
  __device__ __forceinline__ unsigned missing(unsigned wanted) const {
    wanted = ElementUnits<kWords>::missing(wanted);
    return has_arrived(scales) ? wanted & ~kScales : wanted;
  }
};

/// Where a lane's part of a chunk lies in the own window, and whether it has one.
template <int kWords>
struct ChunkSlot {
  std::byte* window;
  std::byte* elements;
  std::byte* scale_unit;
  bool has_elements;
  bool has_unit;

  __device__ __forceinline__ ChunkSlot(const DispatchArgs& a, std::uint64_t call,
                                       const ReceiveItem& in, int lane, std::uint32_t token)
      : window(a.windows.base[a.rank]) {
    const int per_chunk = a.layout.shape.chunk_scale_bytes / static_cast<int>(kUnitBytes);
    const std::size_t row = a.layout.row(call, in.source, token);
    elements = window + a.layout.elements(row, in.chunk) +
               static_cast<unsigned>(lane) * VecUnits<kWords>::kLaneBytes;
    scale_unit = window + a.layout.scales(row, in.chunk) + static_cast<unsigned>(lane) * kUnitBytes;
    has_elements = in.chunk * kChunkElements + lane * kVecElements < a.layout.shape.hidden;
    has_unit = lane < per_chunk && in.chunk * per_chunk + lane < a.scales.units_per_row;
  }
  __device__ __forceinline__ unsigned wanted() const {
    constexpr unsigned kScales = ChunkUnits<kWords>::kScales;
    return (has_elements ? kScales - 1 : 0) | (has_unit ? kScales : 0);
  }
};

/// Finds the rows that the chunk goes to, in the order of choices. Returns how many.
__device__ __forceinline__ int find_targets(const DispatchArgs& a, const ReceiveItem& in, int lane,
                                            std::uint32_t choice, const ReceiverShared& block,
                                            const ReceivePlaces& places, ChunkShared& shared) {
  Placed to{0, -1};
  if (a.layout.shape.sends_routes) {
    if (lane < a.num_topk) to = place_choice(a, in, choice, block, places);
  } else if (lane == 0) {
    to.row = block.rows_before[in.source] + in.number;
  }
  const unsigned targets = __ballot_sync(kAllLanes, to.row >= 0);
  if (to.row >= 0) {
    shared.targets[__popc(targets & ((1u << lane) - 1))] = target_of(a, to.row, to.expert);
  }
  return __popc(targets);
}

/// Polls until every lane has the units of `missing`, which were requested. `request(missing)` does
/// so again. False: gave up.
template <class Units, typename What, typename Request>
__device__ __forceinline__ bool wait_for_units(const DispatchArgs& a, const What& what,
                                               unsigned missing, const Units& units,
                                               const Request& request) {
  Spin spin;
  for (;;) {
    missing = units.missing(missing);
    if (__all_sync(kAllLanes, missing == 0)) return true;
    if (__any_sync(kAllLanes, !spin.again(a.watch, what))) return false;
    request(missing);
  }
}

/// Gives escaped words their values back, and empties the slot for the call after the next. Leaves
/// the scales in shared memory. False: a lane gave up.
template <int kWords, typename What>
__device__ __forceinline__ bool empty_chunk(const DispatchArgs& a, const ChunkSlot<kWords>& slot,
                                            const What& what, int lane, ChunkUnits<kWords>& units,
                                            ChunkShared& shared) {
  bool is_good =
      !slot.has_elements || units.empty(slot.window, slot.elements, a.layout, a.watch, what);
  if (slot.has_unit) {
    is_good &= empty_unit(slot.window, slot.scale_unit, a.layout, a.watch, what, units.scales);
    reinterpret_cast<uint4*>(shared.scales)[lane] = {units.scales[0], units.scales[1],
                                                     units.scales[2], units.scales[3]};
  }
  __syncwarp();
  return is_good;
}

/// Receives a chunk and puts it at every row that wants it. False: a lane gave up.
template <int kWords>
__device__ __forceinline__ bool receive_chunk(const DispatchArgs& a, std::uint64_t call,
                                              const ReceiveItem& in, int lane, const Routes& routes,
                                              const ReceiverShared& block, ChunkShared& shared,
                                              const ReceivePlaces& places) {
  const ChunkSlot<kWords> slot(a, call, in, lane, static_cast<std::uint32_t>(routes.token));
  ChunkUnits<kWords> units{};
  const unsigned wanted = slot.wanted();
  units.request(slot.elements, slot.scale_unit, wanted);
  // While they are on their way.
  const int num_targets =
      find_targets(a, in, lane, static_cast<std::uint32_t>(routes.choice), block, places, shared);
  const auto what = [&] {
    return WaitFor{WaitPlace::kRow, in.source, static_cast<std::int32_t>(routes.token), call};
  };
  const auto again = [&](unsigned missing) {
    units.request(slot.elements, slot.scale_unit, missing);
  };
  if (!wait_for_units(a, what, wanted, units, again)) return false;
  stamp(a, Stage::kChunkSeen);
  const bool is_good = empty_chunk(a, slot, what, lane, units, shared);
  std::uint32_t vector[kWords];
  units.copy_to(vector, kWords == 4 ? wire_flip(a.scheme.dtype) : 0);
  std::uint32_t copy[kWords];
  scatter_chunk(a, in.chunk, lane, slot.has_elements, vector, copy, num_targets, shared.targets,
                LaneScale(a, in.chunk, lane, shared.scales));
  __syncwarp();
  return is_good;
}

}  // namespace switchyard::cuda
