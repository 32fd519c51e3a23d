// SPDX-License-Identifier: Apache-2.0
//
// combine_send.cuh: the send part of combine. Results go to slot (token, column) of the token's
// owner. per_rank first sums this rank's rows of a token, k ascending, and rounds once; per_expert
// sends each row unchanged.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/return_vec.cuh"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {

/// What lane k knows about an arrived token: row and weight of choice k.
struct ArrivedToken {
  std::int32_t row;
  float weight;
  std::int32_t token;

  __device__ __forceinline__ ArrivedToken(const CombineArgs& a, std::int32_t arrival, int lane) {
    const std::int64_t at = std::int64_t{arrival} * a.num_topk + lane;
    row = lane < a.num_topk ? a.state.arrival_rows[at] : -1;
    weight = lane < a.num_topk && a.results.applies_weights ? a.state.arrival_weights[at] : 1.0f;
    token = a.state.arrival_token[arrival];
  }
};

/// Where a chunk of a returned row goes.
struct ReturnTo {
  std::byte* window;  ///< of the token's owner
  std::byte* chunk;
};

/// Sends a lane's rounded sums. NaN is canonical, so no word is reserved.
template <DType kWire>
__device__ __forceinline__ void send_return(const ReturnTo& to, int lane,
                                            const float (&sum)[kReturnVecElements]) {
  std::uint32_t words[kVecWords<kWire>];
  narrow_vec<kWire>(sum, words);
#pragma unroll
  for (int u = 0; u < kVecUnits<kWire>; ++u) {
    const std::uint32_t unit[4] = {words[4 * u], words[4 * u + 1], words[4 * u + 2],
                                   words[4 * u + 3]};
    store_relaxed_sys(to.chunk + (u * kLanes + lane) * kUnitBytes, unit);
  }
}

/// One lane's part of a chunk of the rows of an arrived token.
template <class Wire, bool kIsCommon>
class ReturnRows {
 public:
  __device__ __forceinline__ ReturnRows(const CombineArgs& a, const ArrivedToken& from,
                                        std::int32_t first)
      : a_(a), from_(from), first_(first) {
    if constexpr (kIsCommon) {
      common_ = a.results.data + first * (wire_bits(Wire::kRows) / 8);
      keep_in_register(common_);
    }
  }

  __device__ __forceinline__ bool is_there() const {
    return kIsCommon || first_ < a_.layout.shape.hidden;
  }

  /// Calls take(k, elements) for the row of each of `choices`, in ascending order. Up to kMax rows
  /// are loaded together.
  template <int kMax, typename Take>
  __device__ __forceinline__ void visit(unsigned choices, const Take& take) const {
#pragma unroll 1
    while (choices != 0) visit_some<kIsCommon ? kMax : 1>(choices, take);
  }

 private:
  static constexpr int kWords = kIsCommon ? kVecWords<Wire::kRows> : kReturnVecElements;

  __device__ __forceinline__ RawVec<kWords> load(std::int32_t row) const {
    if constexpr (kIsCommon) {
      RawVec<kWords> raw;
      raw.load(common_ + product_of(row, a_.results.stride));
      return raw;
    } else {
      const std::int64_t hidden = a_.layout.shape.hidden;
      return load_raw(
          {a_.results.data, a_.results.stride, hidden, a_.results.dtype, a_.results.are_aligned},
          row, first_, is_there());
    }
  }

