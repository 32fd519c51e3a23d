// SPDX-License-Identifier: Apache-2.0
//
// dispatch_receive.cuh: the receive part of dispatch. Each CTA takes the announcements of all ranks
// and sums them up: where each source's rows of each expert begin. A warp then takes piece after
// piece and puts it at its rows, one for each local expert that the token chose.
#pragma once

#include "cuda/dispatch_send.cuh"

namespace switchyard {

/// In dynamic shared memory, after it: first place of each source's rows of each expert [P, L], then
/// the first row of each expert [L].
struct ReceiverShared {
  std::int32_t num_from[kMaxPushRanks];   ///< rows of each source
  std::int32_t rows_before[kMaxPushRanks];  ///< rows of the sources before it
  std::int32_t most_from;
  std::int32_t total;
  std::int32_t failed;
  std::int32_t rows[kExchangeWarps][kMaxPushTopk];  ///< that want the piece at hand
  alignas(16) std::uint32_t details[kExchangeWarps][4 * kMaxDetailUnits];
};

struct ReceivePlaces {
  std::int32_t* before;     ///< [P, L]
  std::int32_t* first_row;  ///< [L]
};

__device__ __forceinline__ void take_announcements(const DispatchArgs& a, std::uint64_t call,
                                                   ReceiverShared& shared,
                                                   const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const std::byte* own = a.windows.base[a.rank];
  const int per_source = 1 + num_local;
  for (int i = static_cast<int>(threadIdx.x); i < a.ownership.num_ranks * per_source;
       i += kExchangeThreads) {
    const int source = i / per_source;
    const int field = i % per_source;
    const std::size_t record = static_cast<std::size_t>(field == 0 ? 0 : field + 1);
    std::uint32_t value = 0;
    if (!wait_record(own + a.layout.announcement(call, source) + record * 8, a.watch,
                     {WaitPlace::kAnnouncement, source, -1, call}, value)) {
      shared.failed = 1;
      value = 0;
    }
    if (field == 0) {
      shared.num_from[source] = static_cast<std::int32_t>(value);
    } else {
      places.before[source * num_local + field - 1] = static_cast<std::int32_t>(value);
    }
  }
}

/// Sums over sources, then over experts. Rows of an expert lie by (source, token).
__device__ __forceinline__ void find_places(const DispatchArgs& a, ReceiverShared& shared,
                                            const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  for (int e = static_cast<int>(threadIdx.x); e < num_local; e += kExchangeThreads) {
    std::int32_t sum = 0;
    for (int s = 0; s < a.ownership.num_ranks; ++s) {
      const std::int32_t count = places.before[s * num_local + e];
      places.before[s * num_local + e] = sum;
      sum += count;
    }
    places.first_row[e] = sum;  // how many, for now
  }
  __syncthreads();
  if (threadIdx.x >= kLanes) return;
  const int lane = static_cast<int>(threadIdx.x);
  std::int32_t next = 0;
  std::int32_t total = 0;
  for (int base = 0; base < num_local; base += kLanes) {
    const int e = base + lane;
    const std::int32_t count = e < num_local ? places.first_row[e] : 0;
    const auto alignment = static_cast<std::int32_t>(a.row_alignment);
    const std::int32_t size = (count + alignment - 1) / alignment * alignment;
    const std::int32_t before = sum_before(size, lane);
    const bool is_batched = a.rows_layout == Layout::kBatched;
    if (e < num_local) {
      places.first_row[e] = is_batched ? e * static_cast<std::int32_t>(a.capacity) : next + before;
    }
    if (is_batched && count > a.capacity) {
      give_up(a.watch, WaitFailure::kCapacityExceeded, {WaitPlace::kAnnouncement, a.rank, e, 0},
              static_cast<std::int32_t>(a.capacity), count, 0);
      shared.failed = 1;
    }
    next += __shfl_sync(0xFFFFFFFFu, before + size, kLanes - 1);
    total += __shfl_sync(0xFFFFFFFFu, sum_before(count, lane) + count, kLanes - 1);
    if (blockIdx.x == gridDim.x - 1 && e < num_local) {
      a.num_rows[e] = count;
      if (a.first_row != nullptr) a.first_row[e] = places.first_row[e];
    }
  }
  if (lane != 0) return;
  std::int32_t before = 0;
  std::int32_t most = 0;
  for (int s = 0; s < a.ownership.num_ranks; ++s) {
    const bool is_by_rank = a.rows_layout == Layout::kByRank;
    shared.rows_before[s] = is_by_rank ? s * static_cast<std::int32_t>(a.layout.shape.max_tokens) : before;
    before += shared.num_from[s];
    most = max(most, shared.num_from[s]);
  }
  shared.most_from = most;
  shared.total = before;
  if (blockIdx.x != gridDim.x - 1) return;
  for (int s = 0; s < a.ownership.num_ranks; ++s) a.state.num_arrivals[s] = shared.num_from[s];
  *a.total_rows = a.layout.shape.sends_routes ? total : before;
}

/// A piece that is being received, by one warp.
struct Arriving {
  std::int32_t source;
  std::int32_t slot;
  std::int32_t piece;
  std::size_t at;  ///< of the piece in the window
};

/// Finds the rows that want a piece, and how many they are. False: gave up.
__device__ __forceinline__ bool take_routes(const DispatchArgs& a, std::uint64_t call,
                                            const Arriving& in, int lane,
                                            const ReceivePlaces& places, std::int32_t* rows,
                                            int& count) {
  std::byte* own = a.windows.base[a.rank];
  const WaitFor what{WaitPlace::kRow, in.source, in.slot, call};
  const std::size_t at =
      in.at + a.layout.routes_in_piece + static_cast<std::size_t>(lane) * kUnitBytes;
  std::uint32_t words[4] = {};
  bool is_good = true;
  if (lane == 0) {
    load_words(own + at, words);
    is_good = take_unit(own + at, own + a.layout.mark(call, at), a.watch, what, words);
  }
  count = static_cast<int>(__shfl_sync(0xFFFFFFFFu, words[0] >> 16, 0));
  if (lane > 0 && lane < (count + 1) / 2) {
    load_words(own + at, words);
    is_good = take_unit(own + at, own + a.layout.mark(call, at), a.watch, what, words);
  }
  if (__any_sync(0xFFFFFFFFu, !is_good)) return false;
  std::uint32_t route[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t even = __shfl_sync(0xFFFFFFFFu, words[i], lane / 2);
    const std::uint32_t odd = __shfl_sync(0xFFFFFFFFu, words[2 + i], lane / 2);
    route[i] = lane % 2 == 0 ? even : odd;
  }
  const int num_local = a.ownership.count(a.rank);
  const auto expert = static_cast<int>(route[0] & 0xFFFFu);
  if (lane < count && expert < num_local) {
    rows[lane] = places.first_row[expert] + places.before[in.source * num_local + expert] +
                 static_cast<std::int32_t>(route[1]);
  }
  __syncwarp();
  return true;
}

/// Where 16 elements of a row go: whole units, or bytes at the end of a row and in crooked ones.
template <int kWords>
__device__ __forceinline__ void put_grain(const DispatchArgs& a, std::int64_t row,
                                          std::int64_t first, const std::uint32_t (&words)[kWords]) {
  const std::int64_t offset = first * kWords / 4;
  std::byte* to = a.rows + row * a.row_bytes + offset;
  if (a.aligned_rows && first + kGrainElements <= a.layout.shape.hidden) {
    if constexpr (kWords >= 4) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                           words[4 * i + 3]};
      }
    } else {
      *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    }
    return;
  }
  const std::int64_t left = a.row_bytes - offset;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (4 * w + b < left) to[4 * w + b] = static_cast<std::byte>(words[w] >> (8 * b));
    }
  }
}

