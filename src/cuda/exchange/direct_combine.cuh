// SPDX-License-Identifier: Apache-2.0
//
// direct_combine.cuh: the combine of calls that direct_dispatch.cuh dispatched. Some warps of each
// CTA return rows to their owners, one after another, each with a flag behind it; they take what is
// left and wait for no peer, so any CTAs that run return everything. The other warps sum own
// tokens: rows of peers from their slots, which they empty for dispatches of the other kind, own
// rows from where the experts wrote them.
#pragma once

#include "cuda/base/launch.h"
#include "cuda/exchange/combine_receive.cuh"
#include "cuda/exchange/combine_send.cuh"
#include "cuda/exchange/direct_args.h"

namespace switchyard::cuda {

inline constexpr int kReturningWarps = 2;
inline constexpr int kReturnStages = 3;  ///< parts of rows that a warp has on their way
inline constexpr int kReturnStageBytes = 16384;
inline constexpr std::size_t kReturnRingBytes =
    std::size_t{kReturningWarps} * kReturnStages * kReturnStageBytes;

/// A row on its way back.
struct ReturnedRow {
  std::int32_t row;  ///< of the receive buffer
  std::byte* slot;
  std::byte* flag;
};

/// What is left to return, for one warp after another; the next one is asked for ahead.
class RowsToReturn {
 public:
  __device__ __forceinline__ RowsToReturn(const DirectCombineArgs& a,
                                          const std::int32_t* num_arrivals, int lane)
      : a_(a), num_arrivals_(num_arrivals), lane_(lane), slots_(a.layout) {
    const int most = __reduce_max_sync(
        kAllLanes, max(num_arrivals[lane], num_arrivals[lane + kMaxPushRanks - kLanes]));
    num_rows_ = most * static_cast<int>(a.by_owners.divisor);
    request();
  }
  /// False: nothing is left.
  __device__ __forceinline__ bool take(ReturnedRow& to) {
    const auto max_tokens = static_cast<std::int32_t>(a_.layout.shape.max_tokens);
#pragma unroll 1
    for (;;) {
      const int taken = __shfl_sync(kAllLanes, next_, 0);
      if (taken >= num_rows_) return false;
      request();
      const int nth = a_.by_owners.quotient(taken);
      const int turn = taken - nth * static_cast<int>(a_.by_owners.divisor);
      const int turned = a_.rank + 1 + turn;  // this rank, if at all, last
      const int owner = turned < a_.ownership.num_ranks ? turned : turned - a_.ownership.num_ranks;
      if (nth >= num_arrivals_[owner]) continue;
      const ArrivedToken from(a_, owner * max_tokens + nth, lane_);
      if (present_choices(from.row) == 0) continue;
      const int k = highest_choice(from.row);
      const int column = a_.layout.column(a_.rank, k);
      std::byte* window = a_.windows.base[owner];
      to.row = __shfl_sync(kAllLanes, from.row, k);
      to.slot = window + slots_.at(a_.layout, from.token, 0) +
                std::uint64_t{static_cast<std::uint32_t>(column)} * a_.layout.return_stride;
      to.flag = window + a_.direct.return_flag(from.token, column);
      return true;
    }
  }

 private:
  __device__ __forceinline__ void request() {
    if (lane_ == 0) next_ = take_combine_share(a_.state);
  }

  const DirectCombineArgs& a_;
  const std::int32_t* num_arrivals_;
  int lane_;
  ReturnSlots slots_;
  int num_rows_ = 0;
  int next_ = 0;  ///< in lane 0
};

/// Behind all stores of a row that this thread knows to be complete.
__device__ __forceinline__ void raise_flag(std::byte* flag, std::uint64_t call) {
  __threadfence_system();
  store_record(flag, 1, tag_of(call));
}

/// What one lane of a warp needs of a part of a row in shared memory.
struct ReturnPart {
  std::byte* to;
  std::byte* flag;  ///< null: more parts of the row follow
  std::uint32_t bytes;
};

/// A warp's part of the shared memory of a CTA.
struct ReturnRing {
  std::uint64_t* arrived;  ///< [kReturnStages] barriers
  ReturnPart* parts;       ///< [kReturnStages]
  std::byte* memory;       ///< [kReturnStages, kReturnStageBytes]
};

/// Copies rows through shared memory: loads and stores are bulk copies, which lane 0 asks for. A
/// stage is loaded again when the store from it has read it; the flag of a row follows when the
/// store behind its last one has been asked for.
class RowStream {
 public:
  __device__ __forceinline__ RowStream(const DirectCombineArgs& a, RowsToReturn& rows,
                                       const ReturnRing& ring, int lane)
      : a_(a), rows_(rows), ring_(ring), is_first_(lane == 0) {}

