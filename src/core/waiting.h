// SPDX-License-Identifier: Apache-2.0
//
// waiting.h: how long this thread has waited for others: for what they send, and in what moves it.
#pragma once

#include <cstdint>

#include "core/clock.h"

namespace switchyard {

/// While one of these lives, the thread waits. They may lie within each other.
class Waiting {
 public:
  Waiting() noexcept {
    if (own().depth++ == 0) own().start_ns = now_ns();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (--own().depth == 0) own().total_ns += now_ns() - own().start_ns;
  }

  /// Of this thread, by all that have ended.
  static std::int64_t total_ns() noexcept { return own().total_ns; }

 private:
  struct Own {
    int depth = 0;
    std::int64_t start_ns = 0;
    std::int64_t total_ns = 0;
  };
  static Own& own() noexcept {
    static thread_local Own own;
    return own;
  }
};

}  // namespace switchyard