/// The scales of one unit to their places in the consumer's layout.
__device__ __forceinline__ void put_scales(const DispatchArgs& a, std::int64_t row, std::int64_t s,
                                           const std::uint32_t (&words)[4]) {
  const std::int64_t in_block = a.scale_block_bytes == 0 ? row : row % a.capacity;
  std::byte* to = a.scales + (a.scale_block_bytes == 0
                                  ? 0
                                  : static_cast<std::size_t>(row / a.capacity) * a.scale_block_bytes);
  const bool is_wide = a.scale_block.element_bytes == 4;
  const int per_strip = scales_per_strip(a.scheme);
  const std::int64_t end = min(a.scale_block.num_scales, (s / per_strip + 1) * per_strip);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (is_wide ? i >= 4 : false) break;
    if (s + i >= end) break;
    const std::int64_t at = a.scale_block.index(in_block, s + i);
    if (is_wide) {
      reinterpret_cast<std::uint32_t*>(to)[at] = words[i % 4];
    } else {
      to[at] = static_cast<std::byte>(words[i / 4] >> (8 * (i % 4)));
    }
  }
}

/// Takes the token's number, ids and weights, and keeps what its combine needs.
__device__ __forceinline__ bool take_details(const DispatchArgs& a, std::uint64_t call,
                                             const Arriving& in, int lane,
                                             const std::int32_t* rows, std::uint32_t* words) {
  std::byte* own = a.windows.base[a.rank];
  const int num_id_words = (a.num_topk + 1) / 2;
  const int num_units = (1 + num_id_words + a.num_topk + 3) / 4;
  bool is_good = true;
  if (lane < num_units) {
    const std::size_t at = a.layout.row(call, in.source, in.slot) +
                           static_cast<std::size_t>(lane) * kUnitBytes;
    std::uint32_t unit[4];
    load_words(own + at, unit);
    is_good = take_unit(own + at, own + a.layout.mark(call, at), a.watch,
                        {WaitPlace::kRow, in.source, in.slot, call}, unit);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 * lane + i] = unit[i];
  }
  __syncwarp();
  if (__any_sync(0xFFFFFFFFu, !is_good)) return false;
  const std::int64_t arrival = std::int64_t{in.source} * a.layout.shape.max_tokens + in.slot;
  if (lane == 0) a.state.arrival_token[arrival] = static_cast<std::int32_t>(words[0]);
  const std::uint32_t pair = lane < a.num_topk ? words[1 + lane / 2] : 0;
  const std::int32_t id = static_cast<std::int32_t>(pair >> (16 * (lane % 2)) & 0xFFFFu) - 1;
  const bool is_local = id >= 0 && a.ownership.owner(id) == a.rank;
  const unsigned local = __ballot_sync(0xFFFFFFFFu, is_local);
  const std::int32_t nth = __popc(local & ((1u << lane) - 1));
  const std::int32_t row = rows[a.layout.shape.sends_routes && is_local ? nth : 0];
  const float weight = lane < a.num_topk ? f32_from_bits(words[1 + num_id_words + lane]) : 1.0f;
  __syncwarp();
  if (lane >= a.num_topk) return true;
  a.state.arrival_rows[arrival * a.num_topk + lane] = is_local ? row : -1;
  a.state.arrival_weights[arrival * a.num_topk + lane] = weight;
  if (a.layout.shape.sends_routes) {
    if (is_local && a.row_weights != nullptr) a.row_weights[row] = weight;
    return true;
  }
  const std::int64_t to = std::int64_t{row} * a.num_topk + lane;
  const std::int32_t local_id = is_local ? id - a.ownership.first(a.rank) : -1;
  if (a.row_ids != nullptr) a.row_ids[to] = a.rows_layout == Layout::kCompact ? local_id : id;
  if (a.row_weights != nullptr) a.row_weights[to] = weight;
  return true;
}

