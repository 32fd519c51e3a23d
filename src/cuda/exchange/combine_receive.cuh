// SPDX-License-Identifier: Apache-2.0
//
// combine_receive.cuh: the receive part of combine. The owner of a token adds the bias, then the
// partial sums, one after another in fixed order, and rounds once.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/return_vec.cuh"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {

/// Partial sums that are polled at once, of kChunks chunks each.
template <DType kWire, int kChunks>
inline constexpr int kPartialsAtOnce = 4 / (kVecUnits<kWire> * kChunks);

/// Adds a row of `a.shared` to the rounded sum and rounds again.
template <DType kDType>
__device__ __forceinline__ void add_shared(const CombineArgs& a, int token, std::int32_t first,
                                           std::uint32_t (&words)[kVecWords<kDType>]) {
  const ReturnRowSource rows{reinterpret_cast<const std::byte*>(a.sums.shared),
                             a.sums.shared_stride * 2, a.layout.shape.hidden, DType::kBF16,
                             a.sums.shared_is_aligned};
  const AnyVec raw = load_raw(rows, token, first, true);
  float x[kReturnVecElements];
  float sum[kReturnVecElements];
  widen_words<DType::kBF16>(raw.words, x);
  widen_words<kDType>(words, sum);
#pragma unroll
  for (int i = 0; i < kReturnVecElements; ++i) sum[i] = (0.0f + sum[i]) + x[i];
  narrow_vec<kDType>(sum, words);
}

template <int kWords>
__device__ __forceinline__ void store_row_words(std::byte* to,
                                                const std::uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                       words[4 * i + 3]};
  }
}

template <DType kDType>
__device__ __forceinline__ void store_sums(const CombineArgs& a, std::byte* to, int token,
                                           std::int32_t first,
                                           const float (&x)[kReturnVecElements]) {
  constexpr int kWords = kVecWords<kDType>;
  constexpr int kBytes = wire_bits(kDType) / 8;
  std::uint32_t words[kWords];
  narrow_vec<kDType>(x, words);
  if (a.sums.shared != nullptr) add_shared<kDType>(a, token, first, words);
  if (a.sums.are_aligned && first + kReturnVecElements <= a.layout.shape.hidden) {
    return store_row_words(to, words);
  }
  std::uint32_t copy[kWords];  // so that `words` stays in registers
#pragma unroll
  for (int i = 0; i < kWords; ++i) copy[i] = words[i];
  const auto left = static_cast<int>(a.layout.shape.hidden) - first;
  store_bytes(to, min(left, kReturnVecElements) * kBytes, copy);
}

__device__ __forceinline__ void add_bias(const CombineArgs& a, int token, std::int32_t first,
                                         float (&sum)[kReturnVecElements]) {
#pragma unroll 1
  for (int b = 0; b < a.sums.num_bias; ++b) {
    const ReturnRowSource rows{reinterpret_cast<const std::byte*>(a.sums.bias[b]),
                               a.sums.bias_stride[b] * 2, a.layout.shape.hidden, DType::kBF16,
                               false};
    const AnyVec raw = load_raw(rows, token, first, true);
    float x[kReturnVecElements];
    widen_words<DType::kBF16>(raw.words, x);
#pragma unroll
    for (int i = 0; i < kReturnVecElements; ++i) sum[i] = sum[i] + x[i];
  }
}

/// A lane's part of some partial sums. One that is missing is 0 and changes no sum: sums without
/// weights begin with +0 and so are never -0, and in sums with weights its weight is negative,
/// which adds -0.
template <DType kWire, int kChunks>
struct PartialSums {
  static constexpr int kUnits = kVecUnits<kWire> * kChunks;  ///< of a partial sum
  static constexpr int kCount = kPartialsAtOnce<kWire, kChunks>;
  std::uint32_t units[kCount * kUnits][4] = {};
  std::byte* slots[kCount];
  std::uint32_t chunk_stride;

