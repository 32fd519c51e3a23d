// SPDX-License-Identifier: Apache-2.0
//
// host_rows.h: what crosses between hosts, as small kernels on both sides of NCCL's. A rank's
// tokens cross in wire form, without the marks of the wire, to a forwarder on each other host,
// which sends them on by the dispatch kernel. What the ranks there return is collected from the
// forwarder's window and put into the window of the tokens' owner as if they had stored it there.
//
// Letters: M tokens of every rank's messages in a call, K choices, W returned rows per token.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"
#include "plan/weight_slots.h"

namespace switchyard::cuda {

/// Which row of a message to a host each token is: tokens that go there, in order, or none.
struct NumberedTokens {
  GivenIds ids;                           ///< [tokens, K]
  std::uint64_t ranks = 0;                ///< of the host, by bit
  std::int32_t* numbers = nullptr;        ///< [tokens]; -1: none
  std::uint32_t* count = nullptr;         ///< how many rows, in the message; null: not wanted
  std::uint32_t* pinned_count = nullptr;  ///< the same in pinned memory; null: not wanted
  std::int32_t source = 0;                ///< whose tokens they are
  std::int32_t host = 0;                  ///< where they go
};
/// Waits for nothing. Gives up where more tokens go to a host than a message has room for; the rest
/// then have no row.
struct NumberRowsArgs {
  KernelOwnership ownership;
  CallState state;
  Watch watch;
  std::int32_t num_topk = 0;
  std::int32_t num_tokens = 0;
  std::int32_t capacity = 0;  ///< rows of a message
  std::int32_t num_lists = 0;
  NumberedTokens lists[kMaxPushRanks] = {};
};
void launch_number_rows(const NumberRowsArgs& args, cudaStream_t stream);

/// One message to all other hosts, or one to each, `stride` bytes apart.
struct Messages {
  std::int32_t count = 1;
  std::size_t stride = 0;
};

/// Ids and weights of a rank's tokens, in every message.
struct PackIdsArgs {
  GivenIds ids;                         ///< [tokens, K]
  const float* topk_weights = nullptr;  ///< null: all 1
  std::int32_t num_tokens = 0;
  std::int32_t max_tokens = 0;  ///< M
  std::int32_t num_topk = 0;
  std::int32_t num_experts = 0;
  std::uint32_t mode = 0;            ///< DispatchArgs::mode
  Messages messages;                 ///< of which the first is pointed to
  std::int32_t* to_ids = nullptr;    ///< [M, K]; -1 where there is no expert
  float* to_weights = nullptr;       ///< [M, K]; null: they do not travel
  std::uint32_t* to_mode = nullptr;  ///< [1]
};
void launch_pack_ids(const PackIdsArgs& args, cudaStream_t stream);

/// Rows in wire form. A row has room for whole vectors.
struct PackedRows {
  Messages messages;  ///< of which the first is pointed to
  std::byte* rows = nullptr;
  std::int64_t stride = 0;      ///< bytes, a multiple of 16
  std::byte* scales = nullptr;  ///< [C, S], as the scheme stores them; null: none
  /// [messages, numbers_stride] NumberedTokens::numbers; null: every token is a row.
  const std::int32_t* numbers = nullptr;
  std::int64_t numbers_stride = 0;
  RowBlock block{};  ///< by number; others are left as they are
  std::int32_t max_ctas = 1;
};
/// Of the tokens of `args`, whose grid is not needed. Tokens of simulated schemes become bf16 rows.
void launch_pack_rows(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream);

/// Rows that ranks of one host return for the tokens of one rank: [C, W] in the order of the
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
  const std::int32_t* numbers = nullptr;    ///< as dispatch had them; null: every token has rows
  RowBlock block{};                         ///< by number, only these
};
/// Waits for the rows in the window, and empties it: `max_ctas` of kExchangeThreads are its room.
void launch_collect_rows(const ReturnedRowsArgs& args, int max_ctas, cudaStream_t stream);
/// Puts the rows of a message into the window; waits for nothing.
void launch_place_rows(const ReturnedRowsArgs& args, int max_ctas, cudaStream_t stream);

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
  const std::uint32_t* modes[kMaxPushRanks] = {};  ///< each with a count behind it
  std::uint32_t* counts = nullptr;                 ///< host memory, for those counts; null: none
  std::uint64_t* have_arrived = nullptr;           ///< host memory: set to 1 behind them
};
void launch_end_stay(const EndStayArgs& args, cudaStream_t stream);

}  // namespace switchyard::cuda