/// Takes a piece and puts it at every row that wants it. False: gave up.
template <int kWords>
__device__ __forceinline__ bool receive_piece(const DispatchArgs& a, std::uint64_t call,
                                              const Arriving& in, int lane,
                                              ReceiverShared& shared, const ReceivePlaces& places) {
  constexpr int kUnitWords = kWords < 4 ? kWords : 4;
  constexpr int kUnits = kWords / kUnitWords;
  constexpr std::size_t kStripBytes = kLanes * kWords * 4;
  std::byte* own = a.windows.base[a.rank];
  const WaitFor what{WaitPlace::kRow, in.source, in.slot, call};
  const auto first_of = [&](int s) {
    return std::int64_t{in.piece} * kPieceElements + s * kStripElements + lane * kGrainElements;
  };
  const auto unit_at = [&](int s, int u) {
    return in.at + s * kStripBytes + static_cast<std::size_t>(u * kLanes + lane) * kUnitWords * 4;
  };
  // Everything is asked for before anything is waited for.
  std::uint32_t words[kStripsPerPiece][kUnits][kUnitWords];
#pragma unroll
  for (int s = 0; s < kStripsPerPiece; ++s) {
    if (first_of(s) >= a.layout.shape.hidden) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) load_words(own + unit_at(s, u), words[s][u]);
  }
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  std::int32_t* rows = shared.rows[warp];
  int count = 1;
  if (a.layout.shape.sends_routes) {
    if (!take_routes(a, call, in, lane, places, rows, count)) return false;
  } else {
    if (lane == 0) rows[0] = shared.rows_before[in.source] + in.slot;
    __syncwarp();
  }
  bool is_good = true;