  __device__ __forceinline__ void run(std::uint64_t call) {
    if (is_first_) fence_bulk_global();  // rows that kernels ahead have stored
    int num_loaded = 0;
    while (num_loaded < kReturnStages && load(num_loaded)) ++num_loaded;
    bool has_more = num_loaded == kReturnStages;
    std::byte* flag = nullptr;  // of the row before
#pragma unroll 1
    for (int n = 0; n < num_loaded; ++n) {
      const int stage = n % kReturnStages;
      ReturnPart part{};
      if (is_first_) {
        const auto parity = static_cast<std::uint32_t>(n / kReturnStages & 1);
        while (!try_wait_barrier(ring_.arrived + stage, parity)) {
        }
        part = ring_.parts[stage];
        bulk_copy_to_global(part.to, ring_.memory + stage * kReturnStageBytes, part.bytes);
        commit_bulk_group();
        wait_bulk_groups_read<1>();
      }
      __syncwarp();
      if (n > 0 && has_more) {
        has_more = load((n - 1) % kReturnStages);
        num_loaded += has_more ? 1 : 0;
      }
      if (!is_first_) continue;
      if (flag != nullptr) {
        wait_bulk_groups<1>();
        raise_flag(flag, call);
      }
      flag = part.flag;
    }
    if (!is_first_) return;
    wait_bulk_groups<0>();
    if (flag != nullptr) raise_flag(flag, call);
  }

 private:
  __device__ __forceinline__ bool load(int stage) {
    if (left_ == 0) {
      ReturnedRow row{};
      if (!rows_.take(row)) return false;
      from_ = a_.results.data + product_of(row.row, a_.results.stride);
      to_ = row.slot;
      flag_ = row.flag;
      left_ = a_.layout.return_stride;
    }
    const std::uint32_t bytes = min(left_, std::uint32_t{kReturnStageBytes});
    left_ -= bytes;
    if (is_first_) {
      ring_.parts[stage] = {to_, left_ == 0 ? flag_ : nullptr, bytes};
      arrive_expecting(ring_.arrived + stage, bytes);
      bulk_copy_to_shared(ring_.memory + stage * kReturnStageBytes, from_, bytes,
                          ring_.arrived + stage);
    }
    from_ += bytes;
    to_ += bytes;
    return true;
  }

  const DirectCombineArgs& a_;
  RowsToReturn& rows_;
  ReturnRing ring_;
  bool is_first_;
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::byte* flag_ = nullptr;
  std::uint32_t left_ = 0;  ///< bytes of the row
};

/// The same for rows of another dtype, or that do not lie in units.
__device__ __forceinline__ void return_any_rows(const DirectCombineArgs& a, RowsToReturn& rows,
                                                std::uint64_t call, int lane) {
  const ReturnRowSource source{a.results.data, a.results.stride, a.layout.shape.hidden,
                               a.results.dtype, a.results.are_aligned};
  ReturnedRow row{};
#pragma unroll 1
  while (rows.take(row)) {
#pragma unroll 1
    for (int chunk = 0; chunk < a.layout.num_return_chunks; ++chunk) {
      const std::int32_t first = chunk * kReturnChunkElements + lane * kReturnVecElements;
      const bool is_there = first < a.layout.shape.hidden;
      float x[kReturnVecElements];
      widen_raw(a.results.dtype, load_raw(source, row.row, first, is_there), x);
      const std::size_t at = static_cast<unsigned>(chunk) * a.layout.return_chunk_stride;
      if (is_there) send_return<DType::kBF16>({nullptr, row.slot + at}, lane, x);
    }
    __syncwarp();
    if (lane == 0) raise_flag(row.flag, call);
  }
}

/// A partial sum of a token: lane i has the i-th.
struct DirectPartial {
  const std::byte* from;
  bool is_slot;  ///< of a peer, with a flag; else an own row

