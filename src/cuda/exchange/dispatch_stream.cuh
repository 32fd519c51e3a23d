// SPDX-License-Identifier: Apache-2.0
//
// dispatch_stream.cuh: dispatch where CTAs share much work. With one chunk at a time, a warp
// spends most of its instructions on finding out what the chunk is and where it goes, and most of
// its time on waiting for its words. Here a warp takes several chunks of a row: it finds their
// ranks, or their rows, once, and the next chunk is on its way while it handles one.
#pragma once

#include "cuda/exchange/dispatch_receive.cuh"
#include "cuda/exchange/dispatch_send.cuh"

namespace switchyard::cuda {

/// The scales of the chunks of each warp's item.
struct ItemScales {
  alignas(16) std::uint8_t of_warp[kExchangeWarps][kMaxChunksPerItem * kMaxChunkScaleBytes];
};
// One unit for each lane.
static_assert(kMaxChunksPerItem * kMaxChunkScaleBytes == kLanes * static_cast<int>(kUnitBytes));

/// The start of the dynamic shared memory of a CTA that receives.
struct StreamShared {
  ReceiverShared receiver;
  ItemScales scales;
};

/// Whether a lane has a unit of the scales of an item, whose first chunk is `chunk`.
__device__ __forceinline__ bool has_scale_unit(const DispatchArgs& a, int chunk, int lane) {
  const int per_chunk = a.layout.shape.chunk_scale_bytes / static_cast<int>(kUnitBytes);
  return lane < a.grid.chunks_per_item * per_chunk &&
         chunk * per_chunk + lane < a.scales.units_per_row;
}

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

/// Sends `units`, of which a lane has some or none, to where `at` says in the window of each rank.
template <class Units>
__device__ __forceinline__ void send_to_ranks(const DispatchArgs& a, std::uint64_t call,
                                              const SendRanks& ranks, const Units& units,
                                              bool has_units, std::size_t at) {
#pragma unroll 1
  for (unsigned leaders = ranks.leaders; leaders != 0; leaders &= leaders - 1) {
    const int to = __shfl_sync(kAllLanes, ranks.rank, __ffs(static_cast<int>(leaders)) - 1);
    std::byte* window = a.windows.base[to];
    if (has_units) units.send(window, window + at, a.layout, call);
  }
}

/// Sends the rows of all tokens, together with the other CTAs: an item's chunks one by one, then
/// all their scales.
template <class Form>
__device__ __forceinline__ void stream_sent_rows(const DispatchArgs& a, const CallOfCta& current,
                                                 ItemScales& shared) {
  using Units = SentVec<Form::kWords>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_items = num_send_items(a);
  const std::uint64_t call = current.number;
  std::uint8_t* scales = shared.of_warp[threadIdx.x / kLanes];
  stamp(a, Stage::kCallKnown);
  if (current.has_failed != 0) return;
#pragma unroll 1
  for (TakenItems items(a, call); items.now() < num_items; items.advance()) {
    const SendItem item(a, items.now());
    GivenId id;
    if (lane < a.num_topk) id.request(a.tokens.ids, std::int64_t{item.token} * a.num_topk + lane);
    const SendRanks ranks(a, lane, id.value(a.tokens.ids));
    VecSource from(a, item.token, item.chunk, lane);
    const std::size_t row = a.layout.row(call, a.rank, item.token);
    std::size_t at = a.layout.elements(row, item.chunk) +
                     static_cast<unsigned>(lane) * static_cast<unsigned>(Units::kLaneBytes);
    std::uint8_t* chunk_scales = scales;
#pragma unroll 1
    for (int left = a.grid.chunks_per_item; left > 0; --left) {
      std::uint32_t words[Form::kWords];
      Form::make(a, from, lane, words, chunk_scales);
      const bool is_there = from.first < a.layout.shape.hidden;
      from.advance();
      if (left > 1) prefetch_vec(a, from);
      send_to_ranks(a, call, ranks, Units(words, Form::kWords == 4 ? wire_flip(a.scheme.dtype) : 0),
                    is_there, at);
      stamp(a, Stage::kFirstStore);
      at += a.layout.chunk_bytes;
      chunk_scales += a.layout.shape.chunk_scale_bytes;
    }
    if (a.layout.shape.chunk_scale_bytes == 0) continue;
    const uint4 unit = reinterpret_cast<const uint4*>(scales)[lane];
    const std::uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
    send_to_ranks(a, call, ranks, SentUnit<4>(words), has_scale_unit(a, item.chunk, lane),
                  a.layout.scales(row, item.chunk) + static_cast<unsigned>(lane) * kUnitBytes);
    __syncwarp();
  }
}

// ---- receiving

/// The scales of an item's chunks, one unit of 16 bytes per lane.
struct ScaleUnits {
  std::byte* window;
  std::byte* at;
  bool is_there;
  std::uint32_t words[4];

  __device__ __forceinline__ ScaleUnits(const DispatchArgs& a, std::size_t row, int chunk, int lane)
      : window(a.windows.base[a.rank]),
        at(window + a.layout.scales(row, chunk) + static_cast<unsigned>(lane) * kUnitBytes),
        is_there(has_scale_unit(a, chunk, lane)) {}
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
    request();
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

/// A lane's elements of as many chunks as fit into its registers.
template <int kWords>
struct StepUnits : VecUnits<kWords> {
  using VecUnits<kWords>::kUnits;
  static constexpr int kChunks = kWords <= 4 ? 2 : 1;

