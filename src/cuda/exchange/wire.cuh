// SPDX-License-Identifier: Apache-2.0
//
// wire.cuh: how words cross NVLink without flags or fences.
//
// Bulk data certifies itself. Free slots are filled with kEmpty, senders never store a word that
// equals kEmpty, and once a reader sees another value it has the word. Stores wider than 4 bytes
// are not assumed to arrive as one: each word arrives on its own. A slot has one reader, which
// fills it with kEmpty again. (The idea comes from the "Lamport" buffers of TensorRT-LLM's
// all-reduce, which reserve negative zero.)
//
// Data may hold any value. A word equal to kEmpty travels as kEscaped. To tell these two apart, a
// unit that contains either also sends a mark byte: which of its words stand for kEmpty. So only
// words of all ones, or of all ones but the last bit, cost marks. Returned rows of floats never
// need them, because their NaN is canonical.
//
// Announcements and routes have many readers and are not cleared: a record is one 64-bit word
// {value, tag}, and the tag names its call.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "switchyard/dtype.h"

#include "cuda/base/ptx.cuh"
#include "cuda/exchange/watch.h"
#include "plan/push_layout.h"

namespace switchyard::cuda {

inline constexpr std::uint32_t kEmpty = 0xFFFFFFFFu;
inline constexpr std::uint32_t kEscaped = 0xFFFFFFFEu;
inline constexpr std::uint32_t kNoMark = 0xFFu;

/// What 8-bit codes of a dtype are xor-ed with on the wire. Four codes of -1, which are frequent,
/// would be kEmpty; four of +127 are not.
__device__ __forceinline__ std::uint32_t wire_flip(DType dtype) {
  return dtype == DType::kI8 ? 0x80808080u : 0u;
}

/// Never the value of memory that was filled with ones.
__device__ __forceinline__ std::uint32_t tag_of(std::uint64_t call) {
  return static_cast<std::uint32_t>(call) & 0x7FFFFFFFu;
}

__device__ __forceinline__ void store_record(void* to, std::uint32_t value, std::uint32_t tag) {
  store_relaxed_sys_u64(to, std::uint64_t{tag} << 32 | value);
}
__device__ __forceinline__ std::uint64_t load_record(const void* from) {
  return load_relaxed_sys_u64(from);
}

// ---- waiting

struct WaitFor {
  WaitPlace place;
  std::int32_t peer;
  std::int32_t token;
  std::uint64_t call;
};

/// Stores this rank's first failure in the host's record. Later ones are ignored.
__device__ __noinline__ inline void give_up(const Watch& watch, WaitFailure failure, WaitFor what,
                                            std::int32_t expected, std::int32_t seen,
                                            std::uint64_t waited_ns) {
  if (atomicExch(watch.failed, 1u) != 0) return;
  WaitRecord& record = *watch.record;
  record.place = static_cast<std::uint32_t>(what.place);
  record.peer = what.peer;
  record.token = what.token;
  record.expected = expected;
  record.seen = seen;
  record.call = what.call;
  record.waited_ns = waited_ns;
  __threadfence_system();
  *const_cast<volatile std::uint32_t*>(&record.failure) = static_cast<std::uint32_t>(failure);
}

/// Records a wait that failed, unless there is a record already. Kept out of line, so that the
/// loops that wait keep their values in registers.
__device__ __noinline__ inline void report_wait(const Watch& watch, WaitFor what,
                                                std::uint64_t start_ns) {
  const bool is_aborted = *const_cast<const volatile std::uint32_t*>(watch.abort_word) != 0;
  give_up(watch, is_aborted ? WaitFailure::kAborted : WaitFailure::kTimeout, what, 0, 0,
          globaltimer_ns() - start_ns);
}

/// Counts the spins of one wait. Checks for a failure, an abort and the timeout at intervals.
struct Spin {
  static constexpr std::uint32_t kSpinsPerLook = 256;
  static constexpr std::uint32_t kSpinsPerAbortLook = 16 * kSpinsPerLook;  // it is in host memory
  std::uint32_t num_spins = 0;
  std::uint64_t start_ns = 0;

  /// Returns false when the wait has failed. `what` makes a WaitFor when one is needed.
  template <typename What>
  __device__ __forceinline__ bool again(const Watch& watch, What&& what) {
    ++num_spins;
    if (num_spins % kSpinsPerLook != 0 || goes_on(watch)) return true;
    report_wait(watch, what(), start_ns);
    return false;
  }

