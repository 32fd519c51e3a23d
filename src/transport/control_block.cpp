// SPDX-License-Identifier: Apache-2.0

#include "transport/control_block.h"

#include <cstring>

#include "transport/futex.h"

namespace switchyard {

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
  }
  for (int rank = 0; rank < num_ranks_; ++rank) ring(rank);
  return is_first;
}

}  // namespace switchyard
