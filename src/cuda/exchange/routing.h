// SPDX-License-Identifier: Apache-2.0
//
// routing.h: what happens to ids outside the dispatch kernels: they are kept for a later dispatch,
// dropped where they exceed an expert's capacity, and passed to the caller where every rank gets
// every token.
//
// Letters: P ranks, T max tokens per rank, K choices (at most 32), E experts, L local experts.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// Memory for sorting choices; M = P T K.
struct ChoiceSort {
  std::uint64_t* keys = nullptr;     ///< [2, M]
  std::uint32_t* choices = nullptr;  ///< [2, M]
  std::byte* work = nullptr;
  std::size_t work_bytes = 0;  ///< see sort_work_bytes
};

struct RoutingArgs {
  KernelOwnership ownership;
  CallState state;  ///< of the rows' dispatch
  Watch watch;
  std::int32_t rank = 0;
  std::int32_t num_topk = 0;
  std::int32_t max_tokens = 0;  ///< T
  bool wants_distinct = false;  ///< a token must not name an expert twice

  // This rank's tokens.
  GivenIds ids;
  const float* topk_weights = nullptr;  ///< null: all 1
  std::int32_t num_tokens = 0;
  std::int32_t* own_ids = nullptr;    ///< [T, K], those kept, without dropped ones
  std::uint32_t* own_rows = nullptr;  ///< [T, 2 K] ids and weights to send; null: not sent

  // Rows of all ranks, by (source, token).
  std::uint32_t* rows = nullptr;           ///< [P T, 2 K]
  const std::int32_t* num_rows = nullptr;  ///< [1]
  const std::int32_t* num_from = nullptr;  ///< [P]
  std::int64_t capacity = 0;               ///< per expert
  ChoiceSort sort;
  std::int32_t* num_dropped = nullptr;         ///< [1] dropped choices of own tokens
  std::int32_t* row_ids = nullptr;             ///< [P T, K]
  float* row_weights = nullptr;                ///< [P T, K]; null without weights
  std::int32_t num_buffer_rows = 0;            ///< rows of these two, in this call
  std::int32_t num_local = 0;                  ///< L
  std::int32_t* num_rows_of_expert = nullptr;  ///< [L]

  SWITCHYARD_HOST_DEVICE std::int64_t max_choices() const {
    return std::int64_t{ownership.num_ranks} * max_tokens * num_topk;
  }
};

/// Keeps own ids and writes own rows. Invalid ids end the group, as in dispatch.
void launch_keep_routing(const RoutingArgs& args, CUstream_st* stream);
/// Finds the choices of all ranks that do not fit (plan/overflow.h), removes those of own tokens
/// from the kept ids and counts them, and puts -1 in place of each in `rows`. Always sorts P T K
/// choices, however many a call has.
void launch_drop_overflow(const RoutingArgs& args, CUstream_st* stream);
/// Writes ids and weights of all rows, -1 and 0 in rows without a token; how many rows each local
/// expert gets; and what the combine returns: only ranks that a token chose return a row of it, or
/// all where experts are sliced, in rank order.
void launch_place_routing(const RoutingArgs& args, CUstream_st* stream);
/// Of the same for the tokens of rank `args.rank`, of another host: what `ranks`, by bit, return.
void launch_list_returns(const RoutingArgs& args, std::uint64_t ranks, CUstream_st* stream);
std::size_t sort_work_bytes(std::int64_t max_choices, std::int32_t num_experts);
/// Runs the kernels once without tokens or rows; see launch_dispatch.
void run_routing_kernels(const RoutingArgs& args, bool drops, bool places, CUstream_st* stream);

}  // namespace switchyard::cuda
