// SPDX-License-Identifier: Apache-2.0
//
// direct_args.h: the dispatch that stores rows straight to their places in the windows of peers,
// and its combine (docs/design.md). Places and slots are those of exchange_args.h; which calls go
// this way is decided in plan/push_path.h.
#pragma once

#include "cuda/exchange/exchange_args.h"
#include "plan/direct_layout.h"

namespace switchyard::cuda {

/// Of token-major layouts. `received` and the arrays of arrivals in `state` lie in this rank's
/// window, at the same place as in those of the peers.
struct DirectDispatchArgs : DispatchArgs {
  DirectLayout direct;
};

/// Of a call that was dispatched this way; sums per rank of rows that return in bf16.
struct DirectCombineArgs : CombineArgs {
  DirectLayout direct;
  FastDivisor by_owners;  ///< whom rows return to: peers, and this rank unless reads_own
  DirectReturn way = DirectReturn::kPushes;  ///< not set where only the receive phase is launched
  /// Rows of own tokens are added where the experts wrote them: one launch does both phases.
  bool reads_own = false;
};

/// As launch_dispatch and launch_combine. A send part announces rows; the receive part moves them,
/// because it may wait.
void launch_direct_dispatch(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                            cudaStream_t stream);
void launch_direct_combine(const DirectCombineArgs& args, Phases phases, bool programmatic,
                           cudaStream_t stream);
/// Whether the current GPU has the instructions and the shared memory.
bool gpu_can_store_directly();

}  // namespace switchyard::cuda