  template <int kMax, typename Take>
  __device__ __forceinline__ void visit_some(unsigned& choices, const Take& take) const {
    if constexpr (kMax > 1) {
      if (__popc(choices) < kMax) return visit_some<kMax - 1>(choices, take);
    }
    visit_first<kMax>(choices, take);
  }
  /// There is no branch between the loads: with one, nvcc 13 issues the second load after the first
  /// has returned.
  template <int kCount, typename Take>
  __device__ __forceinline__ void visit_first(unsigned& choices, const Take& take) const {
    int k[kCount];
    RawVec<kWords> raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      k[i] = __ffs(static_cast<int>(choices)) - 1;
      choices &= choices - 1;
      raw[i] = load(__shfl_sync(kAllLanes, from_.row, k[i]));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float x[kReturnVecElements];
      if constexpr (kIsCommon) {
        widen_words<Wire::kRows>(raw[i].words, x);
      } else {
        widen_raw(a_.results.dtype, raw[i], x);
      }
      take(k[i], x);
    }
  }

  const CombineArgs& a_;
  const ArrivedToken& from_;
  std::int32_t first_;
  const std::byte* common_;
};

/// Of an arrived token: lane k has the row of choice k, below 0 if it is not this rank's.
__device__ __forceinline__ unsigned present_choices(std::int32_t row) {
  return __ballot_sync(kAllLanes, row >= 0);
}
__device__ __forceinline__ int highest_choice(std::int32_t row) {
  return 31 - __clz(static_cast<int>(present_choices(row)));
}
/// Those whose rows are returned or added. One row per (token, rank): the caller has summed it.
__device__ __forceinline__ unsigned added_choices(const CombineArgs& a, std::int32_t row) {
  const unsigned choices = present_choices(row);
  return a.layout.shape.sends_routes ? choices : choices & 1u << highest_choice(row);
}

/// One warp returns one chunk of one arrived token. kIsEach: each row is returned on its own,
/// unchanged.
template <class Wire, bool kIsCommon, bool kIsEach>
__device__ __forceinline__ void return_chunk(const CombineArgs& a, std::uint64_t call,
                                             const ReturnSlots& slots, int owner,
                                             const ArrivedToken& from, int chunk, int lane) {
  const ReturnRows<Wire, kIsCommon> rows(a, from,
                                         chunk * kReturnChunkElements + lane * kReturnVecElements);
  std::byte* window = a.windows.base[owner];
  std::byte* first_column = window + slots.at(a.layout, from.token, chunk);
  const unsigned choices = added_choices(a, from.row);
  const auto send = [&](int k, const float(&x)[kReturnVecElements]) {
    const auto column = static_cast<std::uint32_t>(a.layout.column(a.rank, k));
    Wire::send(a, call, {window, first_column + column * a.layout.return_stride}, lane,
               rows.is_there(), x);
  };
  if constexpr (kIsEach) {
    rows.template visit<2>(choices, send);
  } else {
    // A row that the caller has summed is returned unchanged, including the sign of its zeros.
    const float nothing = a.layout.shape.sends_routes ? 0.0f : -0.0f;
    float sum[kReturnVecElements] = {nothing, nothing, nothing, nothing,
                                     nothing, nothing, nothing, nothing};
    const auto add = [&](int k, const float(&x)[kReturnVecElements]) {
      const float weight = __shfl_sync(kAllLanes, from.weight, k);
#pragma unroll
      for (int e = 0; e < kReturnVecElements; ++e) sum[e] = __fmaf_rn(weight, x[e], sum[e]);
    };
    rows.template visit<wire_bits(Wire::kRows) == 32 ? 2 : 4>(choices, add);
    send(highest_choice(from.row), sum);
  }
}

/// A chunk of an arrived token.
struct ArrivedChunk {
  std::int32_t owner;
  std::int32_t slot;
  std::int32_t chunk;
};

/// The chunk with which item `item` begins, where each has `num_chunks` chunks.
__device__ __forceinline__ ArrivedChunk arrived_chunk(const CombineArgs& a, int item,
                                                      int num_chunks) {
  const int slot =
      min(a.grid.by_slot.quotient(item), static_cast<std::int32_t>(a.layout.shape.max_tokens) - 1);
  const int rest = item - a.grid.by_slot.quotient(item) * static_cast<int>(a.grid.by_slot.divisor);
  const int nth = a.grid.by_items.quotient(rest);
  const int owner =
      nth + a.rank < a.ownership.num_ranks ? nth + a.rank : nth + a.rank - a.ownership.num_ranks;
  const int in_row = rest - nth * static_cast<int>(a.grid.by_items.divisor);
  return ArrivedChunk{owner, slot, in_row * num_chunks};
}

