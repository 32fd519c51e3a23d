// SPDX-License-Identifier: Apache-2.0
//
// channel_numbers.h: which channels of a communicator this process uses. A group and its subgroups
// share the communicator, and several threads may make channels at once, each with the ranks of its
// own group. A new channel needs a number that is free on all its ranks: each claims one, the
// largest claim is proposed, and it counts if each rank can take it; otherwise they try again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "engine/messages.h"

namespace switchyard {

class ChannelNumbers {
 public:
  static constexpr int kTagsPerChannel = MessageChannel::kMaxTag + 1;

  /// How many channels tags from 0 to `max_tag` suffice for.
  static constexpr int max_channels(int max_tag) {
    return static_cast<int>((std::int64_t{max_tag} + 1) / kTagsPerChannel);
  }

  /// A number that no thread of this process has claimed or taken.
  int claim() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }

  /// True when `proposed`, which is `claimed` or larger, is this thread's now; false when another
  /// may have it.
  bool take(int claimed, int proposed) {
    const std::lock_guard lock(mutex_);
    const bool is_free = proposed == claimed || proposed >= next_;
    if (is_free) next_ = std::max(next_, proposed + 1);
    return is_free;
  }

 private:
  std::mutex mutex_;
  int next_ = 0;
};

}  // namespace switchyard
