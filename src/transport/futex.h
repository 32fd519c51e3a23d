// SPDX-License-Identifier: Apache-2.0
//
// futex.h: sleeps on a 32-bit word that other threads or processes change. std::atomic::wait does
// not suffice: it has no deadline, and its futex is private to the process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace switchyard {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == 4);

/// Sleeps while `word` holds `expected`, for at most `ns` nanoseconds. May wake spuriously.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::int64_t ns) noexcept {
  const timespec timeout{static_cast<time_t>(ns / 1'000'000'000),
                         static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &timeout,
          nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

}  // namespace switchyard
