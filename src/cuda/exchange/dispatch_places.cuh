// SPDX-License-Identifier: Apache-2.0
//
// dispatch_places.cuh: where received rows go. Each receiving CTA reads the announcements of all
// ranks and sums them up to find where each source's rows for each expert begin.
#pragma once

#include "cuda/exchange/dispatch_route.cuh"
#include "cuda/exchange/row_form.cuh"

namespace switchyard::cuda {

/// A row of the receive buffer that gets a copy of a chunk.
struct Target {
  std::byte* row;
  std::byte* scales;  ///< its first scale
};

/// A warp's scratch memory for its current chunk.
struct ChunkShared {
  alignas(16) Target targets[kMaxPushTopk];  ///< in order of choices, without gaps
  alignas(16) std::uint8_t scales[kMaxChunkScaleBytes];
};

/// The start of a receiver's dynamic shared memory. It is followed by the first place of each
/// source's rows for each expert [P, L] and the first row of each expert [L].
struct ReceiverShared {
  std::int32_t num_from[kMaxPushRanks];     ///< rows from each source
  std::int32_t rows_before[kMaxPushRanks];  ///< rows from the sources before it
  std::int32_t max_from;
  std::int32_t num_done;  ///< warps that have received their announcements
  std::uint32_t failed;   ///< not 0: no rows are received
  ChunkShared chunks[kExchangeWarps];
};

/// Exclusive prefix sum over the lanes.
__device__ __forceinline__ int sum_before(int value, int lane) {
  int sum = value;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

struct ReceivePlaces {
  std::int32_t* before;     ///< [P, L]
  std::int32_t* first_row;  ///< [L]
  std::int32_t num_local;   ///< L
};

/// One warp receives how many rows come from each source.
__device__ __forceinline__ void receive_source_counts(const DispatchArgs& a, std::uint64_t call,
                                                      int lane, ReceiverShared& shared) {
  const int num_ranks = a.ownership.num_ranks;
  std::int32_t next = 0;
  std::int32_t max_count = 0;
#pragma unroll 1
  for (int base = 0; base < num_ranks; base += kLanes) {
    const int s = base + lane;
    std::uint32_t value = 0;
    if (s < num_ranks && !wait_record(a.windows.base[a.rank] + a.layout.announcement(call, s),
                                      a.watch, {WaitPlace::kAnnouncement, s, -1, call}, value)) {
      shared.failed = 1;
    }
    const auto count = static_cast<std::int32_t>(value);
    const std::int32_t before = next + sum_before(count, lane);
    if (s < num_ranks) {
      shared.num_from[s] = count;
      shared.rows_before[s] = a.received.source_rows > 0 ? s * a.received.source_rows : before;
    }
    next = __shfl_sync(kAllLanes, before + count, kLanes - 1);
    max_count = max(max_count, __reduce_max_sync(kAllLanes, count));
  }
  if (lane == 0) shared.max_from = max_count;
}

/// Receives how many rows of an expert come from each source, and finds where each source's rows
/// begin. An expert's rows are ordered by (source, token). Returns their number.
__device__ __forceinline__ std::int32_t receive_expert_counts(const DispatchArgs& a,
                                                              std::uint64_t call, int expert,
                                                              ReceiverShared& shared,
                                                              const ReceivePlaces& places) {
  constexpr int kAtOnce = 4;
  const std::size_t own = (1 + static_cast<std::size_t>(expert)) * kRecordBytes;
  const std::uint32_t tag = tag_of(call);
  const int num_ranks = a.ownership.num_ranks;
  std::int32_t sum = 0;
#pragma unroll 1
  for (int base = 0; base < num_ranks; base += kAtOnce) {
    std::uint64_t records[kAtOnce];
    Spin spin;
    for (;;) {
      int missing = -1;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int s = min(base + i, num_ranks - 1);
        records[i] = load_record(a.windows.base[a.rank] + a.layout.announcement(call, s) + own);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (static_cast<std::uint32_t>(records[i] >> 32) != tag) missing = base + i;
      }
      if (missing < 0) break;
      const auto what = [&] {
        return WaitFor{WaitPlace::kAnnouncement, min(missing, num_ranks - 1), -1, call};
      };
      if (spin.again(a.watch, what)) continue;
      shared.failed = 1;
      return 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i >= num_ranks) break;
      places.before[(base + i) * places.num_local + expert] = sum;
      sum += static_cast<std::int32_t>(static_cast<std::uint32_t>(records[i]));
    }
  }
  return sum;
}

