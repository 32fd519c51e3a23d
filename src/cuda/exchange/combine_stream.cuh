// SPDX-License-Identifier: Apache-2.0
//
// combine_stream.cuh: the send part of combine where few CTAs have much to return. A warp with one
// chunk at a time spends most of its time waiting for memory, and on finding out what the chunk is.
// Here it takes several chunks of a token, and rows are copied into shared memory some steps before
// they are added, as the stages of DeepEP's Hybrid-EP are filled. Only for sums per rank, of rows
// that consist of whole chunks in the wire's type; combine_send.cuh serves everything else.
#pragma once

#include "cuda/base/ptx.cuh"
#include "cuda/exchange/combine_send.cuh"

namespace switchyard::cuda {

/// Parts of rows that a warp has on their way. Each has kStreamChunks chunks.
inline constexpr int kStreamParts = 6;
inline constexpr int kStreamPartBytes = kStreamChunks * kLanes * kUnitBytes;

inline std::size_t stream_shared_bytes(int num_warps) {
  return static_cast<std::size_t>(num_warps) * kStreamParts * kStreamPartBytes;
}

/// The items of a warp, one after another, without those of tokens that have not arrived.
class ArrivedItems {
 public:
  __device__ __forceinline__ ArrivedItems(const CombineArgs& a, const std::int32_t* num_arrivals,
                                          int first, int step, int num_items)
      : a_(a), num_arrivals_(num_arrivals), item_(first), step_(step), num_items_(num_items) {
    find();
  }
  __device__ __forceinline__ bool is_over() const { return item_ >= num_items_; }
  __device__ __forceinline__ const ArrivedChunk& now() const { return now_; }
  __device__ __forceinline__ ArrivedToken token(int lane) const {
    return ArrivedToken(a_, arrival(), lane);
  }
  /// Lane k: the row of choice k, below 0 if there is none.
  __device__ __forceinline__ std::int32_t row(int lane) const {
    return lane < a_.num_topk ? a_.state.arrival_rows[std::int64_t{arrival()} * a_.num_topk + lane]
                              : -1;
  }
  __device__ __forceinline__ void advance() {
    item_ += step_;
    find();
  }

 private:
  __device__ __forceinline__ std::int32_t arrival() const {
    return now_.owner * static_cast<std::int32_t>(a_.layout.shape.max_tokens) + now_.slot;
  }
  __device__ __forceinline__ void find() {
#pragma unroll 1
    for (; !is_over(); item_ += step_) {
      now_ = arrived_chunk(a_, item_, a_.grid.chunks_per_item);
      if (now_.slot < num_arrivals_[now_.owner]) return;
    }
  }

  const CombineArgs& a_;
  const std::int32_t* num_arrivals_;
  int item_;
  int step_;
  int num_items_;
  ArrivedChunk now_{};
};

/// Copies of the rows of a warp's items into its part of shared memory, in the order in which they
/// are added. Each lane copies what it will read itself, so no barrier is needed.
class RowCopies {
 public:
  __device__ __forceinline__ RowCopies(const CombineArgs& a, const ArrivedItems& items,
                                       std::byte* parts, int lane)
      : a_(a), items_(items), parts_(parts), lane_(lane) {
    prefetch();
#pragma unroll 1
    for (int i = 0; i < kStreamParts; ++i) begin_next(i);
  }
  /// Waits for the oldest; then the same memory takes the next row.
  template <typename Take>
  __device__ __forceinline__ void take(const Take& take) {
    wait_async_groups<kStreamParts - 1>();
    take(parts_ + part_ * kStreamPartBytes);
    begin_next(part_);
    part_ = part_ + 1 == kStreamParts ? 0 : part_ + 1;
  }

 private:
  // One group each time, so that it is known how many are younger than the oldest.
  __device__ __forceinline__ void begin_next(int part) {
#pragma unroll 1
    while (choices_ == 0 && (chunks_left_ > 0 || is_next_there_)) {
      if (chunks_left_ > 0) {
        chunk_ += kStreamChunks;
      } else {
        rows_ = row_next_;
        chunk_ = chunk_next_;
        chunks_left_ = a_.grid.chunks_per_item;
        prefetch();
      }
      chunks_left_ -= kStreamChunks;
      choices_ = added_choices(a_, rows_);
    }
    if (choices_ != 0) {
      const int k = __ffs(static_cast<int>(choices_)) - 1;
      choices_ &= choices_ - 1;
      const std::byte* from = a_.results.data +
                              product_of(__shfl_sync(kAllLanes, rows_, k), a_.results.stride) +
                              (chunk_ * kLanes + lane_) * kUnitBytes;
      std::byte* to = parts_ + part * kStreamPartBytes;
#pragma unroll
      for (int c = 0; c < kStreamChunks; ++c) {
        copy_async_16(to + c * kLanes * kUnitBytes, from + c * kLanes * kUnitBytes);
      }
    }
    commit_async_group();
  }
  // Loads one item ahead.
  __device__ __forceinline__ void prefetch() {
    is_next_there_ = !items_.is_over();
    if (!is_next_there_) return;
    row_next_ = items_.row(lane_);
    chunk_next_ = items_.now().chunk;
    items_.advance();
  }

