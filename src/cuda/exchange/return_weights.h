// SPDX-License-Identifier: Apache-2.0
//
// return_weights.h: weights of received rows on their way home, a small kernel at either end of a
// combine. None of them waits: a rank's weights are in the owner's window before its first row is,
// and the owner looks for them after its sums, which have waited for all rows.
//
// Letters: P ranks, T tokens at most, K choices, N rows of the receive buffer.
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
  std::int32_t num_columns = 0;  ///< of the arrays of `state`: K, or P where all tokens go to all
  std::int32_t max_tokens = 0;   ///< T
  /// [N, K] ids of all experts, where the arrays of `state` do not know choices; else null.
  const std::int32_t* row_ids = nullptr;

  const float* row_weights = nullptr;  ///< [N, K]; [N] with weighs_rows. null: none go home
  bool weighs_rows = false;            ///< each row is of one choice

  std::uint32_t* returned = nullptr;  ///< [tokens, K] bits of f32; null: not wanted
  std::int32_t num_tokens = 0;
  PeerTable windows;  ///< of `slots`
};

/// Before the combine kernel that sends. With watch.failed set nothing happens; see
/// launch_dispatch.
void launch_return_weights(const ReturnWeightsArgs& args, cudaStream_t stream);
/// After the combine kernel that receives. A rank that returned rows and no weights ends the group.
void launch_receive_weights(const ReturnWeightsArgs& args, cudaStream_t stream);

}  // namespace switchyard::cuda