/// Turns each expert's number of rows into its first row, in layouts where experts follow one
/// another.
__device__ __forceinline__ void find_first_rows(const DispatchArgs& a,
                                                const ReceivePlaces& places) {
  if (a.rows_layout == Layout::kBatched || !a.layout.shape.sends_routes) return;
  const auto lane = static_cast<int>(threadIdx.x);
  const auto alignment = static_cast<std::uint32_t>(a.received.row_alignment);
  std::int32_t next = 0;
#pragma unroll 1
  for (int base = 0; lane < kLanes && base < places.num_local; base += kLanes) {
    const int e = base + lane;
    const bool is_there = e < places.num_local;
    const std::uint32_t count = is_there ? static_cast<std::uint32_t>(places.first_row[e]) : 0;
    const auto size = static_cast<std::int32_t>((count + alignment - 1) / alignment * alignment);
    const std::int32_t before = next + sum_before(size, lane);
    if (is_there) places.first_row[e] = before;
    next = __shfl_sync(kAllLanes, before + size, kLanes - 1);
  }
  __syncthreads();
}

/// Reports to the caller how many rows an expert got; only one CTA does so.
__device__ __forceinline__ void report_expert(const DispatchArgs& a, std::uint64_t call, int expert,
                                              std::int32_t count) {
  a.received.num_rows[expert] = count;
  if (count > a.received.capacity) {
    give_up(a.watch, WaitFailure::kCapacityExceeded,
            {WaitPlace::kAnnouncement, a.rank, expert, call},
            static_cast<std::int32_t>(a.received.capacity), count, 0);
  }
}

/// One warp compares the modes of all ranks with its own; one CTA does so.
__device__ __forceinline__ void compare_modes(const DispatchArgs& a, std::uint64_t call, int lane,
                                              ReceiverShared& shared, int num_local) {
  const std::size_t at = (1 + static_cast<std::size_t>(num_local)) * kRecordBytes;
#pragma unroll 1
  for (int s = lane; s < a.ownership.num_ranks; s += kLanes) {
    const WaitFor what{WaitPlace::kAnnouncement, s, -1, call};
    std::uint32_t mode = 0;
    const std::byte* from = a.windows.base[a.rank] + a.layout.announcement(call, s) + at;
    if (!wait_record(from, a.watch, what, mode)) {
      shared.failed = 1;
    } else if (mode != a.mode) {
      give_up(a.watch, WaitFailure::kDifferentMode, what, static_cast<std::int32_t>(a.mode),
              static_cast<std::int32_t>(mode), 0);
      shared.failed = 1;
    }
  }
}

/// Receives the announcements of all ranks and finds where each source's rows for each expert go.
__device__ __forceinline__ void receive_announcements(const DispatchArgs& a, std::uint64_t call,
                                                      bool reports, ReceiverShared& shared,
                                                      const ReceivePlaces& places) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_takers = 1 + min((places.num_local + kLanes - 1) / kLanes, cta_warps() - 1);
  if (reports && warp == cta_warps() - 1) compare_modes(a, call, lane, shared, places.num_local);
  if (warp >= num_takers) return;
  if (warp == 0) {
    receive_source_counts(a, call, lane, shared);
  } else {
#pragma unroll 1
    for (int e = static_cast<int>(threadIdx.x) - kLanes; e < places.num_local;
         e += (num_takers - 1) * kLanes) {
      const std::int32_t sum = receive_expert_counts(a, call, e, shared, places);
      const bool is_batched = a.rows_layout == Layout::kBatched;
      places.first_row[e] = is_batched ? e * static_cast<std::int32_t>(a.received.capacity) : sum;
      // Every CTA finds the same sums, so none of them puts a row where there is no room.
      if (sum > a.received.capacity) shared.failed = 1;
      if (reports) report_expert(a, call, e, sum);
    }
  }
  __syncwarp();
  if (lane == 0) atomicAdd(&shared.num_done, 1);
}

/// Writes what only the caller and the combine need; one CTA does so, at its end.
__device__ __forceinline__ void report_totals(const DispatchArgs& a, const ReceiverShared& shared,
                                              const ReceivePlaces& places) {
  const int num_local = a.ownership.count(a.rank);
  const bool has_routes = a.layout.shape.sends_routes;
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < num_local; e += cta_threads()) {
    if (has_routes) a.received.first_row[e] = places.first_row[e];
  }
#pragma unroll 1
  for (int s = static_cast<int>(threadIdx.x); s < a.ownership.num_ranks; s += cta_threads()) {
    a.state.num_arrivals[s] = shared.num_from[s];
  }
  if (threadIdx.x >= kLanes) return;
  const int lane = static_cast<int>(threadIdx.x);
  std::int32_t total = 0;
  if (has_routes) {
#pragma unroll 1
    for (int e = lane; e < num_local; e += kLanes) total += a.received.num_rows[e];
  } else {
#pragma unroll 1
    for (int s = lane; s < a.ownership.num_ranks; s += kLanes) total += shared.num_from[s];
  }
  total = __reduce_add_sync(kAllLanes, total);
  if (lane == 0) *a.received.total_rows = total;
}

}  // namespace switchyard::cuda