  __device__ __forceinline__ std::byte* unit_at(int i) const {
    const int chunk = i % kUnits / kVecUnits<kWire>;
    const int unit = i % kVecUnits<kWire>;
    return slots[i / kUnits] + chunk * chunk_stride + unit * kLanes * kUnitBytes;
  }
  /// Polls the units of `wanted`; returns those that have not arrived.
  __device__ __forceinline__ unsigned look(unsigned wanted) {
#pragma unroll
    for (int i = 0; i < kCount * kUnits; ++i) {
      if ((wanted >> i & 1) != 0) load_relaxed_sys(unit_at(i), units[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount * kUnits; ++i) {
      if (has_arrived(units[i])) wanted &= ~(1u << i);
    }
    return wanted;
  }
  __device__ __forceinline__ void fill_empty_slots(unsigned present) const {
#pragma unroll
    for (int i = 0; i < kCount * kUnits; ++i) {
      if ((present >> i & 1) != 0) fill_empty<4>(unit_at(i));
    }
  }
  __device__ __forceinline__ void widen(int i, int chunk, float (&x)[kReturnVecElements]) const {
    constexpr int kOfChunk = kVecUnits<kWire>;
    std::uint32_t words[4 * kOfChunk];
#pragma unroll
    for (int w = 0; w < 4 * kOfChunk; ++w) {
      words[w] = units[i * kUnits + chunk * kOfChunk + w / 4][w % 4];
    }
    widen_words<kWire>(words, x);
  }
};

/// What the sum of a token consists of. Lane i knows partial sum i; a lane without one has the
/// weight that PartialSums requires.
struct TokenPartials {
  std::int32_t count;
  std::uint32_t column;
  float weight;

  /// Prefetches what the constructor reads.
  __device__ static __forceinline__ void prefetch(const CombineArgs& a, int token) {
    prefetch_l1(a.state.num_partials + token);
    prefetch_l1(a.state.columns + std::int64_t{token} * a.num_topk);
  }
  __device__ __forceinline__ TokenPartials(const CombineArgs& a, int token, int lane) {
    const std::int64_t at = std::int64_t{token} * a.num_topk;
    count = a.state.num_partials[token];
    column = lane < a.num_topk ? static_cast<std::uint32_t>(a.state.columns[at + lane]) : 0;
    weight = 1.0f;
    if (a.reduce != Reduce::kPerExpert) return;
    weight = -1.0f;
    if (lane < count) {
      weight = a.sums.topk_weights == nullptr ? a.state.partial_weights[at + lane]
                                              : a.sums.topk_weights[at + column];
    }
  }
};

/// A wait for partial sum `partial`. It loads the rank that returns it: make it only if needed.
__device__ __forceinline__ WaitFor wait_for_partial(const CombineArgs& a, std::uint64_t call,
                                                    int token, int partial) {
  const std::int32_t peer = a.state.partial_ranks[std::int64_t{token} * a.num_topk + partial];
  return {WaitPlace::kReturnedRow, peer, token, call};
}

/// Where the elements of a sum go, from `first` on.
template <DType kDType, bool kIsCommon>
__device__ __forceinline__ std::byte* output_at(const CombineArgs& a, int token,
                                                std::int32_t first) {
  if constexpr (kIsCommon) {
    return a.sums.data + product_of(token, a.sums.stride) + first * (wire_bits(kDType) / 8);
  }
  const int bytes = a.sums.dtype == DType::kF32 ? 4 : 2;
  return a.sums.data + token * a.sums.stride + std::int64_t{first} * bytes;
}

template <DType kDType, bool kIsCommon>
__device__ __forceinline__ void store_output(const CombineArgs& a, std::byte* to, int token,
                                             std::int32_t first,
                                             const float (&sum)[kReturnVecElements]) {
  if constexpr (kIsCommon) {
    std::uint32_t words[kVecWords<kDType>];
    narrow_vec<kDType>(sum, words);
    return store_row_words(to, words);
  }
  switch (a.sums.dtype) {
    case DType::kF32: return store_sums<DType::kF32>(a, to, token, first, sum);
    case DType::kF16: return store_sums<DType::kF16>(a, to, token, first, sum);
    default: return store_sums<DType::kBF16>(a, to, token, first, sum);
  }
}

/// One warp sums kChunks chunks of one of this rank's tokens. Returns false when it gives up.
/// kIsEach: partial sums have weights.
template <DType kWire, bool kIsCommon, bool kIsEach, int kChunks = 1>
__device__ __forceinline__ bool sum_chunks(const CombineArgs& a, std::uint64_t call,
                                           const ReturnSlots& slots, int token,
                                           const TokenPartials& of, int chunk, int lane) {
  static_assert(kIsCommon || kChunks == 1);
  using Partials = PartialSums<kWire, kChunks>;
  constexpr int kAtOnce = Partials::kCount;
  const std::int32_t first = chunk * kReturnChunkElements + lane * kReturnVecElements;
  const bool is_there = kIsCommon || first < a.layout.shape.hidden;
  std::byte* row = a.windows.base[a.rank] + slots.at(a.layout, token, chunk) + lane * kUnitBytes;
  const std::uint32_t column_at = of.column * a.layout.return_stride;
  float sum[kChunks][kReturnVecElements] = {};
  if (!kIsCommon && is_there) add_bias(a, token, first, sum[0]);
#pragma unroll 1
  for (int begin = 0; begin < of.count; begin += kAtOnce) {
    Partials partials;
    partials.chunk_stride = static_cast<std::uint32_t>(a.layout.return_chunk_stride);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      partials.slots[i] = row + __shfl_sync(kAllLanes, column_at, begin + i);
    }
    const int num_units = min(of.count - begin, kAtOnce) * Partials::kUnits;
    const unsigned present = is_there ? (1u << num_units) - 1 : 0;
    unsigned missing = present;
    bool is_good = true;
    Spin spin;
#pragma unroll 1
    while (missing != 0 && is_good) {
      missing = partials.look(missing);
      if (missing == 0) break;
      const int late = begin + (__ffs(missing) - 1) / Partials::kUnits;
      is_good = spin.again(a.watch, [&] { return wait_for_partial(a, call, token, late); });
    }
    if (__any_sync(kAllLanes, !is_good)) return false;
    stamp(a, Stage::kChunkSeen);
    partials.fill_empty_slots(present);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i % 2 == 0 && begin + i >= of.count) break;  // warp-uniform
      const float weight = kIsEach ? __shfl_sync(kAllLanes, of.weight, begin + i) : 1.0f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float x[kReturnVecElements];
        partials.widen(i, c, x);
#pragma unroll
        for (int e = 0; e < kReturnVecElements; ++e) {
          sum[c][e] = __fmaf_rn(weight, x[e], sum[c][e]);
        }
      }
    }
  }
  if (!is_there) return true;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const std::int32_t at = first + c * kReturnChunkElements;
    store_output<kWire, kIsCommon>(a, output_at<kWire, kIsCommon>(a, token, at), token, at, sum[c]);
  }
  return true;
}

