// SPDX-License-Identifier: Apache-2.0
//
// combine_plain.cuh: returned rows that are not quantized.
#pragma once

#include "cuda/exchange/combine_receive.cuh"
#include "cuda/exchange/combine_send.cuh"

namespace switchyard::cuda {

/// Returned rows of bf16, f16 or f32. They contain no reserved words, because NaN is canonical.
template <DType kDType>
struct PlainWire {
  static constexpr DType kRows = kDType;

  __device__ static __forceinline__ void send(const CombineArgs&, std::uint64_t, const ReturnTo& to,
                                              int lane, bool is_there,
                                              const float (&sum)[kReturnVecElements]) {
    if (is_there) send_return<kDType>(to, lane, sum);
  }
  template <bool kIsCommon>
  __device__ static __forceinline__ bool sum(const CombineArgs& a, std::uint64_t call,
                                             const ReturnSlots& slots, int token,
                                             const TokenPartials& of, int chunk, int lane) {
    if (a.reduce == Reduce::kPerExpert) {
      return sum_chunks<kDType, kIsCommon, true>(a, call, slots, token, of, chunk, lane);
    }
    return sum_chunks<kDType, kIsCommon, false>(a, call, slots, token, of, chunk, lane);
  }
};

}  // namespace switchyard::cuda
