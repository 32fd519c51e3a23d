// SPDX-License-Identifier: Apache-2.0
//
// direct_args.h: the dispatch that stores rows straight to their places in the windows of peers,
// and its combine (docs/gpu.md). Places and slots are those of exchange_args.h; which calls go
// this way is decided in plan/push_path.h.
#pragma once

#include "cuda/exchange/exchange_args.h"
#include "plan/direct_layout.h"

namespace switchyard::cuda {

/// Chunks of a row that a warp copies at a time, at most.
inline constexpr int kMaxCopiedChunks = 4;

/// How a kernel reads ids and copies rows: by units of 16 bytes. Set by launch_direct_dispatch.
struct DirectUnits {
  std::int32_t ids_of_token = 0;     ///< units; 0: ids are read one by one
  std::int32_t row = 0;              ///< units of a row that is copied
  std::int32_t scales = 0;           ///< of its scales, at most one per lane
  std::int64_t given_scales = 0;     ///< bytes from row to row of those that the caller gives
  std::int32_t tokens_of_batch = 0;  ///< whose places a sender knows at a time
};

/// Of token-major layouts. `received` and the arrays of arrivals in `state` lie in this rank's
/// window, at the same place as in those of the peers.
struct DirectDispatchArgs : DispatchArgs {
  DirectLayout direct;
  CountParts parts;
  FastDivisor by_part;   ///< tokens of a part
  FastDivisor by_parts;  ///< parts
  DirectUnits units;
};

/// Of a call that was dispatched this way; sums per rank of rows that return in bf16.
struct DirectCombineArgs : CombineArgs {
  DirectLayout direct;
  FastDivisor by_owners;  ///< whom rows return to: peers, and this rank unless reads_own
  DirectReturn way = DirectReturn::kPushes;  ///< not set where only the receive phase is launched
  /// Rows of own tokens are added where the experts wrote them: one launch does both phases.
  bool reads_own = false;
};

/// Of the kernel that a call is served by.
DirectChunks direct_chunks(const DispatchArgs& args);

/// As launch_dispatch and launch_combine. A send part announces rows; the receive part moves them,
/// because it may wait. The grid is that of direct_dispatch_grid.
void launch_direct_dispatch(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                            CUstream_st* stream);
void launch_direct_combine(const DirectCombineArgs& args, Phases phases, bool programmatic,
                           CUstream_st* stream);
/// Whether the current GPU has the instructions and the shared memory.
bool gpu_can_store_directly();

}  // namespace switchyard::cuda