  ElementUnits<kWords> chunks[kChunks];

  /// Of the chunks from element `first` on, those that are before element `end`. Bits: units.
  __device__ __forceinline__ static unsigned wanted(int first, int end) {
    unsigned units = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (first + c * kChunkElements < end) units |= ((1u << kUnits) - 1) << (c * kUnits);
    }
    return units;
  }
  __device__ __forceinline__ void request(const std::byte* elements, unsigned chunk_bytes,
                                          unsigned wanted) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      chunks[c].request(elements + c * chunk_bytes, wanted >> (c * kUnits));
    }
  }
  __device__ __forceinline__ unsigned missing(unsigned wanted) const {
    unsigned missing = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const unsigned mine = wanted >> (c * kUnits) & ((1u << kUnits) - 1);
      missing |= chunks[c].missing(mine) << (c * kUnits);
    }
    return missing;
  }
};

/// Receives the chunks of an item and puts each at every row that wants it. With the last chunks of
/// a row, also keeps what is to be known of it.
template <int kWords>
struct ChunkStream {
  using Step = StepUnits<kWords>;
  using Items = ItemsLeft;

  ItemScales* scales;

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
    const auto hidden = static_cast<int>(a.layout.shape.hidden);
    const int end_chunk = in.chunk + a.grid.chunks_per_item;
    const int end = min(hidden, end_chunk * kChunkElements);
    const bool is_whole = a.received.are_aligned && end_chunk * kChunkElements <= hidden &&
                          a.grid.chunks_per_item % Step::kChunks == 0;
    int first = in.chunk * kChunkElements + lane * kVecElements;
    unsigned wanted = Step::wanted(first, end);
    Step next{};
    next.request(slot, a.layout.chunk_bytes, wanted);
    // While they are on their way.
    ChunkShared& warp = shared.chunks[threadIdx.x / kLanes];
    const int num_targets =
        find_targets(a, in, lane, static_cast<std::uint32_t>(routes.choice), shared, places, warp);
    bool is_good =
        end_chunk < a.layout.num_chunks || keep_row(a, call, in, lane, routes, shared, places);
    const auto what = [&] {
      return WaitFor{WaitPlace::kRow, in.source, static_cast<std::int32_t>(token), call};
    };
#pragma unroll 1
    for (int chunk = in.chunk; chunk < end_chunk; chunk += Step::kChunks) {
      const auto again = [&](unsigned missing) {
        next.request(slot, a.layout.chunk_bytes, missing);
      };
      if (!wait_for_units(a, what, wanted, next, again)) return false;
      stamp(a, Stage::kChunkSeen);
      Step now = next;
      std::byte* now_at = slot;
      const int now_first = first;
      slot += Step::kChunks * a.layout.chunk_bytes;
      first += Step::kChunks * kChunkElements;
      wanted = Step::wanted(first, end);
      next.request(slot, a.layout.chunk_bytes, wanted);
#pragma unroll
      for (int c = 0; c < Step::kChunks; ++c) {
        if (now_first + c * kChunkElements >= end) break;
        is_good &=
            now.chunks[c].empty(window, now_at + c * a.layout.chunk_bytes, a.layout, a.watch, what);
      }
      scatter_step(a, chunk, end_chunk, lane, is_whole, now, num_targets, warp.targets);
    }
    std::uint8_t* memory = scales->of_warp[threadIdx.x / kLanes];
    is_good &= ScaleUnits(a, row, in.chunk, lane).receive(a, what, lane, memory);
    scatter_scales(a, in.chunk, lane, num_targets, warp.targets, memory);
    __syncwarp();
    return is_good;
  }

 private:
  /// Puts the chunks of a step at each of their rows.
  __device__ __forceinline__ static void scatter_step(const DispatchArgs& a, int chunk,
                                                      int end_chunk, int lane, bool is_whole,
                                                      const Step& units, int num_targets,
                                                      const Target* targets) {
    const int first = chunk * kChunkElements + lane * kVecElements;
    const std::uint32_t flip = kWords == 4 ? wire_flip(a.scheme.dtype) : 0;
    std::uint32_t vectors[Step::kChunks][kWords];
#pragma unroll
    for (int c = 0; c < Step::kChunks; ++c) units.chunks[c].copy_to(vectors[c], flip);
    if (is_whole) {
      const int offset = first * kWords / 4;
#pragma unroll 1
      for (int i = 0; i < num_targets; ++i) {
        std::byte* to = targets[i].row + offset;
#pragma unroll
        for (int c = 0; c < Step::kChunks; ++c) {
          store_vec(to + c * kChunkElements * kWords / 4, vectors[c]);
        }
      }
      return;
    }
#pragma unroll
    for (int c = 0; c < Step::kChunks; ++c) {
      if (chunk + c == end_chunk) break;
      std::uint32_t copy[kWords];
      scatter_chunk(a, chunk + c, lane, first + c * kChunkElements < a.layout.shape.hidden,
                    vectors[c], copy, num_targets, targets, NoScale{});
    }
  }
};

}  // namespace switchyard::cuda