/// Learns the call and how many tokens have arrived. `prefetched` is what begin_kernel returned;
/// `next_call` and `num_arrivals` are in shared memory. Returns false when there is nothing to
/// return.
__device__ __forceinline__ bool begin_return(const CombineArgs& a, std::uint32_t prefetched,
                                             CallOfCta& next_call, std::int32_t* num_arrivals,
                                             std::uint64_t& call) {
  next_call.request(a, prefetched);
  next_call.request_combined(a.state);
  static_assert(kMaxPushRanks <= kMinExchangeThreads);
  if (threadIdx.x < kMaxPushRanks) {
    const auto s = static_cast<int>(threadIdx.x);
    num_arrivals[s] = s < a.ownership.num_ranks ? a.state.num_arrivals[s] : 0;
  }
  __syncthreads();
  stamp(a, Stage::kCallKnown);
  if (next_call.has_failed != 0) return false;
  call = next_call.number - 1;
  if (next_call.is_combined()) [[unlikely]] {
    if (threadIdx.x == 0) {
      give_up(a.watch, WaitFailure::kCombinedTwice, {WaitPlace::kReturnedRow, a.rank, -1, call}, 0,
              0, 0);
    }
    return false;
  }
  add_share(a.state.counter + 1, static_cast<unsigned>(a.grid.num_senders));
  return true;
}

/// As many for every source as the one with most arrivals has.
__device__ __forceinline__ int num_return_items(const CombineArgs& a,
                                                const std::int32_t* num_arrivals, int lane) {
  const std::int32_t max_count = __reduce_max_sync(
      kAllLanes, max(num_arrivals[lane], num_arrivals[lane + kMaxPushRanks - kLanes]));
  return max_count * static_cast<int>(a.grid.by_slot.divisor);
}

/// Returns rows to all ranks, together with the other senders. Arguments: see begin_return.
template <class Wire, bool kIsCommon>
__device__ __forceinline__ void return_tokens(const CombineArgs& a, std::uint32_t prefetched,
                                              CallOfCta& next_call, int sender,
                                              std::int32_t* num_arrivals) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes * a.grid.num_senders + sender;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.grid.num_senders * a.grid.num_warps;
  const auto max_tokens = static_cast<std::int32_t>(a.layout.shape.max_tokens);
  if (max_tokens == 0) return;
  // Loaded before it is known whether there is such a token, and later while the one before is
  // returned, so that the latencies overlap.
  ArrivedChunk now = arrived_chunk(a, warp, 1);
  ArrivedToken from(a, now.owner * max_tokens + now.slot, lane);
  std::uint64_t call = 0;
  if (!begin_return(a, prefetched, next_call, num_arrivals, call)) return;
  const ReturnSlots slots(a.layout);
  const int num_items = num_return_items(a, num_arrivals, lane);
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    ArrivedChunk next = now;
    ArrivedToken from_next = from;
    if (item + num_warps < num_items) {
      next = arrived_chunk(a, item + num_warps, 1);
      from_next = ArrivedToken(a, next.owner * max_tokens + next.slot, lane);
    }
    if (now.slot < num_arrivals[now.owner]) {
      if (a.reduce == Reduce::kPerExpert) {
        return_chunk<Wire, kIsCommon, true>(a, call, slots, now.owner, from, now.chunk, lane);
      } else {
        return_chunk<Wire, kIsCommon, false>(a, call, slots, now.owner, from, now.chunk, lane);
      }
      stamp(a, Stage::kFirstStore);
    }
    now = next;
    from = from_next;
  }
}

}  // namespace switchyard::cuda
