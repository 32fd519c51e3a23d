// SPDX-License-Identifier: Apache-2.0
//
// direct_combine.cuh: the combine of calls that direct_dispatch.cuh dispatched. Every rank first
// announces how it returns rows (DirectReturn) and learns it of all others:
//
//   in place  its rows lie in its window, complete since the kernels ahead have ended. Their owners
//             read them there.
//   copies    some warps of each CTA copy its rows into its window, each with a flag at its owner,
//             who reads it there
//   pushes    if all ranks do: the same warps store rows at their owners, each with a flag behind
//             it. Otherwise the rank copies.
//
// Warps that copy or push take what is left, so any CTAs that run return everything; the other
// warps sum own tokens. CTA 0 announces before it waits, and waits are for announcements and for
// rows only.
//
// One set of results suffices, and none of it is cleared. A rank stores into results of call n (its
// experts or a copy in its own, a push in those of an owner) after its dispatch n, which has read
// the counts of n, or their announcement, of every rank. A rank sends those in its dispatch n,
// after its combine n - 1 has ended. So all that read any results in n - 1 have ended: owners that
// read rows of peers, and the rank that was pushed to. Within a combine, results are pushed to only
// if no rank has rows there. Announcements and flags of n are overwritten in combine n + 1,
// likewise after every combine n has ended.
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

/// How all ranks return rows.
struct ReturnWays {
  DirectReturn of[kMaxPushRanks];
};

/// Announces this rank's way, and learns those of all ranks where rows are to be received. One
/// thread per rank. False: gave up.
__device__ __forceinline__ bool announce_way(const DirectCombineArgs& a, std::uint64_t call,
                                             bool sends, bool receives, ReturnWays& ways) {
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer >= a.ownership.num_ranks) return true;
  if (sends && blockIdx.x == 0) {
    __threadfence_system();  // behind the rows that kernels ahead have stored
    store_record(a.windows.base[peer] + a.direct.ready(a.rank), static_cast<std::uint32_t>(a.way),
                 tag_of(call));
  }
  if (!receives) return true;
  const std::byte* record = a.windows.base[a.rank] + a.direct.ready(peer);
  Spin spin;
#pragma unroll 1
  for (;;) {
    const std::uint64_t seen = load_acquire_sys_u64(record);
    if (static_cast<std::uint32_t>(seen >> 32) == tag_of(call)) {
      ways.of[peer] = static_cast<DirectReturn>(static_cast<std::uint32_t>(seen));
      return true;
    }
    const auto what = [&] { return WaitFor{WaitPlace::kReturnedRow, peer, -1, call}; };
    if (!spin.again(a.watch, what)) return false;
  }
}

__device__ __forceinline__ bool all_ranks_push(const DirectCombineArgs& a, const ReturnWays& ways,
                                               int lane) {
  const auto stays = [&](int rank) {
    return rank < a.ownership.num_ranks && ways.of[rank] != DirectReturn::kPushes;
  };
  static_assert(kMaxPushRanks == 2 * kLanes);
  return !__any_sync(kAllLanes, stays(lane) || stays(lane + kLanes));
}

/// Where a row lies in a window: pushed to the owner of its token, or copied by the rank that has
/// it. In whole chunks.
__device__ __forceinline__ std::byte* pushed_row(const DirectCombineArgs& a, std::byte* window,
                                                 int token, std::uint32_t column) {
  const std::uint32_t row =
      static_cast<std::uint32_t>(token) * static_cast<std::uint32_t>(a.direct.num_columns) + column;
  return window + a.direct.results_offset + std::uint64_t{row} * a.layout.return_stride;
}
__device__ __forceinline__ std::byte* copied_row(const DirectCombineArgs& a, std::byte* window,
                                                 std::int32_t row) {
  return window + a.direct.results_offset +
         std::uint64_t{static_cast<std::uint32_t>(row)} * a.layout.return_stride;
}

/// A row on its way back.
struct ReturnedRow {
  std::int32_t row;  ///< of the receive buffer
  std::byte* slot;
  std::byte* flag;
};