  __device__ __forceinline__ DirectPartial(const DirectCombineArgs& a, const ReturnSlots& slots,
                                           const TokenPartials& of, int token, int lane)
      : from(nullptr), is_slot(lane < of.count) {
    if (!is_slot) return;
    std::byte* own = a.windows.base[a.rank];
    if (a.reads_own && peer_of(a, token, lane) == a.rank) {
      const auto* rows = reinterpret_cast<const std::int32_t*>(own + a.direct.own_rows_offset);
      from = a.results.data + rows[token] * a.results.stride;
      is_slot = false;
      return;
    }
    from = own + slots.at(a.layout, token, 0) + std::uint64_t{of.column} * a.layout.return_stride;
  }
  /// False: a lane gave up.
  __device__ __forceinline__ bool wait(const DirectCombineArgs& a, std::uint64_t call,
                                       const TokenPartials& of, int token, int lane) const {
    bool is_good = true;
    if (is_slot) {
      const std::byte* flag =
          a.windows.base[a.rank] + a.direct.return_flag(token, static_cast<int>(of.column));
      Spin spin;
#pragma unroll 1
      while (static_cast<std::uint32_t>(load_acquire_sys_u64(flag) >> 32) != tag_of(call)) {
        is_good = spin.again(a.watch, [&] {
          return WaitFor{WaitPlace::kReturnedRow, peer_of(a, token, lane), token, call};
        });
        if (!is_good) break;
      }
    }
    const bool all_are = __all_sync(kAllLanes, is_good);
    __syncwarp();
    return all_are;
  }

 private:
  __device__ static __forceinline__ int peer_of(const DirectCombineArgs& a, int token, int lane) {
    return a.state.partial_ranks[std::int64_t{token} * a.num_topk + lane];
  }
};

/// Adds some partial sums to kChunks chunks of a token, in order, and empties their slots.
template <bool kIsCommon, int kChunks>
__device__ __forceinline__ void add_partials(const DirectCombineArgs& a, const DirectPartial& of,
                                             int count, int first, int num_chunks, int lane,
                                             float (&sum)[kChunks][kReturnVecElements]) {
  constexpr int kAtOnce = 2;
  constexpr DType kWire = DType::kBF16;
  const std::size_t at = static_cast<std::size_t>(first) * 2;
  const unsigned slots = __ballot_sync(kAllLanes, of.is_slot);
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAtOnce) {
    std::uint32_t words[kAtOnce][kChunks][kVecWords<kWire>] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const auto* from = reinterpret_cast<const std::byte*>(__shfl_sync(
          kAllLanes, reinterpret_cast<unsigned long long>(of.from), (begin + i) % kLanes));
      if (begin + i >= count) continue;
      const bool is_slot = (slots >> (begin + i) & 1) != 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const std::int32_t element = first + c * kReturnChunkElements;
        const bool is_there = kIsCommon ? c < num_chunks : element < a.layout.shape.hidden;
        if (!is_there) continue;
        if (kIsCommon || is_slot) {
          load_relaxed_sys(from + at + c * kLanes * kUnitBytes, words[i][c]);
        } else {
          const ReturnRowSource own{from, 0, a.layout.shape.hidden, a.results.dtype,
                                    a.results.are_aligned};
          float x[kReturnVecElements];
          widen_raw(a.results.dtype, load_raw(own, 0, element, true), x);
          narrow_vec<kWire>(x, words[i][c]);  // as rows of peers travel
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const auto to = __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(of.from),
                                  (begin + i) % kLanes);
      if (begin + i >= count) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const std::int32_t element = first + c * kReturnChunkElements;
        const bool is_there = kIsCommon ? c < num_chunks : element < a.layout.shape.hidden;
        if (is_there && (slots >> (begin + i) & 1) != 0) {
          fill_empty<4>(reinterpret_cast<std::byte*>(to) + at + c * kLanes * kUnitBytes);
        }
        float x[kReturnVecElements];
        widen_words<kWire>(words[i][c], x);
#pragma unroll
        for (int e = 0; e < kReturnVecElements; ++e) sum[c][e] = sum[c][e] + x[e];
      }
    }
  }
}

