// SPDX-License-Identifier: Apache-2.0
//
// call_ledger.h: decides when a slot set may be reused. Pure bookkeeping of one rank; the exchange
// does the waiting.
//
// Every operation, dispatch or combine, gets the next call number. Call c uses slot set c mod n.
// Before a rank writes slots of call c, every peer must have consumed call c - n, where `consumed`
// is the newest call such that it and all earlier ones were fully read. Nothing is inferred from
// the order of calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/fail.h"

namespace switchyard {

class CallLedger {
 public:
  explicit CallLedger(int num_sets) : num_sets_(static_cast<std::uint64_t>(num_sets)) {}

  /// The call number that the next `begin` returns.
  std::uint64_t next() const { return next_; }

  /// Starts an operation and returns its call number. Errors: kInvalidArgument when the slot set is
  /// still held by a call that was sent but not received: waiting for it would never end.
  std::uint64_t begin(const char* operation) {
    const std::uint64_t call = next_;
    if (!open_.empty() && open_.front() + num_sets_ <= call) {
      fail(Errc::kInvalidArgument,
           "{}: call {} was sent but not received, it must be before call {}; receive it first or "
           "raise max_in_flight",
           operation, open_.front(), call);
    }
    open_.push_back(call);
    ++next_;
    return call;
  }

  /// Call when the receive phase of `call` has read everything it needs.
  void finish(std::uint64_t call) { open_.erase(std::find(open_.begin(), open_.end(), call)); }

  /// The newest call such that it and all earlier ones were fully read; reported to peers.
  std::uint64_t consumed() const { return open_.empty() ? next_ - 1 : open_.front() - 1; }

  /// The consumed call that peers must report before slots of `call` are written; 0: no wait.
  std::uint64_t needed(std::uint64_t call) const { return call > num_sets_ ? call - num_sets_ : 0; }

 private:
  std::uint64_t num_sets_;
  std::uint64_t next_ = 1;
  std::vector<std::uint64_t> open_;  ///< begun but not finished, ascending
};

}  // namespace switchyard