/// What is left to return, for one warp after another; the next one is asked for ahead.
class RowsToReturn {
 public:
  /// `first`: what lane 0 has taken before.
  __device__ __forceinline__ RowsToReturn(const DirectCombineArgs& a,
                                          const std::int32_t* num_arrivals, bool all_push,
                                          int first, int lane)
      : a_(a), num_arrivals_(num_arrivals), all_push_(all_push), lane_(lane), next_(first) {
    const int most = __reduce_max_sync(
        kAllLanes, max(num_arrivals[lane], num_arrivals[lane + kMaxPushRanks - kLanes]));
    num_rows_ = most * static_cast<int>(a.by_owners.divisor);
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
      to.slot = all_push_ ? pushed_row(a_, window, from.token, static_cast<std::uint32_t>(column))
                          : copied_row(a_, a_.windows.base[a_.rank], to.row);
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
  bool all_push_;
  int lane_;
  int num_rows_ = 0;
  int next_;  ///< in lane 0
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

/// What lanes know of a token: lane i of its i-th partial sum, and of its rows at ranks i and
/// i + 32. Loaded ahead.
struct DirectToken {
  std::int32_t count;
  std::int32_t column;
  std::int32_t rank;
  std::int32_t rows[2];

  __device__ __forceinline__ DirectToken(const DirectCombineArgs& a, int token, int lane) {
    const std::int64_t at = std::int64_t{token} * a.num_topk + lane;
    count = a.state.num_partials[token];
    column = lane < a.num_topk ? a.state.columns[at] : 0;
    rank = lane < a.num_topk ? a.state.partial_ranks[at] : 0;
    const int num_ranks = a.ownership.num_ranks;
    const auto* placed = reinterpret_cast<const std::int32_t*>(a.windows.base[a.rank] +
                                                               a.direct.placed_rows_offset) +
                         std::int64_t{token} * num_ranks;
    rows[0] = lane < num_ranks ? placed[lane] : -1;
    rows[1] = lane + kLanes < num_ranks ? placed[lane + kLanes] : -1;
  }
};

/// Where lane i finds the i-th partial sum of a token.
struct DirectPartial {
  enum class Form : std::uint8_t { kWire, kInPlace, kOwn };
  const std::byte* from;
  Form form;
  bool has_flag;

  __device__ __forceinline__ DirectPartial(const DirectCombineArgs& a, const ReturnWays& ways,
                                           bool all_push, const DirectToken& of, int token,
                                           int lane)
      : from(nullptr), form(Form::kWire), has_flag(false) {
    const int rank = lane < of.count ? of.rank : 0;
    const std::int32_t low = __shfl_sync(kAllLanes, of.rows[0], rank % kLanes);
    const std::int32_t high = __shfl_sync(kAllLanes, of.rows[1], rank % kLanes);
    const std::int32_t row = rank < kLanes ? low : high;
    if (lane >= of.count) return;
    if (a.reads_own && rank == a.rank) {
      from = a.results.data + row * a.results.stride;
      form = Form::kOwn;
    } else if (ways.of[rank] == DirectReturn::kInPlace) {
      from = a.windows.base[rank] + a.direct.results_offset + row * (2 * a.layout.shape.hidden);
      form = Form::kInPlace;
    } else {
      has_flag = true;
      from = all_push ? pushed_row(a, a.windows.base[a.rank], token,
                                   static_cast<std::uint32_t>(of.column))
                      : copied_row(a, a.windows.base[rank], row);
    }
  }
  /// False: a lane gave up.
  __device__ __forceinline__ bool wait(const DirectCombineArgs& a, std::uint64_t call,
                                       const DirectToken& of, int token) const {
    bool is_good = true;
    if (has_flag) {
      const std::byte* flag = a.windows.base[a.rank] + a.direct.return_flag(token, of.column);
      Spin spin;
#pragma unroll 1
      while (static_cast<std::uint32_t>(load_acquire_sys_u64(flag) >> 32) != tag_of(call)) {
        is_good = spin.again(a.watch, [&] {
          return WaitFor{WaitPlace::kReturnedRow, of.rank, token, call};
        });
        if (!is_good) break;
      }
    }
    const bool all_are = __all_sync(kAllLanes, is_good);
    __syncwarp();
    return all_are;
  }
};

/// A lane's part of a row that is not in wire form.
__device__ __forceinline__ void load_any(const DirectCombineArgs& a, const std::byte* from,
                                         DirectPartial::Form form, std::int32_t first,
                                         std::uint32_t (&words)[kVecWords<DType::kBF16>]) {
  const bool is_own = form == DirectPartial::Form::kOwn;
  const std::int64_t hidden = a.layout.shape.hidden;
  const ReturnRowSource row{from, 0, hidden, is_own ? a.results.dtype : DType::kBF16,
                            is_own ? a.results.are_aligned : hidden % kReturnVecElements == 0};
  float x[kReturnVecElements];
  widen_raw(row.dtype, load_raw(row, 0, first, true), x);
  narrow_vec<DType::kBF16>(x, words);  // as rows of peers travel
}

/// Adds some partial sums to kChunks chunks of a token, in order.
template <bool kIsCommon, int kChunks>
__device__ __forceinline__ void add_partials(const DirectCombineArgs& a, const DirectPartial& of,
                                             int count, int first, int num_chunks, int lane,
                                             float (&sum)[kChunks][kReturnVecElements]) {
  constexpr int kAtOnce = 2;
  constexpr DType kWire = DType::kBF16;
  const std::size_t at = static_cast<std::size_t>(first) * 2;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAtOnce) {
    std::uint32_t words[kAtOnce][kChunks][kVecWords<kWire>] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int which = (begin + i) % kLanes;
      const auto* from = reinterpret_cast<const std::byte*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(of.from), which));
      const auto form = static_cast<DirectPartial::Form>(
          __shfl_sync(kAllLanes, static_cast<int>(of.form), which));
      if (begin + i >= count) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const std::int32_t element = first + c * kReturnChunkElements;
        const bool is_there = kIsCommon ? c < num_chunks : element < a.layout.shape.hidden;
        if (!is_there) continue;
        if (kIsCommon || form == DirectPartial::Form::kWire) {
          load_relaxed_sys(from + at + c * kLanes * kUnitBytes, words[i][c]);
        } else {
          load_any(a, from, form, element, words[i][c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= count) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
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
                                                  const ReturnWays& ways, bool all_push, int warp,
                                                  int num_warps) {
  constexpr int kChunks = kIsCommon ? 2 : 1;
  constexpr DType kWire = DType::kBF16;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int of_token = static_cast<int>(a.grid.by_items.divisor);
  const int num_items = a.sums.num_tokens * of_token;
  if (warp >= num_items) return;
  int token = a.grid.by_items.quotient(warp);
  DirectToken next(a, token, lane);
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    token = a.grid.by_items.quotient(item);
    const DirectToken of = next;
    if (item + num_warps < num_items) {
      next = DirectToken(a, a.grid.by_items.quotient(item + num_warps), lane);
    }
    const DirectPartial partial(a, ways, all_push, of, token, lane);
    if (!partial.wait(a, call, of, token)) return;
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
  __shared__ ReturnWays ways;
  __shared__ std::uint64_t arrived[kReturningWarps][kReturnStages];
  __shared__ ReturnPart parts[kReturningWarps][kReturnStages];
  const std::uint32_t prefetched = begin_kernel(a);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_returning = sends && a.way != DirectReturn::kInPlace ? kReturningWarps : 0;
  const int first_taken = warp < num_returning && lane == 0 ? take_combine_share(a.state) : 0;
  std::uint64_t call = 0;
  if (sends) {
    if (!begin_return(a, prefetched, next, num_arrivals, call)) return;
  } else {
    next.request(a, prefetched);
    __syncthreads();
    if (next.has_failed != 0) return;
    call = next.number - 1;
  }
  if (__syncthreads_or(!announce_way(a, call, sends, receives, ways)) != 0) return;
  const bool all_push = receives && all_ranks_push(a, ways, lane);
  if (warp < num_returning) {
    RowsToReturn rows(a, num_arrivals, all_push, first_taken, lane);
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
        a, call, ways, all_push,
        (warp - num_returning) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
        summing * static_cast<int>(gridDim.x));
  }
  stamp_end(a);
}

}  // namespace switchyard::cuda
