// SPDX-License-Identifier: Apache-2.0
//
// fence.h: the only place that uses instructions of a particular processor.
#pragma once

#include <atomic>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace switchyard {

/// Orders non-temporal stores before later stores. On x86 a release store alone does not order
/// them; on other processors they are ordinary stores.
inline void streaming_store_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

/// Hints to the processor that this is a spin loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace switchyard
