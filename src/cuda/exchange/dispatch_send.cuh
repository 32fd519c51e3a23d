// SPDX-License-Identifier: Apache-2.0
//
// dispatch_send.cuh: the send part of dispatch. A warp makes one chunk of a token and stores it
// into the token's slot on every rank that the token's ids name.
#pragma once

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/dispatch_route.cuh"
#include "cuda/exchange/row_form.cuh"

namespace switchyard::cuda {

/// The scales of each warp's current chunk.
struct SenderShared {
  alignas(16) std::uint8_t scales[kExchangeWarps][kMaxChunkScaleBytes];
};

/// What a warp sends at a time: one chunk, or a few, for a share of its token's ranks.
struct SendItem {
  int token;
  int chunk;  ///< the first
  int share;

  __device__ __forceinline__ SendItem(const DispatchArgs& a, int item) {
    share = a.grid.by_shares.quotient(item);
    const int in_share = item - share * static_cast<int>(a.grid.by_shares.divisor);
    token = a.grid.by_chunks.quotient(in_share);
    chunk =
        (in_share - token * static_cast<int>(a.grid.by_chunks.divisor)) * a.grid.chunks_per_item;
  }
};

/// How many there are.
__device__ __forceinline__ int num_send_items(const DispatchArgs& a) {
  return a.tokens.count * static_cast<int>(a.grid.by_chunks.divisor) * a.grid.shares;
}

/// Prefetches a lane's elements into L1.
__device__ __forceinline__ void prefetch_vec(const DispatchArgs& a, const VecSource& from) {
  if (from.number >= a.tokens.count || from.first >= a.layout.shape.hidden) return;
  prefetch_l1(from.row + from.first * wire_bits(a.tokens.dtype) / 8);
}

/// A lane's 16 elements in wire form.
template <int kWords>
struct SentVec : VecUnits<kWords> {
  using VecUnits<kWords>::kUnitWords;
  using VecUnits<kWords>::kUnits;
  using VecUnits<kWords>::kLaneBytes;
  SentUnit<kUnitWords> units[kUnits];

  __device__ __forceinline__ SentVec(const std::uint32_t (&words)[kWords], std::uint32_t flip) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      std::uint32_t unit[kUnitWords];
#pragma unroll
      for (int i = 0; i < kUnitWords; ++i) unit[i] = words[u * kUnitWords + i] ^ flip;
      units[u] = SentUnit<kUnitWords>(unit);
    }
  }
  __device__ __forceinline__ void send(std::byte* window, std::byte* to, const PushLayout& layout,
                                       std::uint64_t call) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      units[u].send(window, to + u * kLanes * static_cast<int>(kLaneBytes), layout, call);
    }
  }
};

// Flags: what a lane holds of a chunk.
inline constexpr std::uint32_t kHasElements = 1;
inline constexpr std::uint32_t kHasScales = 2;

/// The ranks that a token goes to.
struct SendRanks {
  int rank;          ///< of choice `lane`, below 0: none
  unsigned leaders;  ///< one choice for each rank

  /// `id` is that of choice `lane`.
  __device__ __forceinline__ SendRanks(const DispatchArgs& a, int lane, std::int32_t id)
      : rank(names_expert(a, id) ? a.ownership.owner(id) : -1) {
    if (!has_rank(a.sends_to, max(rank, 0))) rank = -1;
    const unsigned same = __match_any_sync(kAllLanes, rank);
    leaders = __ballot_sync(kAllLanes, rank >= 0 && same >> lane == 1);
  }
};

/// Sends a chunk: the elements and, by the first lanes, the scales.
template <class Form>
__device__ __forceinline__ void send_chunk(const DispatchArgs& a, std::uint64_t call,
                                           const SendItem& item, int lane, const SendRanks& ranks,
                                           const std::uint32_t (&words)[Form::kWords],
                                           const std::uint8_t* scales) {
  using Units = SentVec<Form::kWords>;
  const int per_chunk = a.layout.shape.chunk_scale_bytes / static_cast<int>(kUnitBytes);
  const bool has_scales =
      lane < per_chunk && item.chunk * per_chunk + lane < a.scales.units_per_row;
  const bool is_there = item.chunk * kChunkElements + lane * kVecElements < a.layout.shape.hidden;
  std::uint32_t parts = (is_there ? kHasElements : 0) | (has_scales ? kHasScales : 0);
  const std::size_t row = a.layout.row(call, a.rank, item.token);
  std::size_t at = a.layout.elements(row, item.chunk) +
                   static_cast<unsigned>(lane) * static_cast<unsigned>(Units::kLaneBytes);
  std::size_t scales_at =
      a.layout.scales(row, item.chunk) + static_cast<unsigned>(lane) * kUnitBytes;
  keep_in_register(parts);
  keep_in_register(at);
  keep_in_register(scales_at);
  const Units units(words, Form::kWords == 4 ? wire_flip(a.scheme.dtype) : 0);
  std::uint32_t scale_words[4] = {};
  if (has_scales) {
    const uint4 four = *reinterpret_cast<const uint4*>(scales + lane * kUnitBytes);
    scale_words[0] = four.x, scale_words[1] = four.y;
    scale_words[2] = four.z, scale_words[3] = four.w;
  }
  const SentUnit<4> scale_unit(scale_words);
  int next = item.share;
#pragma unroll 1
  for (unsigned nth = 0, leaders = ranks.leaders; leaders != 0; ++nth, leaders &= leaders - 1) {
    const int to = __shfl_sync(kAllLanes, ranks.rank, __ffs(static_cast<int>(leaders)) - 1);
    if (nth != next) continue;
    next += a.grid.shares;
    std::byte* window = a.windows.base[to];
    if ((parts & kHasElements) != 0) units.send(window, window + at, a.layout, call);
    if ((parts & kHasScales) != 0) scale_unit.send(window, window + scales_at, a.layout, call);
  }
  __syncwarp();
}

/// The first item of a warp of a sender.
__device__ __forceinline__ int first_send_item(const DispatchArgs& a, int sender) {
  return static_cast<int>(threadIdx.x) / kLanes * a.grid.num_senders + sender;
}

/// Sends the rows of `a.tokens.sent`, together with the other senders. The first chunk is made
/// before the barrier after which the call number is known.
template <class Form>
__device__ __forceinline__ void send_rows(const DispatchArgs& a, const CallOfCta& current,
                                          int index, SenderShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_items = num_send_items(a);
  std::uint8_t* scales = shared.scales[warp];
  bool is_first = true;
#pragma unroll 1
  for (; index < num_items || is_first; index += a.grid.num_warps * a.grid.num_senders) {
    const SendItem item(a, index);
    const bool is_there = index < num_items;
    const VecSource from(a, item.token, item.chunk, lane);
    const bool is_sent = is_there && a.tokens.sent.has(from.number);
    std::uint32_t words[Form::kWords];
    GivenId id;
    if (is_sent) {
      if (lane < a.num_topk) id.request(a.tokens.ids, std::int64_t{item.token} * a.num_topk + lane);
      Form::make(a, from, lane, words, scales);
    }
    if (is_first) __syncthreads();
    stamp(a, Stage::kCallKnown);
    is_first = false;
    if (!is_there || current.has_failed != 0) return;
    if (!is_sent) continue;
    send_chunk<Form>(a, current.number, item, lane, SendRanks(a, lane, id.value(a.tokens.ids)),
                     words, scales);
    stamp(a, Stage::kFirstStore);
  }
}

}  // namespace switchyard::cuda
