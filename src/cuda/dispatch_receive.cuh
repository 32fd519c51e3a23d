// SPDX-License-Identifier: Apache-2.0
//
// dispatch_receive.cuh: the receive part of dispatch. A warp takes piece after piece and puts it at
// its rows, one for each local expert that the token chose.
#pragma once

#include "cuda/call.cuh"
#include "cuda/dispatch_places.cuh"

namespace switchyard {

/// A piece that is being received, by one warp. Beside its elements each lane takes one more unit:
/// first come the lanes with scales, then with routes, then, of piece 0, with the token's details.
struct Arriving {
  std::int32_t source;
  std::int32_t slot;
  std::int32_t piece;
  std::size_t row;  ///< in the window
  std::size_t at;   ///< of the piece
};

/// 16 elements to a row, as whole units.
template <int kWords>
__device__ __forceinline__ void put_grain(std::byte* to, const std::uint32_t (&words)[kWords]) {
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
__device__ __forceinline__ Target aim(const DispatchArgs& a, std::int32_t row,
                                      std::int32_t expert) {
  const bool is_batched = a.scale_block_bytes != 0;
  const std::int32_t n = is_batched ? row - expert * static_cast<std::int32_t>(a.capacity) : row;
  std::byte* scales =
      a.scales + (is_batched ? static_cast<std::size_t>(expert) * a.scale_block_bytes : 0);
  scales += a.scales_are_tiled ? tiled_scale_at(a.scale_block, n, 0) : n * a.scale_row_step;
  return {a.rows + row * a.row_bytes, scales};
}

/// Keeps the token's number, rows and weights for its combine, and tells the caller ids and
/// weights.
__device__ __forceinline__ void keep_details(const DispatchArgs& a, const Arriving& in, int lane,
                                             const PieceShared& shared) {
  const int num_id_words = (a.num_topk + 1) / 2;
  const std::uint32_t* words = shared.details;
  const int arrival = in.source * static_cast<int>(a.layout.shape.max_tokens) + in.slot;
  if (lane == 0) a.state.arrival_token[arrival] = static_cast<std::int32_t>(words[0]);
  const std::uint32_t pair = lane < a.num_topk ? words[1 + lane / 2] : 0;
  const std::int32_t id = static_cast<std::int32_t>(pair >> (16 * (lane % 2)) & 0xFFFFu) - 1;
  const int first = a.ownership.first(a.rank);
  const bool is_local = id >= first && id < first + a.ownership.count(a.rank);
  const unsigned local = __ballot_sync(0xFFFFFFFFu, is_local);
  if (lane >= a.num_topk) return;
  const bool has_routes = a.layout.shape.sends_routes;
  const int nth = has_routes && is_local ? __popc(local & ((1u << lane) - 1)) : 0;
  const std::int32_t row = shared.rows[nth];
  const float weight = f32_from_bits(words[1 + num_id_words + lane]);
  const std::int64_t at = std::int64_t{arrival} * a.num_topk + lane;
  a.state.arrival_rows[at] = is_local ? row : -1;
  a.state.arrival_weights[at] = weight;
  if (has_routes) {
    if (is_local && a.row_weights != nullptr) a.row_weights[row] = weight;
    return;
  }
  const std::int64_t to = std::int64_t{row} * a.num_topk + lane;
  if (a.row_ids != nullptr) {
    a.row_ids[to] = a.rows_layout != Layout::kCompact ? id : is_local ? id - first : -1;
  }
  if (a.row_weights != nullptr) a.row_weights[to] = weight;
}

/// A lane's part of a piece: its elements, and one further unit.
template <int kWords>
struct PieceUnits {
  static constexpr int kUnitWords = kWords < 4 ? kWords : 4;
  static constexpr int kUnits = kWords / kUnitWords;
  static constexpr std::size_t kLaneBytes = kUnitWords * 4;
  static constexpr unsigned kMore = 1u << kUnits;

  std::uint32_t words[kUnits][kUnitWords];
  std::uint32_t more[4];

  /// Loads the units of `wanted`; returns those that have not arrived.
  __device__ __forceinline__ unsigned look(const std::byte* own, std::size_t at,
                                           std::size_t more_at, unsigned wanted) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if ((wanted >> u & 1) != 0) load_words(own + at + u * kLanes * kLaneBytes, words[u]);
    }
    if ((wanted & kMore) != 0) load_words(own + more_at, more);
    unsigned missing = wanted;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (has_arrived(words[u])) missing &= ~(1u << u);
    }
    if (has_arrived(more)) missing &= ~kMore;
    return missing;
  }
};

