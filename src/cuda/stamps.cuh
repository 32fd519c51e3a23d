// SPDX-License-Identifier: Apache-2.0
//
// stamps.cuh: where a kernel's time goes, by its own clock. Nothing of it is left unless the build
// asks for it (SWITCHYARD_KERNEL_STAMPS).
#pragma once

#include "cuda/exchange_args.h"

namespace switchyard {

inline constexpr int kStampsPerCta = 8;

/// Thread 0 of a CTA notes when it got here.
__device__ __forceinline__ void stamp([[maybe_unused]] const ExchangeBase& a,
                                      [[maybe_unused]] int index) {
#ifdef SWITCHYARD_KERNEL_STAMPS
  if (threadIdx.x != 0 || a.stamps == nullptr) return;
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  a.stamps[blockIdx.x * kStampsPerCta + static_cast<unsigned>(index)] = ns;
#endif
}

}  // namespace switchyard
