// SPDX-License-Identifier: Apache-2.0
//
// fence.h: the one place with instructions of a particular processor.
#pragma once

#include <atomic>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace switchyard {

/// Orders non-temporal stores before later stores. A release store alone does not order them on
/// x86; elsewhere non-temporal stores are ordinary ones.
inline void streaming_store_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

/// Tells the processor that this is a spin loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace switchyard
