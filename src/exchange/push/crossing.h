// SPDX-License-Identifier: Apache-2.0
//
// crossing.h: what crosses between GPUs of different hosts, as messages of fixed size unless they
// are exact: M tokens of each rank, however many it has and wherever they go. So no host needs to
// know counts, and a graph captures the messages with the kernels. Then the memory that holds them.
// Pure functions of the configuration and of the host map: the exchange allocates and sends what
// they say, and `switchyard plan` counts it.
//
//   of dispatch  the mode of the call, how many rows follow, ids [M, K], weights [M, K], and of
//                each region (push_shape.h) rows [C] in wire form and their scales [C, S]
//   of combine   rows [C, W] that the ranks of one host return, in the order of the token's partial
//                sums; then records of weights
//
// Rows are those of all tokens, C is M, and every host gets the same message: unless messages are
// packed (CrossingRoom), when each host gets the rows of its tokens, one after another.
//
// Long messages cross in blocks of rows, so that a block is passed on, or put into the window,
// while the next one crosses. What comes before the rows of dispatch goes with the first block,
// records of weights with the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "exchange/push/push_shape.h"
#include "plan/host_map.h"
#include "plan/row_block.h"

namespace switchyard {

/// What ExchangeOptions say of messages.
struct CrossingRoom {
  std::int64_t capacity = 0;  ///< of tokens; 0: every token
  bool is_exact = false;      ///< messages have the size of what crosses

  bool may_pack(std::int64_t max_tokens) const {
    return is_exact || num_rows(max_tokens) < max_tokens;
  }
  /// C of a call.
  std::int64_t num_rows(std::int64_t max_tokens) const {
    return capacity > 0 && capacity < max_tokens ? capacity : max_tokens;
  }
};

inline constexpr std::size_t kMaxRowBlocks = 8;
/// The blocks of a message of `num_rows` rows: one or more, of which the first begins with row 0.
/// All ranks know C, so they know the blocks.
std::vector<RowBlock> row_blocks(std::int64_t num_rows, std::size_t num_bytes);

/// Offsets of a region's rows.
struct CrossingRows {
  std::size_t rows = 0;
  std::int64_t stride = 0;  ///< bytes
  std::size_t scales = 0;
  std::size_t scale_bytes = 0;  ///< of a row

  bool has_scales() const { return scale_bytes > 0; }
};

/// Bytes of a message that cross as one.
struct MessagePiece {
  std::size_t offset = 0;
  std::size_t num_bytes = 0;

  friend bool operator==(const MessagePiece&, const MessagePiece&) = default;
};
/// How many rows a message has if it is exact; none: it has its fixed size.
using ExactRows = std::optional<std::int64_t>;

struct DispatchMessage {
  std::size_t mode = 0;   ///< u32 of its sender, at the same place in every message
  std::size_t count = 0;  ///< u32, behind it: rows, where messages are packed
  std::size_t ids = 0;
  std::size_t weights = 0;
  std::vector<CrossingRows> regions;  ///< as they are dispatched, the last one with the ids
  bool is_routing = false;            ///< routing_message(), never packed
  std::int64_t num_rows = 0;          ///< C
  std::size_t num_bytes = 0;

  std::vector<RowBlock> blocks() const;
  /// The mode and the count, which cross ahead of the rest if the message is exact.
  MessagePiece head() const { return {mode, 2 * sizeof(std::uint32_t)}; }
  /// What crosses with a block. A piece without rows has no bytes.
  std::vector<MessagePiece> pieces(const RowBlock& block, const ExactRows& exact = {}) const;
};

/// Of payloads and tokens; with `routing_only` of tokens, one vector of elements each.
DispatchMessage dispatch_message(const PushExchangeShape& shape, std::int64_t max_tokens,
                                 bool routing_only, const CrossingRoom& room = {});
/// Of the routing, where shape.gathers_routing.
DispatchMessage routing_message(const PushExchangeShape& shape, std::int64_t max_tokens);

struct ReturnMessage {
  std::int32_t width = 0;     ///< W
  std::size_t row_bytes = 0;  ///< of a token's W rows
  std::size_t weights = 0;
  std::int64_t num_records = 0;
  std::int64_t num_rows = 0;  ///< C
  std::size_t num_bytes = 0;

  std::vector<RowBlock> blocks() const { return row_blocks(num_rows, num_bytes); }
  std::vector<MessagePiece> pieces(const RowBlock& block, const ExactRows& exact = {}) const;
};

/// Of a host with `host_size` ranks.
ReturnMessage return_message(const PushExchangeShape& shape, int host_size, std::int64_t max_tokens,
                             const CrossingRoom& room = {});

/// Of the part of a forwarder's window where ranks of its host return rows for one source: what a
/// window has from the returned rows on, and slots of weights.
struct ReturnPart {
  std::size_t weights = 0;
  std::size_t num_bytes = 0;
};
ReturnPart return_part(const PushExchangeShape& shape);

/// Where the part of the source with this number begins, among those that a rank passes on.
std::size_t return_part_offset(const PushExchangeShape& shape, std::size_t number);
/// Of a slot's window with its parts; equal on all ranks.
std::size_t hosts_window_bytes(const PushExchangeShape& shape, const HostMap& map);

/// Offsets of lists of partial sums, see cuda::CallState.
struct ListOffsets {
  std::size_t num_partials = 0;
  std::size_t columns = 0;
  std::size_t partial_ranks = 0;
  std::size_t partial_weights = 0;  ///< of forwarded tokens only
};

/// The memory of a slot beside its window and what ranks of one host take.
struct HostsSlotLayout {
  struct Forward {
    std::size_t message = 0;  ///< of dispatch, then of combine
    ListOffsets lists;
    std::size_t numbers = 0;  ///< [T] i32: row of each token in a packed message
  };
  std::size_t sent = 0;               ///< a message, or one to each other host
  std::size_t message_stride = 0;     ///< of these
  std::size_t numbers = 0;            ///< [other hosts, T] i32, where messages may be packed
  std::vector<Forward> forwards;      ///< of the sources that the rank passes on, ascending
  std::vector<std::size_t> returned;  ///< by host; not of the own
  // per_host only.
  ListOffsets of_ranks;  ///< the ranks of one host, ascending
  ListOffsets of_hosts;  ///< hosts, for own tokens
  std::size_t sums = 0;  ///< [T, H] f32
  std::size_t num_bytes = 0;
};
HostsSlotLayout hosts_slot_layout(const PushExchangeShape& shape, const HostMap& map, int rank,
                                  const CrossingRoom& room = {});

}  // namespace switchyard
