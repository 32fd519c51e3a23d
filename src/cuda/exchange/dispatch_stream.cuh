// SPDX-License-Identifier: Apache-2.0
//
// dispatch_stream.cuh: dispatch where few CTAs share much work. With one chunk at a time, a warp
// spends most of its instructions on finding out what the chunk is and where it goes, and most of
// its time on waiting for its words. Here a warp takes several chunks of a row: it finds their
// ranks, or their rows, once, and the next chunk is on its way while it handles one.
#pragma once

#include "cuda/exchange/dispatch_receive.cuh"
#include "cuda/exchange/dispatch_send.cuh"

namespace switchyard::cuda {

/// The start of the dynamic shared memory of a CTA that receives: as ReceiverShared, with the
/// scales of each warp's chunks.
struct StreamShared {
  ReceiverShared receiver;
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxChunksPerItem * kMaxChunkScaleBytes];
};

// ---- sending

/// The items of a warp, some at a time of what is left.
class TakenItems {
 public:
  __device__ __forceinline__ TakenItems(const DispatchArgs& a, std::uint64_t call)
      : a_(a), call_(call), num_at_once_(max(1, kChunksAtOnce / a.grid.chunks_per_item)) {
    take();
  }
  __device__ __forceinline__ int now() const { return item_; }
  __device__ __forceinline__ void advance() {
    if (++item_ == end_) take();
  }

 private:
  static constexpr int kChunksAtOnce = 4;

  __device__ __forceinline__ void take() {
    int first = 0;
    if (threadIdx.x % kLanes == 0) first = take_work(a_.state, call_, Work::kSend, num_at_once_);
    item_ = __shfl_sync(kAllLanes, first, 0);
    end_ = item_ + num_at_once_;
  }

  const DispatchArgs& a_;
  std::uint64_t call_;
  int num_at_once_;
  int item_;
  int end_;
};

/// Sends the rows of all tokens, together with the other CTAs.
template <class Form>
__device__ __forceinline__ void stream_sent_rows(const DispatchArgs& a, const CallOfCta& current,
                                                 SenderShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_items = num_send_items(a);
  std::uint8_t* scales = shared.scales[threadIdx.x / kLanes];
  stamp(a, Stage::kCallKnown);
  if (current.has_failed != 0) return;
#pragma unroll 1
  for (TakenItems items(a, current.number); items.now() < num_items; items.advance()) {
    SendItem item(a, items.now());
    GivenId id;
    if (lane < a.num_topk) id.request(a.tokens.ids, std::int64_t{item.token} * a.num_topk + lane);
    const SendRanks ranks(a, lane, id.value(a.tokens.ids));
    const int end = item.chunk + a.grid.chunks_per_item;
#pragma unroll 1
    while (item.chunk < end) {
      std::uint32_t words[Form::kWords];
      Form::make(a, item.token, item.chunk, lane, words, scales);
      const SendItem now = item;
      ++item.chunk;
      prefetch_chunk(a, item.chunk < end ? item : SendItem(a, items.now() + 1));
      send_chunk<Form>(a, current.number, now, lane, ranks, words, scales);
      stamp(a, Stage::kFirstStore);
    }
  }
}

// ---- receiving

/// The scales of an item's chunks, one unit of 16 bytes per lane.
struct ScaleUnits {
  static_assert(kMaxChunksPerItem * kMaxChunkScaleBytes <= kLanes * static_cast<int>(kUnitBytes));

  std::byte* window;
  std::byte* at;
  bool is_there;
  std::uint32_t words[4];

  __device__ __forceinline__ ScaleUnits(const DispatchArgs& a, std::size_t row, int chunk, int lane)
      : window(a.windows.base[a.rank]) {
    const int per_chunk = a.layout.shape.chunk_scale_bytes / static_cast<int>(kUnitBytes);
    is_there = lane < a.grid.chunks_per_item * per_chunk &&
               chunk * per_chunk + lane < a.scales.units_per_row;
    at = window + a.layout.scales(row, chunk) + static_cast<unsigned>(lane) * kUnitBytes;
  }
  __device__ __forceinline__ void request() {
    if (is_there) load_relaxed_sys(at, words);
  }
  __device__ __forceinline__ unsigned missing(unsigned wanted) const {
    return wanted != 0 && has_arrived(words) ? 0 : wanted;
  }
  /// Waits for them, leaves them in `memory`, and empties their slots. False: a lane gave up.
  template <typename What>
  __device__ __forceinline__ bool receive(const DispatchArgs& a, const What& what, int lane,
                                          std::uint8_t* memory) {
    const auto again = [&](unsigned missing) {
      if (missing != 0) request();
    };
    if (!wait_for_units(a, what, is_there ? 1u : 0u, *this, again)) return false;
    bool is_good = true;
    if (is_there) {
      is_good = empty_unit(window, at, a.layout, a.watch, what, words);
      reinterpret_cast<uint4*>(memory)[lane] = {words[0], words[1], words[2], words[3]};
    }
    __syncwarp();
    return is_good;
  }
};