  const CombineArgs& a_;
  ArrivedItems items_;
  std::byte* parts_;
  int lane_;
  unsigned choices_ = 0;
  std::int32_t rows_ = -1;  ///< lane k: of choice k
  std::int32_t chunk_ = 0;
  std::int32_t chunks_left_ = 0;
  bool is_next_there_ = false;
  std::int32_t row_next_ = -1;
  std::int32_t chunk_next_ = 0;
  int part_ = 0;
};

/// Returns one of as many shares as there are senders.
template <class Wire>
__device__ __forceinline__ void stream_share(const CombineArgs& a, std::uint64_t call, int share,
                                             const std::int32_t* num_arrivals, int num_items,
                                             std::byte* memory) {
  constexpr DType kRows = Wire::kRows;
  static_assert(kVecUnits<kRows> == 1);
  const int cta_warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const ReturnSlots slots(a.layout);
  ArrivedItems items(a, num_arrivals, cta_warp * a.grid.num_senders + share,
                     a.grid.num_senders * a.grid.num_warps, num_items);
  RowCopies copies(a, items,
                   memory + cta_warp * kStreamParts * kStreamPartBytes + lane * kUnitBytes, lane);
  // A row that the caller has summed is returned unchanged, including the sign of its zeros.
  const float nothing = a.layout.shape.sends_routes ? 0.0f : -0.0f;
#pragma unroll 1
  for (; !items.is_over(); items.advance()) {
    const ArrivedToken from = items.token(lane);
    const ArrivedChunk& now = items.now();
    const auto column =
        static_cast<std::uint32_t>(a.layout.column(a.rank, highest_choice(from.row)));
    std::byte* window = a.windows.base[now.owner];
    std::byte* chunk =
        window + slots.at(a.layout, from.token, now.chunk) + column * a.layout.return_stride;
    const unsigned all_choices = added_choices(a, from.row);
#pragma unroll 1
    for (int done = 0; done < a.grid.chunks_per_item; done += kStreamChunks) {
      float sum[kStreamChunks][kReturnVecElements];
#pragma unroll
      for (int c = 0; c < kStreamChunks; ++c) {
#pragma unroll
        for (int e = 0; e < kReturnVecElements; ++e) sum[c][e] = nothing;
      }
#pragma unroll 1
      for (unsigned choices = all_choices; choices != 0; choices &= choices - 1) {
        const float weight =
            __shfl_sync(kAllLanes, from.weight, __ffs(static_cast<int>(choices)) - 1);
        copies.take([&](const std::byte* part) {
#pragma unroll
          for (int c = 0; c < kStreamChunks; ++c) {
            RawVec<kVecWords<kRows>> raw;
            raw.load(part + c * kLanes * kUnitBytes);
            float x[kReturnVecElements];
            widen_words<kRows>(raw.words, x);
#pragma unroll
            for (int e = 0; e < kReturnVecElements; ++e) {
              sum[c][e] = __fmaf_rn(weight, x[e], sum[c][e]);
            }
          }
        });
      }
#pragma unroll
      for (int c = 0; c < kStreamChunks; ++c) {
        send_return<kRows>({window, chunk}, lane, sum[c]);
        chunk += a.layout.return_chunk_stride;
      }
      stamp(a, Stage::kFirstStore);
    }
  }
}

/// As return_tokens. `memory`: stream_shared_bytes(). When it returns, every share has been taken
/// by a CTA that does not wait before it has sent it. So those that now wait for peers hold up
/// nothing that a peer waits for, whether or not all CTAs fit on the GPU.
template <class Wire>
__device__ __forceinline__ void stream_tokens(const CombineArgs& a, std::uint32_t prefetched,
                                              CallOfCta& next_call, std::int32_t* num_arrivals,
                                              std::byte* memory) {
  __shared__ int share;
  if (a.layout.shape.max_tokens == 0) return;
  std::uint64_t call = 0;
  if (!begin_return(a, prefetched, next_call, num_arrivals, call)) return;
  const int num_items = num_return_items(a, num_arrivals, static_cast<int>(threadIdx.x) % kLanes);
#pragma unroll 1
  for (;;) {
    if (threadIdx.x == 0) share = take_combine_share(a.state);
    __syncthreads();
    const int taken = share;
    if (taken >= a.grid.num_senders) return;
    stream_share<Wire>(a, call, taken, num_arrivals, num_items, memory);
    __syncthreads();
  }
}

}  // namespace switchyard::cuda
