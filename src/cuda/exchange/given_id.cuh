// SPDX-License-Identifier: Apache-2.0
//
// given_id.cuh: loads expert ids of 32 or 64 bits, as callers pass them.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "cuda/exchange/watch.h"

namespace switchyard {

/// An id on its way from memory. Nothing reads it before value(), so that several loads overlap.
struct GivenId {
  std::uint32_t low = 0xFFFFFFFFu;
  std::uint32_t high = 0xFFFFFFFFu;

  /// Starts the load of an id. Args has topk_ids and ids_are_64_bits.
  template <class Args>
  __device__ __forceinline__ void ask(const Args& a, std::int64_t index) {
    if (a.ids_are_64_bits) {
      const uint2 words = __ldg(static_cast<const uint2*>(a.topk_ids) + index);
      low = words.x;
      high = words.y;
    } else {
      low = __ldg(static_cast<const std::uint32_t*>(a.topk_ids) + index);
    }
  }
  /// The id as given; kIdBeyond32Bits for a 64-bit id that is below -1 or needs more than 32 bits;
  /// -1 if none was asked for.
  template <class Args>
  __device__ __forceinline__ std::int32_t value(const Args& a) const {
    const auto id = static_cast<std::int32_t>(low);
    const bool fits = high == (id < 0 ? 0xFFFFFFFFu : 0u) && id >= -1;
    return !a.ids_are_64_bits || fits ? id : kIdBeyond32Bits;
  }
};

}  // namespace switchyard
