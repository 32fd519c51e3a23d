// SPDX-License-Identifier: Apache-2.0

#include "transport/control_block.h"

#include <sched.h>

#include <atomic>
#include <cstring>

#include "core/clock.h"
#include "transport/futex.h"

namespace switchyard {
namespace {

// Whoever claimed the cause publishes it at once, unless it dies first: then `code` and `culprit`
// stand for it.
constexpr int kPublishMs = 200;

void await_cause(AbortLine& cause, std::uint32_t code, int culprit) noexcept {
  const Deadline deadline = Deadline::after_ms(kPublishMs);
  while (cause.code.load(std::memory_order_acquire) == 0) {
    if (deadline.expired()) {
      std::atomic_ref(cause.culprit).store(culprit, std::memory_order_relaxed);
      std::uint32_t unpublished = 0;
      cause.code.compare_exchange_strong(unpublished, code);
      return;
    }
    sched_yield();
  }
}

}  // namespace

void ControlBlock::ring(int rank) const noexcept {
  RankLines& target = lines(rank);
  // Both are seq_cst: either this load sees the sleeper, or the sleeper's futex call sees the new
  // value.
  target.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (target.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(target.doorbell);
}

bool ControlBlock::abort(std::uint32_t code, int culprit, const char* reason) const noexcept {
  AbortLine& cause = abort_line();
  std::uint32_t unclaimed = 0;
  const bool is_first = cause.claimed.compare_exchange_strong(unclaimed, 1);
  if (is_first) {
    cause.culprit = culprit;
    std::strncpy(cause.reason, reason, sizeof(cause.reason) - 1);
    cause.code.store(code, std::memory_order_release);  // pairs with the acquire of readers
  } else {
    await_cause(cause, code, culprit);
  }
  for (int rank = 0; rank < num_ranks_; ++rank) ring(rank);
  return is_first;
}

}  // namespace switchyard