 private:
  __device__ __forceinline__ bool goes_on(const Watch& watch) {
    const std::uint64_t now = globaltimer_ns();
    if (start_ns == 0) start_ns = now;
    if (*const_cast<volatile std::uint32_t*>(watch.failed) != 0) return false;
    if (num_spins % kSpinsPerAbortLook == 0 &&
        *const_cast<const volatile std::uint32_t*>(watch.abort_word) != 0) {
      return false;
    }
    return now - start_ns <= watch.timeout_ns;
  }
};

/// Waits for the record of `what.call` at `from`. Returns false when it gives up.
__device__ __forceinline__ bool wait_record(const void* from, const Watch& watch,
                                            const WaitFor& what, std::uint32_t& value) {
  Spin spin;
  for (;;) {
    const std::uint64_t record = load_record(from);
    value = static_cast<std::uint32_t>(record);
    if (static_cast<std::uint32_t>(record >> 32) == tag_of(what.call)) return true;
    if (!spin.again(watch, [&] { return what; })) return false;
  }
}

// ---- units of N words, 4 or 2

template <int N>
__device__ __forceinline__ std::uint32_t largest(const std::uint32_t (&w)[N]) {
  std::uint32_t max_word = max(w[0], w[1]);
  if constexpr (N == 4) max_word = max(max_word, max(w[2], w[3]));
  return max_word;
}

/// Bit mask of the words that are kEmpty.
template <int N>
__device__ __forceinline__ std::uint32_t empty_words(const std::uint32_t (&w)[N]) {
  std::uint32_t which = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) which |= w[i] == kEmpty ? 1u << i : 0u;
  return which;
}

/// Slow path of sending: stores which words stand for kEmpty.
__device__ __noinline__ inline void store_mark(std::byte* window, const std::byte* to,
                                               const PushLayout& layout, std::uint64_t call,
                                               std::uint32_t which) {
  store_relaxed_sys_u8(window + layout.mark(call, static_cast<std::size_t>(to - window)), which);
}

/// N words in wire form.
template <int N>
struct SentUnit {
  std::uint32_t words[N];
  std::uint32_t mark;  ///< which words stand for kEmpty; kNoMark: none is reserved

  SentUnit() = default;
  __device__ __forceinline__ explicit SentUnit(const std::uint32_t (&w)[N]) : mark(kNoMark) {
    if (largest(w) >= kEscaped) [[unlikely]]
      mark = empty_words(w);
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = min(w[i], kEscaped);
  }
  /// Stores them into the empty slot at `to` in `window`.
  __device__ __forceinline__ void send(std::byte* window, std::byte* to, const PushLayout& layout,
                                       std::uint64_t call) const {
    if (mark != kNoMark) [[unlikely]]
      store_mark(window, to, layout, call, mark);
    store_relaxed_sys(to, words);
  }
};

/// Waits for the mark of a slot and clears it. Returns kNoMark when it gives up.
__device__ __noinline__ inline std::uint32_t consume_mark(std::byte* window, std::size_t at,
                                                          const PushLayout& layout,
                                                          const Watch& watch, WaitFor what) {
  std::byte* mark = window + layout.mark(what.call, at);
  Spin spin;
  std::uint32_t which = load_relaxed_sys_u8(mark);
  while (which == kNoMark) {
    if (!spin.again(watch, [&] { return what; })) return kNoMark;
    which = load_relaxed_sys_u8(mark);
  }
  store_relaxed_sys_u8(mark, kNoMark);
  return which;
}

/// Whether all words that were loaded from a slot have arrived.
template <int N>
__device__ __forceinline__ bool has_arrived(const std::uint32_t (&w)[N]) {
  return largest(w) != kEmpty;
}

/// Empties a slot of N words.
template <int N>
__device__ __forceinline__ void fill_empty(std::byte* at) {
  std::uint32_t empty[N];
#pragma unroll
  for (int i = 0; i < N; ++i) empty[i] = kEmpty;
  store_relaxed_sys(at, empty);
}

/// Empties the slot in `window` that `w` was loaded from and restores escaped words. Returns false
/// when it gives up. `what` makes a WaitFor of this call when a mark must be waited for.
template <int N, typename What>
__device__ __forceinline__ bool empty_unit(std::byte* window, std::byte* slot,
                                           const PushLayout& layout, const Watch& watch,
                                           const What& what, std::uint32_t (&w)[N]) {
  fill_empty<N>(slot);
  if (largest(w) != kEscaped) [[likely]]
    return true;
  const auto at = static_cast<std::size_t>(slot - window);
  const std::uint32_t which = consume_mark(window, at, layout, watch, what());
  if (which == kNoMark) return false;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if ((which >> i & 1) != 0) w[i] = kEmpty;
  }
  return true;
}

}  // namespace switchyard::cuda