/// Takes a piece and puts it at every row that wants it. False: gave up.
template <int kWords>
__device__ __forceinline__ bool receive_piece(const DispatchArgs& a, std::uint64_t call,
                                              const Arriving& in, int lane,
                                              const ReceiverShared& block, PieceShared& shared,
                                              const ReceivePlaces& places) {
  using Units = PieceUnits<kWords>;
  std::byte* own = a.windows.base[a.rank];
  const bool has_routes = a.layout.shape.sends_routes;
  const std::int32_t first = in.piece * kPieceElements + lane * kGrainElements;
  const std::size_t lane_at = in.at + static_cast<std::size_t>(lane) * Units::kLaneBytes;

  // The lane's further unit. Of routes but the first it is known later whether there are any.
  const int per_piece = a.layout.shape.piece_scale_bytes / static_cast<int>(kUnitBytes);
  const int most_routes = has_routes ? (a.num_topk + 1) / 2 : 0;
  const int route = lane - per_piece;
  const int detail = route - most_routes;
  const std::size_t more_at = (detail < 0 ? in.at + a.layout.scales_in_piece : in.row) +
                              static_cast<std::size_t>(detail < 0 ? lane : detail) * kUnitBytes;
  bool wants_more = detail >= 0  ? in.piece == 0 && detail < num_detail_units(a.num_topk)
                    : route >= 0 ? route == 0
                                 : in.piece * per_piece + lane < a.scale_units_per_row;
  const bool is_there = first < a.layout.shape.hidden;
  unsigned missing = (is_there ? Units::kMore - 1 : 0) | (wants_more ? Units::kMore : 0);
  int num_targets = has_routes ? 0 : 1;  // 0: not known yet
  Units units{};
  const WaitFor what{WaitPlace::kRow, in.source, in.slot, call};
  Spin spin;
  for (;;) {
    missing = units.look(own, lane_at, more_at, missing);
    if (num_targets == 0) {
      const std::uint32_t count = (missing & Units::kMore) != 0 ? 0 : units.more[0] >> 16;
      num_targets = static_cast<int>(__shfl_sync(0xFFFFFFFFu, count, per_piece));
      if (route > 0 && detail < 0 && 2 * route < num_targets) {
        wants_more = true;
        missing |= Units::kMore;
      }
    }
    if (__all_sync(0xFFFFFFFFu, missing == 0 && num_targets != 0)) break;
    if (__any_sync(0xFFFFFFFFu, !spin.again(a.watch, [&] { return what; }))) return false;
  }

  // The slots are empty again for the call after the next.
  bool is_good = true;
#pragma unroll
  for (int u = 0; u < Units::kUnits; ++u) {
    if (!is_there) break;
    is_good &= empty_unit(own, lane_at + u * kLanes * Units::kLaneBytes, a.layout, a.watch, what,
                          units.words[u]);
  }
  if (wants_more) {
    is_good &= empty_unit(own, more_at, a.layout, a.watch, what, units.more);
    uint4* to = route < 0 ? reinterpret_cast<uint4*>(shared.scales) + lane
                          : reinterpret_cast<uint4*>(shared.details) + detail;
    if (route < 0 || detail >= 0) {
      *to = {units.more[0], units.more[1], units.more[2], units.more[3]};
    }
  }
  // Lane i aims at target i; two of them travel in a unit.
  std::uint32_t route_words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    route_words[i] = __shfl_sync(0xFFFFFFFFu, units.more[i], per_piece + lane / 2);
  }
  if (lane < num_targets) {
    const auto expert =
        has_routes ? static_cast<std::int32_t>(route_words[lane % 2 * 2] & 0xFFFFu) : 0;
    const auto place = static_cast<std::int32_t>(route_words[lane % 2 * 2 + 1]);
    const std::int32_t row = has_routes ? places.first_row[expert] + place +
                                              places.before[in.source * places.num_local + expert]
                                        : block.rows_before[in.source] + in.slot;
    shared.targets[lane] = aim(a, row, expert);
    shared.rows[lane] = row;
  }
  __syncwarp();

  std::uint32_t grain[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    grain[i] = units.words[i / Units::kUnitWords][i % Units::kUnitWords];
  const std::int32_t offset = first * kWords / 4;
  const bool is_whole = a.aligned_rows && first + kGrainElements <= a.layout.shape.hidden;
  const std::int32_t s = in.piece * a.scales_per_piece + lane;
  const bool has_scale = per_piece > 0 && lane < a.scales_per_piece && s < a.scale_block.num_scales;
  const bool is_wide = a.scale_block.element_bytes == 4;
  const std::int64_t scale_at =
      a.scales_are_tiled ? tiled_scale_at(a.scale_block, 0, s) : s * a.scale_step;
#pragma unroll 1
  for (int r = 0; r < num_targets; ++r) {
    const Target target = shared.targets[r];
    if (is_whole) {
      put_grain(target.row + offset, grain);
    } else if (is_there) {
      std::uint32_t copy[kWords];  // the grain itself stays in registers
#pragma unroll
      for (int i = 0; i < kWords; ++i) copy[i] = grain[i];
      const auto left = static_cast<int>(a.row_bytes) - offset;
      put_bytes(target.row + offset, left < 4 * kWords ? left : 4 * kWords, copy);
    }
    if (!has_scale) continue;
    if (is_wide) {
      *reinterpret_cast<std::uint32_t*>(target.scales + scale_at) =
          reinterpret_cast<const std::uint32_t*>(shared.scales)[lane];
    } else {
      target.scales[scale_at] = static_cast<std::byte>(shared.scales[lane]);
    }
  }
  if (in.piece == 0) keep_details(a, in, lane, shared);
  __syncwarp();
  return __all_sync(0xFFFFFFFFu, is_good);
}