/// Sums this rank's tokens, together with the other receivers. `prefetched` is what begin_kernel
/// returned; `next_call` is in shared memory. kChunks: that a warp sums at a time.
template <class Wire, bool kIsCommon, int kChunks = 1>
__device__ __forceinline__ void sum_tokens(const CombineArgs& a, std::uint32_t prefetched,
                                           CallOfCta& next_call, int receiver) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes * a.grid.num_receivers + receiver;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_warps = a.grid.num_receivers * a.grid.num_warps;
  const int of_token = static_cast<int>(a.grid.by_items.divisor);
  const int num_items = a.sums.num_tokens * of_token;
  if (num_items == 0) return;
  int token = a.grid.by_items.quotient(warp);
  if (warp < num_items) TokenPartials::prefetch(a, token);
  next_call.request(a, prefetched);
  __syncthreads();
  const std::uint64_t call = next_call.number - 1;
  const ReturnSlots slots(a.layout);
  stamp(a, Stage::kCallKnown);
#pragma unroll 1
  for (int item = warp; item < num_items; item += num_warps) {
    const int next = a.grid.by_items.quotient(item + num_warps);
    if (item + num_warps < num_items) TokenPartials::prefetch(a, next);
    const int chunk = (item - token * of_token) * a.grid.chunks_per_item;
    const TokenPartials partials(a, token, lane);
    if constexpr (kChunks == 1) {
      if (!Wire::template sum<kIsCommon>(a, call, slots, token, partials, chunk, lane)) return;
    } else {
#pragma unroll 1
      for (int c = 0; c < a.grid.chunks_per_item; c += kChunks) {
        if (!sum_chunks<Wire::kRows, true, false, kChunks>(a, call, slots, token, partials,
                                                           chunk + c, lane)) {
          return;
        }
      }
    }
    token = next;
  }
}

}  // namespace switchyard::cuda
