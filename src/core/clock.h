// SPDX-License-Identifier: Apache-2.0
//
// clock.h: monotonic nanoseconds and deadlines.
#pragma once

#include <cstdint>
#include <ctime>

namespace switchyard {

/// Long waits are split into slices; between two slices the waiter checks for lost peers.
inline constexpr int kSliceMs = 50;

inline std::int64_t now_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A point in monotonic time. Every wait in the library has one.
class Deadline {
 public:
  static Deadline after_ms(std::int64_t ms) noexcept { return Deadline(now_ns() + ms * 1'000'000); }

  bool expired() const noexcept { return now_ns() >= end_ns_; }
  /// Never negative.
  std::int64_t remaining_ns() const noexcept {
    const std::int64_t left = end_ns_ - now_ns();
    return left > 0 ? left : 0;
  }
  /// Rounded up, for poll(2).
  int remaining_ms() const noexcept {
    const std::int64_t ms = (remaining_ns() + 999'999) / 1'000'000;
    return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
  }

 private:
  explicit Deadline(std::int64_t end_ns) noexcept : end_ns_(end_ns) {}
  std::int64_t end_ns_;
};

}  // namespace switchyard