#pragma unroll
  for (int s = 0; s < kStripsPerPiece; ++s) {
    const std::int64_t first = first_of(s);
    if (first >= a.layout.shape.hidden) continue;
    std::uint32_t grain[kWords];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const std::size_t at = unit_at(s, u);
      is_good &= take_unit(own + at, own + a.layout.mark(call, at), a.watch, what, words[s][u]);
#pragma unroll
      for (int i = 0; i < kUnitWords; ++i) grain[u * kUnitWords + i] = words[s][u][i];
    }
    for (int r = 0; is_good && r < count; ++r) put_grain(a, rows[r], first, grain);
  }
  __syncwarp();
  const int scale_units = a.layout.shape.strip_scale_bytes / static_cast<int>(kUnitBytes);
  if (lane < kStripsPerPiece * scale_units) {
    const int per_unit =
        static_cast<int>(kUnitBytes / static_cast<unsigned>(a.scale_block.element_bytes));
    const std::int64_t strip = std::int64_t{in.piece} * kStripsPerPiece + lane / scale_units;
    const std::int64_t s = strip * scales_per_strip(a.scheme) + lane % scale_units * per_unit;
    if (s < a.scale_block.num_scales) {
      const std::size_t at =
          in.at + a.layout.scales_in_piece + static_cast<std::size_t>(lane) * kUnitBytes;
      std::uint32_t unit[4];
      load_words(own + at, unit);
      is_good &= take_unit(own + at, own + a.layout.mark(call, at), a.watch, what, unit);
      for (int r = 0; is_good && r < count; ++r) put_scales(a, rows[r], s, unit);
    }
  }
  __syncwarp();
  if (in.piece == 0) {
    is_good &= take_details(a, call, in, lane, rows, shared.details[warp]);
  }
  return __all_sync(0xFFFFFFFFu, is_good);
}

template <int kWords>
__device__ __forceinline__ void receive_tokens(const DispatchArgs& a, std::uint64_t call,
                                               int receiver, ReceiverShared& shared,
                                               std::int32_t* memory) {
  const ReceivePlaces places{memory, memory + a.ownership.num_ranks * a.ownership.count(a.rank)};
  if (threadIdx.x == 0) shared.failed = 0;
  __syncthreads();
  take_announcements(a, call, shared, places);
  __syncthreads();
  if (shared.failed != 0) return;
  find_places(a, shared, places);
  __syncthreads();
  if (shared.failed != 0) return;
  // Slots in the order in which every source sends them.
  const int warp = receiver * kExchangeWarps + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.num_receivers * kExchangeWarps;
  const int per_slot = a.ownership.num_ranks * a.layout.num_pieces;
  const std::int64_t num_items = std::int64_t{shared.most_from} * per_slot;
  for (std::int64_t item = warp; item < num_items; item += num_warps) {
    const auto slot = static_cast<std::int32_t>(item / per_slot);
    const auto rest = static_cast<std::int32_t>(item % per_slot);
    const std::int32_t source = (rest / a.layout.num_pieces + a.rank) % a.ownership.num_ranks;
    const std::int32_t piece = rest % a.layout.num_pieces;
    if (slot >= shared.num_from[source]) continue;
    const std::size_t at = a.layout.piece(a.layout.row(call, source, slot), piece);
    if (!receive_piece<kWords>(a, call, {source, slot, piece, at}, lane, shared, places)) return;
  }
}

}  // namespace switchyard
