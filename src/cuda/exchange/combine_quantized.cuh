// SPDX-License-Identifier: Apache-2.0
//
// combine_quantized.cuh: returned rows as 8-bit codes. A chunk of 256 elements travels with its own
// scales, as f32 whatever the scheme stores. So quantizing a chunk and summing it need nothing but
// that chunk.
#pragma once

#include "cuda/exchange/combine_receive.cuh"
#include "cuda/exchange/combine_send.cuh"
#include "quant/e8m0.h"

namespace switchyard::cuda {

/// By the scheme of the arguments. kIsFp8Block: e4m3 with one scale per 128 elements, of any rule
/// and scale format.
template <bool kIsFp8Block>
struct QuantizedWire {
  static constexpr DType kRows = DType::kBF16;  // in common calls
  static constexpr int kUnitWords = 2;          // a lane's codes, or two scales
  static constexpr std::size_t kLaneBytes = kUnitWords * 4;
  static constexpr std::size_t kScalesInChunk = kReturnChunkElements;
  static constexpr int kAtOnce = 4;  // partial sums that are polled at once

  __device__ static __forceinline__ DType dtype(const CombineArgs& a) {
    return kIsFp8Block ? DType::kE4M3 : a.wire.dtype;
  }
  __device__ static __forceinline__ int lanes_per_block(const CombineArgs& a) {
    return (kIsFp8Block ? 128 : a.wire.block) / kReturnVecElements;
  }
  __device__ static __forceinline__ int scale_units(const CombineArgs& a) {
    return kLanes / kUnitWords / lanes_per_block(a);
  }

