// SPDX-License-Identifier: Apache-2.0
//
// dispatch_scatter.cuh: how a received chunk and its scales get to their rows.
#pragma once

#include "cuda/exchange/dispatch_places.cuh"

namespace switchyard::cuda {

/// 16 elements to a row, as whole units.
template <int kWords>
__device__ __forceinline__ void store_vec(std::byte* to, const std::uint32_t (&words)[kWords]) {
  if constexpr (kWords >= 4) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      reinterpret_cast<uint4*>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                         words[4 * i + 3]};
    }
  } else {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  }
}

/// The place of scale s of row n, in bytes, where scales lie in tiles.
__device__ __noinline__ inline std::int64_t tiled_scale_at(ScaleGeometry block, std::int32_t n,
                                                           std::int32_t s) {
  return block.index(n, s) * block.element_bytes;
}

/// Where row `row` of the receive buffer, of a local expert, begins. In every layout the place of
/// scale s is that of the row's first scale plus what s alone says.
__device__ __forceinline__ Target target_of(const DispatchArgs& a, std::int32_t row,
                                            std::int32_t expert) {
  const bool is_batched = a.scales.expert_stride != 0;
  const std::int32_t n =
      is_batched ? row - expert * static_cast<std::int32_t>(a.received.capacity) : row;
  std::byte* scales =
      a.scales.data + (is_batched ? static_cast<std::size_t>(expert) * a.scales.expert_stride : 0);
  scales += a.scales.are_tiled ? tiled_scale_at(a.scales.block, n, 0) : n * a.scales.row_step;
  return {a.received.rows + row * a.received.row_bytes, scales};
}

/// A lane's scale, of 4 bytes or of 1.
struct LaneScale {
  bool is_there;
  bool is_wide;
  std::uint32_t value;
  std::int64_t at;  ///< bytes from the first scale of a row

  /// Scale s of a row, number `nth` of those at `scales`, unless it is none of theirs.
  __device__ __forceinline__ LaneScale(const DispatchArgs& a, std::int32_t s, bool is_theirs,
                                       int nth, const std::uint8_t* scales) {
    is_there = is_theirs && a.layout.shape.chunk_scale_bytes > 0 && s < a.scales.block.num_scales;
    is_wide = a.scales.block.element_bytes == 4;
    value = !is_there ? 0
            : is_wide ? reinterpret_cast<const std::uint32_t*>(scales)[nth]
                      : scales[nth];
    at = a.scales.are_tiled ? tiled_scale_at(a.scales.block, 0, s) : s * a.scales.step;
  }
  /// That of a chunk whose scales are at `scales`.
  __device__ __forceinline__ LaneScale(const DispatchArgs& a, int chunk, int lane,
                                       const std::uint8_t* scales)
      : LaneScale(a, chunk * a.scales.per_chunk + lane, lane < a.scales.per_chunk, lane, scales) {}
  __device__ __forceinline__ void store_wide(std::byte* row_scales) const {
    if (is_there) *reinterpret_cast<std::uint32_t*>(row_scales + at) = value;
  }
  __device__ __forceinline__ void store(std::byte* row_scales) const {
    if (!is_there) return;
    if (is_wide) {
      *reinterpret_cast<std::uint32_t*>(row_scales + at) = value;
    } else {
      row_scales[at] = static_cast<std::byte>(value);
    }
  }
};

/// In place of a LaneScale where scales are stored apart.
struct NoScale {
  static constexpr bool is_there = false;
  static constexpr bool is_wide = false;
  __device__ __forceinline__ void store_wide(std::byte*) const {}
  __device__ __forceinline__ void store(std::byte*) const {}
};

/// Puts a chunk, of which a lane has a vector or none, at each of its rows. The common case has no
/// branch for the end of a row. `copy` is memory for the rare one, so that the vector itself stays
/// in registers; an array of this function would make nvcc 13 spill more of its callers.
template <int kWords, class Scale>
__device__ __forceinline__ void scatter_chunk(const DispatchArgs& a, std::int32_t chunk, int lane,
                                              bool has_vector,
                                              const std::uint32_t (&vector)[kWords],
                                              std::uint32_t (&copy)[kWords], int num_targets,
                                              const Target* targets, const Scale& scale) {
  const std::int32_t first = chunk * kChunkElements + lane * kVecElements;
  const std::int32_t offset = first * kWords / 4;
  const bool is_whole = a.received.are_aligned && first + kVecElements <= a.layout.shape.hidden;
  if (__all_sync(kAllLanes, is_whole && (scale.is_wide || !scale.is_there))) {
#pragma unroll 1
    for (int i = 0; i < num_targets; ++i) {
      const Target target = targets[i];
      store_vec(target.row + offset, vector);
      scale.store_wide(target.scales);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < num_targets; ++i) {
    const Target target = targets[i];
    if (is_whole) {
      store_vec(target.row + offset, vector);
    } else if (has_vector) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) copy[w] = vector[w];
      const auto left = static_cast<int>(a.received.row_bytes) - offset;
      store_bytes(target.row + offset, left < 4 * kWords ? left : 4 * kWords, copy);
    }
    scale.store(target.scales);
  }
}

}  // namespace switchyard::cuda
