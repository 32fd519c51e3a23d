// SPDX-License-Identifier: Apache-2.0
//
// return_weights.h: returns the weights of received rows to the owners of the tokens, with a small
// kernel before and one after a combine. Neither waits: a rank's weights are in the owner's window
// before its first row, and the owner reads them after its sums, which have waited for all rows.
//
// Letters: P ranks, T max tokens per rank, K choices, N rows of the receive buffer.
#pragma once

#include "cuda/exchange/exchange_args.h"
#include "plan/weight_slots.h"

namespace switchyard::cuda {

struct ReturnWeightsArgs {
  WeightSlots slots;
  KernelOwnership ownership;
  CallState state;  ///< of the rows' dispatch
  Watch watch;
  std::int32_t rank = 0;
  std::int32_t num_topk = 0;     ///< K
  std::int32_t num_columns = 0;  ///< of the arrays of `state`: K, or P if all tokens go to all
  std::int32_t max_tokens = 0;   ///< T
  /// [N, K] global expert ids where the arrays of `state` hold ranks instead of choices; else null.
  const std::int32_t* row_ids = nullptr;

  const float* row_weights = nullptr;  ///< [N, K]; [N] with weighs_rows. null: none are returned
  bool weighs_rows = false;            ///< each row belongs to one choice

  std::uint32_t* returned = nullptr;  ///< [tokens, K] bits of f32; null: not wanted
  std::int32_t num_tokens = 0;
  PeerTable windows;  ///< at the region of `slots`
};

/// Runs before the combine kernel that sends. Does nothing if watch.failed is set; see
/// launch_dispatch.
void launch_return_weights(const ReturnWeightsArgs& args, CUstream_st* stream);
/// Runs after the combine kernel that receives. A rank that returned rows without weights ends the
/// group.
void launch_receive_weights(const ReturnWeightsArgs& args, CUstream_st* stream);

}  // namespace switchyard::cuda
