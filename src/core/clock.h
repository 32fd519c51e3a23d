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

/// A point in monotonic time. Every wait in the library has one, and looks at it once per slice. If
/// no look comes for kStoppedNs, the process was stopped (Ctrl-Z, a debugger, a paused machine),
/// most likely with its peers, and the time away does not count: at most kMaxStops times, so that
/// what is merely slow still ends. One thread uses a deadline.
class Deadline {
 public:
  static constexpr std::int64_t kStoppedNs = 10 * std::int64_t{kSliceMs} * 1'000'000;
  static constexpr int kMaxStops = 4;

  static Deadline after_ms(std::int64_t ms) noexcept { return Deadline(now_ns(), ms * 1'000'000); }

  bool expired() const noexcept { return remaining_ns() == 0; }
  /// Never negative.
  std::int64_t remaining_ns() const noexcept { return remaining_ns(now_ns()); }
  /// At the time `now`, for tests.
  std::int64_t remaining_ns(std::int64_t now) const noexcept {
    const std::int64_t away = now - last_look_ns_;
    if (away > kStoppedNs && num_stops_++ < kMaxStops) end_ns_ += away;
    last_look_ns_ = now;
    return end_ns_ > now ? end_ns_ - now : 0;
  }
  /// Rounded up, for poll(2).
  int remaining_ms() const noexcept {
    const std::int64_t ms = (remaining_ns() + 999'999) / 1'000'000;
    return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
  }

 private:
  Deadline(std::int64_t now, std::int64_t ns) noexcept : end_ns_(now + ns), last_look_ns_(now) {}

  mutable std::int64_t end_ns_;
  mutable std::int64_t last_look_ns_;
  mutable int num_stops_ = 0;
};

}  // namespace switchyard