/// Puts the scales of an item's chunks at each of its rows.
__device__ __forceinline__ void scatter_scales(const DispatchArgs& a, int chunk, int lane,
                                               int num_targets, const Target* targets,
                                               const std::uint8_t* memory) {
  const int num_scales = a.grid.chunks_per_item * a.scales.per_chunk;
#pragma unroll 1
  for (int i = lane; i < num_scales; i += kLanes) {
    const int nth = i / a.scales.per_chunk;
    const LaneScale scale(a, chunk * a.scales.per_chunk + i, true, i - nth * a.scales.per_chunk,
                          memory + nth * a.layout.shape.chunk_scale_bytes);
#pragma unroll 1
    for (int t = 0; t < num_targets; ++t) scale.store(targets[t].scales);
  }
}

/// Receives the chunks of an item and puts each at every row that wants it. With the last chunks of
/// a row, also keeps what is to be known of it.
template <int kWords>
struct ChunkStream {
  std::uint8_t (*scales)[kMaxChunksPerItem * kMaxChunkScaleBytes];

  /// False: a lane gave up.
  __device__ __forceinline__ bool receive(const DispatchArgs& a, std::uint64_t call,
                                          const ReceiveItem& in, int lane, const Routes& routes,
                                          ReceiverShared& shared,
                                          const ReceivePlaces& places) const {
    const auto token = static_cast<std::uint32_t>(routes.token);
    const std::size_t row = a.layout.row(call, in.source, token);
    std::byte* window = a.windows.base[a.rank];
    std::byte* slot = window + a.layout.elements(row, in.chunk) +
                      static_cast<unsigned>(lane) * VecUnits<kWords>::kLaneBytes;
    int element = in.chunk * kChunkElements + lane * kVecElements;
    ScaleUnits units(a, row, in.chunk, lane);
    units.request();
    ElementUnits<kWords> next{};
    next.request(slot, wanted(a, element));
    // While they are on their way.
    ChunkShared& warp = shared.chunks[threadIdx.x / kLanes];
    const int num_targets =
        find_targets(a, in, lane, static_cast<std::uint32_t>(routes.choice), shared, places, warp);
    const int end = in.chunk + a.grid.chunks_per_item;
    bool is_good = end < a.layout.num_chunks || keep_row(a, call, in, lane, routes, shared, places);
    const auto what = [&] {
      return WaitFor{WaitPlace::kRow, in.source, static_cast<std::int32_t>(token), call};
    };
    std::uint8_t* memory = scales[threadIdx.x / kLanes];
    is_good &= units.receive(a, what, lane, memory);
    scatter_scales(a, in.chunk, lane, num_targets, warp.targets, memory);
#pragma unroll 1
    for (int chunk = in.chunk; chunk < end; ++chunk) {
      const auto again = [&](unsigned missing) { next.request(slot, missing); };
      if (!wait_for_units(a, what, wanted(a, element), next, again)) return false;
      stamp(a, Stage::kChunkSeen);
      ElementUnits<kWords> now = next;
      std::byte* now_at = slot;
      const bool has_elements = element < a.layout.shape.hidden;
      slot += a.layout.chunk_bytes;
      element += kChunkElements;
      if (chunk + 1 < end) next.request(slot, wanted(a, element));
      if (has_elements) is_good &= now.empty(window, now_at, a.layout, a.watch, what);
      std::uint32_t vector[kWords];
      now.copy_to(vector, kWords == 4 ? wire_flip(a.scheme.dtype) : 0);
      std::uint32_t copy[kWords];
      scatter_chunk(a, chunk, lane, has_elements, vector, copy, num_targets, warp.targets,
                    NoScale{});
    }
    __syncwarp();
    return is_good;
  }

 private:
  __device__ __forceinline__ static unsigned wanted(const DispatchArgs& a, int element) {
    return element < a.layout.shape.hidden ? (1u << VecUnits<kWords>::kUnits) - 1 : 0;
  }
};

}  // namespace switchyard::cuda