/// Sums own tokens, together with the other summing warps of all CTAs.
template <bool kIsCommon>
__device__ __forceinline__ void sum_direct_tokens(const DirectCombineArgs& a, std::uint64_t call,
                                                  int warp, int num_warps) {
  constexpr int kChunks = kIsCommon ? 2 : 1;
  constexpr DType kWire = DType::kBF16;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int of_token = static_cast<int>(a.grid.by_items.divisor);
  const int num_items = a.sums.num_tokens * of_token;
  const ReturnSlots slots(a.layout);
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    const int token = a.grid.by_items.quotient(item);
    if (item + num_warps < num_items) {
      TokenPartials::prefetch(a, a.grid.by_items.quotient(item + num_warps));
    }
    const TokenPartials of(a, token, lane);
    const DirectPartial partial(a, slots, of, token, lane);
    if (!partial.wait(a, call, of, token, lane)) return;
    stamp(a, Stage::kChunkSeen);
    const int first_chunk = (item - token * of_token) * a.grid.chunks_per_item;
    const int end = min(first_chunk + a.grid.chunks_per_item, a.layout.num_return_chunks);
#pragma unroll 1
    for (int chunk = first_chunk; chunk < end; chunk += kChunks) {
      const std::int32_t first = chunk * kReturnChunkElements + lane * kReturnVecElements;
      float sum[kChunks][kReturnVecElements] = {};
      if (!kIsCommon && first < a.layout.shape.hidden) add_bias(a, token, first, sum[0]);
      add_partials<kIsCommon>(a, partial, of.count, first, end - chunk, lane, sum);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const std::int32_t at = first + c * kReturnChunkElements;
        const bool is_there = kIsCommon ? c < end - chunk : at < a.layout.shape.hidden;
        if (!is_there) continue;
        store_output<kWire, kIsCommon>(a, output_at<kWire, kIsCommon>(a, token, at), token, at,
                                       sum[c]);
      }
    }
  }
}

template <bool kIsCommon>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    direct_combine_kernel(const __grid_constant__ DirectCombineArgs a, bool sends, bool receives) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ CallOfCta next;
  __shared__ std::int32_t num_arrivals[kMaxPushRanks];
  __shared__ std::uint64_t arrived[kReturningWarps][kReturnStages];
  __shared__ ReturnPart parts[kReturningWarps][kReturnStages];
  const std::uint32_t prefetched = begin_kernel(a);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  std::uint64_t call = 0;
  if (sends) {
    if (!begin_return(a, prefetched, next, num_arrivals, call)) return;
  } else {
    next.request(a, prefetched);
    __syncthreads();
    if (next.has_failed != 0) return;
    call = next.number - 1;
  }
  const int num_returning = sends ? kReturningWarps : 0;
  if (warp < num_returning) {
    RowsToReturn rows(a, num_arrivals, lane);
    if constexpr (kIsCommon) {
      if (lane == 0) {
        for (int s = 0; s < kReturnStages; ++s) init_barrier(&arrived[warp][s]);
        fence_barrier_init();
      }
      const ReturnRing ring{arrived[warp], parts[warp],
                            memory + warp * kReturnStages * kReturnStageBytes};
      RowStream(a, rows, ring, lane).run(call);
    } else {
      return_any_rows(a, rows, call, lane);
    }
    stamp(a, Stage::kFirstStore);
  } else if (receives) {
    const int summing = cta_warps() - num_returning;
    sum_direct_tokens<kIsCommon>(
        a, call,
        (warp - num_returning) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
        summing * static_cast<int>(gridDim.x));
  }
  stamp_end(a);
}

}  // namespace switchyard::cuda
