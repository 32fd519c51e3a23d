// SPDX-License-Identifier: Apache-2.0
//
// dispatch_receive.cuh: the receive part of dispatch. Each CTA takes the announcements of all ranks
// and sums them up: where each source's rows of each expert begin. A warp then takes piece after
// piece and puts it at its rows, one for each local expert that the token chose.
#pragma once

#include "cuda/dispatch_send.cuh"
#include "cuda/stamps.cuh"

namespace switchyard {

/// A row of the receive buffer that wants a piece.
struct Target {
  std::int32_t row;
  std::int32_t expert;  ///< local index; 0 in layouts with a row a token
};

/// What a warp keeps of the piece at hand.
struct PieceShared {
  Target targets[kMaxPushTopk];
  alignas(16) std::uint32_t details[4 * kMaxDetailUnits];
  alignas(16) std::uint8_t scales[kMaxPieceScaleBytes];
};

/// In dynamic shared memory, after it: first place of each source's rows of each expert [P, L],
/// then the first row of each expert [L].
struct ReceiverShared {
  std::int32_t num_from[kMaxPushRanks];     ///< rows of each source
  std::int32_t rows_before[kMaxPushRanks];  ///< rows of the sources before it
  std::int32_t most_from;
  std::int32_t failed;
  PieceShared pieces[kExchangeWarps];
};

struct ReceivePlaces {
  std::int32_t* before;     ///< [P, L]
  std::int32_t* first_row;  ///< [L]
};

__device__ __forceinline__ void take_announcements(const DispatchArgs& a, std::uint64_t call,
                                                   ReceiverShared& shared,
                                                   const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  // The last warp takes how many rows come of each source, the others how many of each expert.
  const bool takes_totals = warp == kExchangeWarps - 1;
  const int num_outer = takes_totals ? 1 : a.ownership.num_ranks;
  const int num_inner = takes_totals ? a.ownership.num_ranks : num_local;
#pragma unroll 1
  for (int outer = takes_totals ? 0 : warp; outer < num_outer; outer += kExchangeWarps - 1) {
#pragma unroll 1
    for (int inner = lane; inner < num_inner; inner += kLanes) {
      const int source = takes_totals ? inner : outer;
      const std::size_t at = a.layout.announcement(call, source) +
                             (takes_totals ? 0 : 2 + static_cast<std::size_t>(inner)) * 8;
      std::uint32_t value = 0;
      if (!wait_record(a.windows.base[a.rank] + at, a.watch,
                       {WaitPlace::kAnnouncement, source, -1, call}, value)) {
        shared.failed = 1;
        value = 0;
      }
      std::int32_t* to =
          takes_totals ? shared.num_from + source : places.before + source * num_local + inner;
      *to = static_cast<std::int32_t>(value);
    }
  }
}

/// Sums of rows over the sources before each, by one warp.
__device__ __forceinline__ void find_sources(const DispatchArgs& a, int lane,
                                             ReceiverShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  std::int32_t next = 0;
  std::int32_t most = 0;
#pragma unroll 1
  for (int base = 0; base < num_ranks; base += kLanes) {
    const int s = base + lane;
    const std::int32_t count = s < num_ranks ? shared.num_from[s] : 0;
    const std::int32_t before = next + sum_before(count, lane);
    if (s < num_ranks) shared.rows_before[s] = before;
    next = __shfl_sync(0xFFFFFFFFu, before + count, kLanes - 1);
    most = max(most, __reduce_max_sync(0xFFFFFFFFu, count));
  }
  if (lane == 0) shared.most_from = most;
}

/// From how many rows each expert has to its first one, by one warp.
__device__ __forceinline__ void find_first_rows(const DispatchArgs& a, int lane,
                                                const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const auto alignment = static_cast<std::uint32_t>(a.row_alignment);
  std::int32_t next = 0;
#pragma unroll 1
  for (int base = 0; base < num_local; base += kLanes) {
    const int e = base + lane;
    const std::uint32_t count = e < num_local ? static_cast<std::uint32_t>(places.first_row[e]) : 0;
    const auto size = static_cast<std::int32_t>((count + alignment - 1) / alignment * alignment);
    const std::int32_t before = next + sum_before(size, lane);
    if (e < num_local) places.first_row[e] = before;
    next = __shfl_sync(0xFFFFFFFFu, before + size, kLanes - 1);
  }
}

/// Tells the caller what came; one CTA does it. `counts` are kept by each thread for its experts.
__device__ __forceinline__ void report_expert(const DispatchArgs& a, std::uint64_t call, int expert,
                                              std::int32_t count) {
  a.num_rows[expert] = count;
  if (a.rows_layout == Layout::kBatched && count > a.capacity) {
    give_up(a.watch, WaitFailure::kCapacityExceeded,
            {WaitPlace::kAnnouncement, a.rank, expert, call}, static_cast<std::int32_t>(a.capacity),
            count, 0);
  }
}

/// Sums over sources, then over experts. Rows of an expert lie by (source, token).
__device__ __forceinline__ void find_places(const DispatchArgs& a, std::uint64_t call, bool reports,
                                            ReceiverShared& shared, const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool is_batched = a.rows_layout == Layout::kBatched;
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < num_local; e += kExchangeThreads) {
    std::int32_t sum = 0;
#pragma unroll 1
    for (int s = 0; s < a.ownership.num_ranks; ++s) {
      const std::int32_t count = places.before[s * num_local + e];
      places.before[s * num_local + e] = sum;
      sum += count;
    }
    places.first_row[e] = is_batched ? e * static_cast<std::int32_t>(a.capacity) : sum;
    if (reports) report_expert(a, call, e, sum);
    if (reports && is_batched) a.first_row[e] = places.first_row[e];
  }
  if (warp == kExchangeWarps - 1) find_sources(a, lane, shared);
  if (is_batched || !a.layout.shape.sends_routes) return;
  __syncthreads();
  if (warp == 0) find_first_rows(a, lane, places);
}

