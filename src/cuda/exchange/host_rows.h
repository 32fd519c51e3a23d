// SPDX-License-Identifier: Apache-2.0
//
// host_rows.h: what crosses between hosts, as small kernels on both sides of NCCL's. A rank's
// tokens cross in wire form, without the marks of the wire, to a forwarder on each other host,
// which sends them on by the dispatch kernel. What the ranks there return is collected from the
// forwarder's window and put into the window of the tokens' owner as if they had stored it there.
//
// Letters: M tokens of every rank's messages in a call, K choices, W returned rows per token.
#pragma once

#include "cuda/exchange/exchange_args.h"
#include "plan/weight_slots.h"

namespace switchyard::cuda {

/// Ids and weights of a rank's tokens, for all ranks of other hosts.
struct PackIdsArgs {
  GivenIds ids;                         ///< [tokens, K]
  const float* topk_weights = nullptr;  ///< null: all 1
  std::int32_t num_tokens = 0;
  std::int32_t max_tokens = 0;  ///< M
  std::int32_t num_topk = 0;
  std::int32_t num_experts = 0;
  std::uint32_t mode = 0;            ///< DispatchArgs::mode
  std::int32_t* to_ids = nullptr;    ///< [M, K]; -1 where there is no expert
  float* to_weights = nullptr;       ///< [M, K]; null: they do not travel
  std::uint32_t* to_mode = nullptr;  ///< [1]
};
void launch_pack_ids(const PackIdsArgs& args, cudaStream_t stream);

/// Rows in wire form, by token. A row has room for whole vectors.
struct PackedRows {
  std::byte* rows = nullptr;
  std::int64_t stride = 0;      ///< bytes, a multiple of 16
  std::byte* scales = nullptr;  ///< [M, S], as the scheme stores them; null: none
};
/// Of the tokens of `args`, whose grid is not needed. Tokens of simulated schemes become bf16 rows.
void launch_pack_rows(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);

/// Rows that ranks of one host return for the tokens of one rank: [M, W] in the order of the
/// token's partial sums, each as in a window (PushLayout::return_stride), without marks.
struct ReturnedRowsArgs {
  PushLayout layout;
  QuantScheme wire;
  CallState state;  ///< whose lists of partial sums are those of the tokens
  Watch watch;
  std::int32_t num_topk = 0;                ///< columns of these lists
  std::int32_t num_tokens = 0;              ///< whose rows are there
  std::int32_t width = 0;                   ///< W
  std::uint64_t ranks = ~std::uint64_t{0};  ///< that return them, by bit
  std::byte* window = nullptr;              ///< where `layout` applies
  std::byte* rows = nullptr;                ///< of the message
};
/// Waits for the rows in the window, and empties it: `max_ctas` of kExchangeThreads are its room.
void launch_collect_rows(const ReturnedRowsArgs& args, int max_ctas, cudaStream_t stream);
/// Puts the rows of a message into the window.
void launch_place_rows(const ReturnedRowsArgs& args, cudaStream_t stream);

/// Lists of partial sums made from others of the same tokens: one entry per group of ranks, groups
/// ascending, the first of the group's.
struct ListGroupsArgs {
  CallState from;
  CallState to;
  std::int32_t num_topk = 0;  ///< columns of the lists
  std::int32_t num_tokens = 0;
  std::int32_t num_groups = 0;
  std::uint64_t groups[kMaxPushRanks] = {};  ///< ranks by bit
};
void launch_list_groups(const ListGroupsArgs& args, cudaStream_t stream);

/// Rounds `args.results`, f32 rows by token, to the wire, and puts each into the window of
/// `args.rank`, in the slot of the first of the token's partial sums that `ranks`, by bit, return.
void launch_send_sums(const CombineArgs& args, std::uint64_t ranks, cudaStream_t stream);

/// Weights that ranks return: a set of slots, of which records of other calls do not count.
struct CrossingWeightsArgs {
  WeightSlots slots;
  CallState state;
  Watch watch;
  std::int64_t num_records = 0;
  std::byte* window = nullptr;  ///< at the region of `slots`
  std::byte* message = nullptr;
};
void launch_collect_weights(const CrossingWeightsArgs& args, cudaStream_t stream);
void launch_place_weights(const CrossingWeightsArgs& args, cudaStream_t stream);

/// Counts the stays of a stream in NCCL, for who watches from the host.
struct StayWords {
  std::uint32_t begun;
  std::uint32_t ended;
};
void launch_begin_stay(std::uint32_t* begun, cudaStream_t stream);

/// Gives up, so that no kernel behind reads what has come, if the group was aborted: messages that
/// were aborted have ended, too, with anything in their memory. Also if a source passed another
/// mode: announcements of forwarded tokens carry that of the forwarder.
struct EndStayArgs {
  std::uint32_t* ended = nullptr;
  CallState state;
  Watch watch;
  WaitPlace place = WaitPlace::kAnnouncement;
  std::int32_t peer = -1;
  std::uint32_t mode = 0;
  std::int32_t num_sources = 0;
  std::int32_t sources[kMaxPushRanks] = {};
  const std::uint32_t* modes[kMaxPushRanks] = {};
};
void launch_end_stay(const EndStayArgs& args, cudaStream_t stream);

}  // namespace switchyard::cuda
