// SPDX-License-Identifier: Apache-2.0
//
// given_id.cuh: loads expert ids of 32 or 64 bits, as callers pass them.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// An id on its way from memory. Nothing reads it before value(), so that several loads overlap.
struct GivenId {
  std::uint32_t low = 0xFFFFFFFFu;
  std::uint32_t high = 0xFFFFFFFFu;

  __device__ __forceinline__ void request(const GivenIds& ids, std::int64_t index) {
    if (ids.are_64_bits) {
      const uint2 words = static_cast<const uint2*>(ids.data)[index];
      low = words.x;
      high = words.y;
    } else {
      low = static_cast<const std::uint32_t*>(ids.data)[index];
    }
  }
  /// As given; of 64 bits and below -1 or beyond 32 bits: kIdBeyond32Bits. -1 if not requested.
  __device__ __forceinline__ std::int32_t value(const GivenIds& ids) const {
    const auto id = static_cast<std::int32_t>(low);
    const bool fits = high == (id < 0 ? 0xFFFFFFFFu : 0u) && id >= -1;
    return !ids.are_64_bits || fits ? id : kIdBeyond32Bits;
  }
};

}  // namespace switchyard::cuda