/// What only the caller and the combine want to know; one CTA writes it, last.
__device__ __forceinline__ void report_totals(const DispatchArgs& a, const ReceiverShared& shared,
                                              const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const bool has_routes = a.layout.shape.sends_routes;
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < num_local; e += kExchangeThreads) {
    if (has_routes) a.first_row[e] = places.first_row[e];
  }
#pragma unroll 1
  for (int s = static_cast<int>(threadIdx.x); s < a.ownership.num_ranks; s += kExchangeThreads) {
    a.state.num_arrivals[s] = shared.num_from[s];
  }
  if (threadIdx.x >= kLanes) return;
  const int lane = static_cast<int>(threadIdx.x);
  std::int32_t total = 0;
  if (has_routes) {
#pragma unroll 1
    for (int e = lane; e < num_local; e += kLanes) total += a.num_rows[e];
  } else {
#pragma unroll 1
    for (int s = lane; s < a.ownership.num_ranks; s += kLanes) total += shared.num_from[s];
  }
  total = __reduce_add_sync(0xFFFFFFFFu, total);
  if (lane == 0) *a.total_rows = total;
}

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

/// The scales of a piece to their places in the consumer's layout, a lane for each.
__device__ __forceinline__ void put_scales(const DispatchArgs& a, const Arriving& in, int lane,
                                           int num_targets, const PieceShared& shared) {
  const int s = in.piece * a.scales_per_piece + lane;
  if (lane >= a.scales_per_piece || s >= a.scale_block.num_scales) return;
  const bool is_wide = a.scale_block.element_bytes == 4;
  const bool is_batched = a.scale_block_bytes != 0;
#pragma unroll 1
  for (int r = 0; r < num_targets; ++r) {
    const Target target = shared.targets[r];
    const std::int32_t first =
        is_batched ? target.expert * static_cast<std::int32_t>(a.capacity) : 0;
    std::byte* to =
        a.scales + (is_batched ? static_cast<std::size_t>(target.expert) * a.scale_block_bytes : 0);
    const std::int64_t at = a.scale_block.index(target.row - first, s);
    if (is_wide) {
      reinterpret_cast<std::uint32_t*>(to)[at] =
          reinterpret_cast<const std::uint32_t*>(shared.scales)[lane];
    } else {
      to[at] = static_cast<std::byte>(shared.scales[lane]);
    }
  }
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
  const std::int32_t row = shared.targets[nth].row;
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
  if (route >= 0 && detail < 0) {
    const std::int32_t* before = places.before + in.source * a.ownership.count(a.rank);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * route + i >= num_targets) break;
      const auto expert = static_cast<std::int32_t>(units.more[2 * i] & 0xFFFFu);
      shared.targets[2 * route + i] = {places.first_row[expert] + before[expert] +
                                           static_cast<std::int32_t>(units.more[2 * i + 1]),
                                       expert};
    }
  }
  if (!has_routes && lane == 0) shared.targets[0] = {block.rows_before[in.source] + in.slot, 0};
  __syncwarp();

  if (is_there) {
    std::uint32_t grain[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      grain[i] = units.words[i / Units::kUnitWords][i % Units::kUnitWords];
    const std::int32_t offset = first * kWords / 4;
    const bool is_whole = a.aligned_rows && first + kGrainElements <= a.layout.shape.hidden;
#pragma unroll 1
    for (int r = 0; r < num_targets; ++r) {
      std::byte* to = a.rows + shared.targets[r].row * a.row_bytes + offset;
      if (is_whole) {
        put_grain(to, grain);
      } else {
        std::uint32_t copy[kWords];  // the grain itself stays in registers
#pragma unroll
        for (int i = 0; i < kWords; ++i) copy[i] = grain[i];
        const auto left = static_cast<int>(a.row_bytes) - offset;
        put_bytes(to, left < 4 * kWords ? left : 4 * kWords, copy);
      }
    }
  }
  if (per_piece > 0) put_scales(a, in, lane, num_targets, shared);
  if (in.piece == 0) keep_details(a, in, lane, shared);
  __syncwarp();
  return __all_sync(0xFFFFFFFFu, is_good);
}

template <int kWords>
__device__ __forceinline__ void receive_tokens(const DispatchArgs& a, std::uint64_t call,
                                               int receiver, ReceiverShared& shared,
                                               std::int32_t* memory) {
  const ReceivePlaces places{memory, memory + a.ownership.num_ranks * a.ownership.count(a.rank)};
  const bool reports = receiver == a.num_receivers - 1;
  if (threadIdx.x == 0) shared.failed = 0;
  __syncthreads();
  stamp(a, 1);
  take_announcements(a, call, shared, places);
  __syncthreads();
  if (shared.failed != 0) return;
  stamp(a, 2);
  find_places(a, call, reports, shared, places);
  __syncthreads();
  stamp(a, 3);
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
  stamp(a, 4);
  if (reports) report_totals(a, shared, places);
}

}  // namespace switchyard
