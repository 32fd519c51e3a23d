// SPDX-License-Identifier: Apache-2.0
//
// call_ledger.h: when a slot set may be used again. Pure bookkeeping of one rank; the waits belong
// to exchange.
//
// Every operation, dispatch or combine, takes the next call. Epoch e uses slot set e mod n. Before
// a rank writes slots of e, every peer concerned must have consumed call e - n: `consumed` is the
// newest call such that it and all before it were fully read. Nothing is inferred from call order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/fail.h"

namespace switchyard {

class CallLedger {
 public:
  explicit CallLedger(int num_sets) : num_sets_(static_cast<std::uint64_t>(num_sets)) {}

  /// The call that the next `begin` gives.
  std::uint64_t next() const { return next_; }

  /// Starts an operation. An operation that was sent and never received would block its own slot
  /// set for ever: that is an error here, at the call.
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

  /// The receive part of `call` has read everything it wanted.
  void finish(std::uint64_t call) { open_.erase(std::find(open_.begin(), open_.end(), call)); }

  /// What this rank reports to its peers.
  std::uint64_t consumed() const { return open_.empty() ? next_ - 1 : open_.front() - 1; }

  /// What a peer must have reported before slots of `call` are written; 0 needs no wait.
  std::uint64_t needed(std::uint64_t call) const { return call > num_sets_ ? call - num_sets_ : 0; }

 private:
  std::uint64_t num_sets_;
  std::uint64_t next_ = 1;
  std::vector<std::uint64_t> open_;  ///< begun and not finished, ascending
};

}  // namespace switchyard