template <int kWords>
__device__ __forceinline__ void receive_tokens(const DispatchArgs& a, const CallOfCta& asked,
                                               int receiver, ReceiverShared& shared,
                                               std::int32_t* memory) {
  const int num_local = a.ownership.count(a.rank);
  const ReceivePlaces places{memory, memory + a.ownership.num_ranks * num_local, num_local};
  const bool reports = receiver == a.num_receivers - 1;
  // After a failure slots may hold what nobody took: their routes mean nothing.
  if (threadIdx.x == 0) shared.failed = asked.has_failed == 0 ? 0 : kGaveUp;
  __syncthreads();
  const std::uint64_t call = asked.number;
  take_announcements(a, call, shared, places);
  __syncthreads();
  if (shared.failed == kGaveUp) return;
  find_places(a, call, reports, shared, places);
  __syncthreads();
  if (shared.failed != 0) return;
  // Slots in the order in which every source sends them; few pieces go to as many CTAs.
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_receivers * kExchangeWarps;
  const int num_pieces = a.layout.num_pieces;
  const int per_slot = a.ownership.num_ranks * num_pieces;
  const int num_items = shared.most_from * per_slot;
#pragma unroll 1
  for (int item = warp * a.num_receivers + receiver; item < num_items; item += num_warps) {
    const int slot = a.by_slot.quotient(item);
    const int rest = item - slot * per_slot;
    const int nth = a.by_pieces.quotient(rest);
    const int turned = nth + a.rank;
    const int source = turned < a.ownership.num_ranks ? turned : turned - a.ownership.num_ranks;
    if (slot >= shared.num_from[source]) continue;
    Arriving in{source, slot, rest - nth * num_pieces, a.layout.row(call, source, slot), 0};
    in.at = a.layout.piece(in.row, in.piece);
    if (!receive_piece<kWords>(a, call, in, lane, shared, shared.pieces[warp], places)) return;
  }
  if (reports) report_totals(a, shared, places);
}

}  // namespace switchyard