  __device__ static __forceinline__ void send(const CombineArgs& a, std::uint64_t call,
                                              const ReturnTo& to, int lane, bool is_there,
                                              const float (&sum)[kReturnVecElements]) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kReturnVecElements; ++i)
      amax = max_magnitude(amax, is_there ? sum[i] : 0.0f);
#pragma unroll
    for (int mask = 1; mask < lanes_per_block(a); mask *= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, mask));
    }
    std::uint32_t codes[kUnitWords];
    std::uint32_t scale = 0;
    const auto quantize = [&]<QuantScheme kScheme>() {
      scale = quantize_vec<kScheme>(a, amax, sum, codes);
    };
    if constexpr (kIsFp8Block) {
      with_scheme<schemes::kFp8Block, schemes::kFp8BlockDeepEp>(a.wire, quantize);
    } else {
      with_scheme<schemes::kFp8Block, schemes::kFp8BlockDeepEp, schemes::kMxfp8,
                  schemes::kInt8Block>(a.wire, quantize);
    }
    if (is_there) {
      SentUnit(codes).send(to.window, to.chunk + static_cast<std::size_t>(lane) * kLaneBytes,
                           a.layout, call);
    }
    const int block = lane * kUnitWords;  // the first in this lane's unit of scales
    const std::uint32_t scales[kUnitWords] = {
        __shfl_sync(kAllLanes, scale, block * lanes_per_block(a) % kLanes),
        __shfl_sync(kAllLanes, scale, (block + 1) * lanes_per_block(a) % kLanes)};
    if (lane < scale_units(a)) {
      SentUnit(scales).send(to.window,
                            to.chunk + kScalesInChunk + static_cast<std::size_t>(lane) * kLaneBytes,
                            a.layout, call);
    }
  }

  /// Some partials of a sum, of one lane: codes, and the scales that the first lanes take.
  struct PartialCodes {
    std::uint32_t codes[kAtOnce][kUnitWords];
    std::uint32_t scales[kAtOnce][kUnitWords];
    std::uint32_t at[kAtOnce];  ///< offset from the row in the token's first column

    /// Polls what is wanted: bit i stands for codes i, bit kAtOnce + i for scales i. Returns what
    /// has not arrived.
    __device__ __forceinline__ unsigned look(const std::byte* row, int lane, unsigned wanted) {
      const std::size_t lane_at = static_cast<std::size_t>(lane) * kLaneBytes;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if ((wanted >> i & 1) != 0) load_relaxed_sys(row + at[i] + lane_at, codes[i]);
        if ((wanted >> (kAtOnce + i) & 1) != 0) {
          load_relaxed_sys(row + at[i] + kScalesInChunk + lane_at, scales[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (has_arrived(codes[i])) wanted &= ~(1u << i);
        if (has_arrived(scales[i])) wanted &= ~(1u << (kAtOnce + i));
      }
      return wanted;
    }
  };

  template <bool kIsCommon>
  __device__ static __forceinline__ bool sum(const CombineArgs& a, std::uint64_t call,
                                             const ReturnSlots& slots, int token,
                                             const TokenPartials& of, int chunk, int lane) {
    std::byte* own = a.windows.base[a.rank];
    const std::int32_t first = chunk * kReturnChunkElements + lane * kReturnVecElements;
    const bool is_there = kIsCommon || first < a.layout.shape.hidden;
    const std::size_t row = slots.at(a.layout, token, chunk);
    float total[kReturnVecElements] = {};
    if (!kIsCommon && is_there) add_bias(a, token, first, total);
#pragma unroll 1
    for (int begin = 0; begin < of.count; begin += kAtOnce) {
      PartialCodes partials{};
      unsigned missing = 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        partials.at[i] = __shfl_sync(kAllLanes, of.column, begin + i) * a.layout.return_stride;
        if (begin + i >= of.count) continue;
        if (is_there) missing |= 1u << i;
        if (lane < scale_units(a)) missing |= 1u << (kAtOnce + i);
      }
      const unsigned present = missing;
      bool is_good = true;
      Spin spin;
#pragma unroll 1
      while (missing != 0 && is_good) {
        missing = partials.look(own + row, lane, missing);
        if (missing == 0) break;
        const int late = begin + (__ffs(missing) - 1) % kAtOnce;
        is_good = spin.again(a.watch, [&] { return wait_for_partial(a, call, token, late); });
      }
      if (__any_sync(kAllLanes, !is_good)) return false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= of.count) break;  // warp-uniform
        const auto what = [&] { return wait_for_partial(a, call, token, begin + i); };
        is_good &= take(a, what, lane, present >> i, row + partials.at[i], partials.codes[i],
                        partials.scales[i]);
        const int from = lane / lanes_per_block(a);  // this lane's block
        const std::uint32_t low = __shfl_sync(kAllLanes, partials.scales[i][0], from / kUnitWords);
        const std::uint32_t high = __shfl_sync(kAllLanes, partials.scales[i][1], from / kUnitWords);
        const float scale = f32_from_bits(from % kUnitWords == 0 ? low : high);
        const float weight = __shfl_sync(kAllLanes, of.weight, begin + i);
        float x[kReturnVecElements];
        decode4(dtype(a), partials.codes[i][0], x);
        decode4(dtype(a), partials.codes[i][1], x + 4);
#pragma unroll
        for (int e = 0; e < kReturnVecElements; ++e) {
          total[e] = __fmaf_rn(weight, x[e] * scale, total[e]);
        }
      }
      if (__any_sync(kAllLanes, !is_good)) return false;
    }
    if (is_there) {
      store_output<kRows, kIsCommon>(a, output_at<kRows, kIsCommon>(a, token, first), token, first,
                                     total);
    }
    return true;
  }

 private:
  /// Makes a lane's codes. Returns the bits of what the receiver multiplies by: the scale as the
  /// scheme would store it.
  template <QuantScheme kScheme>
  __device__ static __forceinline__ std::uint32_t quantize_vec(
      const CombineArgs& a, float amax, const float (&sum)[kReturnVecElements],
      std::uint32_t (&codes)[kUnitWords]) {
    const QuantScheme scheme = with_format<kScheme>(a.wire.scale_format);
    const ScaleAndMap rule = scale_rule(scheme, amax, 1.0f);
    const PreparedMap map = prepare_map(rule.map, amax);
    const std::uint32_t flip = wire_flip(kScheme.dtype);
    codes[0] = quantize4(map, sum[0], sum[1], sum[2], sum[3]) ^ flip;
    codes[1] = quantize4(map, sum[4], sum[5], sum[6], sum[7]) ^ flip;
    const std::uint32_t bits = bits_from_f32(rule.scale);
    if (is_f32_scale(scheme.scale_format)) return bits;
    return bits_from_f32(f32_from_e8m0(static_cast<std::uint8_t>(bits >> 23)));
  }

  /// Empties the slots that this lane has read and restores escaped words. Returns false when it
  /// gives up.
  template <typename What>
  __device__ static __forceinline__ bool take(const CombineArgs& a, const What& what, int lane,
                                              unsigned present, std::size_t at,
                                              std::uint32_t (&codes)[kUnitWords],
                                              std::uint32_t (&scales)[kUnitWords]) {
    std::byte* own = a.windows.base[a.rank];
    const std::size_t lane_at = static_cast<std::size_t>(lane) * kLaneBytes;
    bool is_good = true;
    if ((present & 1) != 0) {
      is_good &= empty_unit(own, own + at + lane_at, a.layout, a.watch, what, codes);
      for (std::uint32_t& word : codes) word ^= wire_flip(dtype(a));
    }
    if ((present >> kAtOnce & 1) != 0) {
      is_good &=
          empty_unit(own, own + at + kScalesInChunk + lane_at, a.layout, a.watch, what, scales);
    }
    return is_good;
  }
};

}  // namespace switchyard::cuda
