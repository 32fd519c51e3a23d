// SPDX-License-Identifier: Apache-2.0
//
// push_layout.h: every byte offset in the windows that GPUs push into, for host and device code.
//
// A sender stores each row into the window of every rank that wants it, in slot (sender, token), so
// rows leave before anything is counted. What depends on counts follows separately: the sender's
// n-th row for a rank has routes there at (sender, n), which say whose row it is and where it goes.
// Rows travel in chunks of 512 elements; a warp moves one chunk at a time. Returned rows go to slot
// (token, column) of the token's owner.
//
// Two slot sets alternate from call to call; a call is a dispatch with its combine. Returned rows
// have one set: a rank stores them after a dispatch that its peer announced behind its last
// combine.
//   set:  P x T rows        elements, then scales
//         marks             one byte per 8 bytes of the rows, see cuda/exchange/wire.cuh
//         P announcements   {rows for this rank, rows for each of its experts, the call's mode}
//         P x T routes      {token, each choice, each weight}
//   both: T x columns       returned rows
//         marks             of returned rows that have scales
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace switchyard {

inline constexpr int kLanes = 32;
inline constexpr int kVecElements = 16;                       ///< per lane
inline constexpr int kChunkElements = kLanes * kVecElements;  ///< per warp
inline constexpr int kReturnVecElements = 8;                  ///< per lane, in returned rows
inline constexpr int kReturnChunkElements = kLanes * kReturnVecElements;
inline constexpr std::size_t kUnitBytes = 16;
inline constexpr int kMaxPushRanks = 64;
inline constexpr int kMaxPushTopk = 32;         ///< one lane per choice
inline constexpr std::size_t kRecordBytes = 8;  ///< {value, tag}
/// The route of a choice whose expert is not on the reading rank, or of no expert.
inline constexpr std::uint32_t kNoRoute = 0xFFFFFFFFu;

/// What determines the size of a push window. Equal on every rank.
struct PushShape {
  std::int64_t max_tokens = 0;
  std::int64_t hidden = 0;
  std::int32_t num_ranks = 1;
  std::int32_t num_topk = 1;
  std::int32_t max_local_experts = 1;
  std::int32_t element_bits = 16;         ///< in dispatched rows
  std::int32_t chunk_scale_bytes = 0;     ///< scales per chunk, a multiple of 16
  std::int32_t return_element_bits = 16;  ///< in returned rows
  std::int32_t return_scale_bytes = 0;    ///< scales per return chunk, a multiple of 16
  bool sends_routes = true;               ///< rows are placed by expert
  bool sends_weights = false;
  bool keeps_every_choice = false;  ///< one returned row per choice (per_expert)
};

struct PushLayout {
  PushShape shape;
  std::int32_t num_chunks = 0;         ///< per row
  std::int32_t num_return_chunks = 0;  ///< per returned row
  std::int32_t place_bits = 0;         ///< low bits of a route; above: the expert's local index
  // In 32 bits, because a GPU multiplies two such numbers in one instruction.
  std::uint32_t chunk_bytes = 0;  ///< of its elements
  std::uint32_t scales_in_row = 0;
  std::uint32_t row_stride = 0;
  std::uint32_t return_chunk_stride = 0;
  std::uint32_t return_stride = 0;
  std::uint32_t routes_stride = 0;
  std::uint32_t announcement_stride = 0;
  std::size_t marks_offset = 0;  ///< within a set, like the next two; the rows end here
  std::size_t announcements_offset = 0;
  std::size_t routes_offset = 0;
  std::size_t set_bytes = 0;
  std::size_t returns_offset = 0;
  std::size_t return_marks_offset = 0;
  std::size_t total_bytes = 0;

  SWITCHYARD_HOST_DEVICE std::size_t set(std::uint64_t call) const {
    return (call & 1) != 0 ? set_bytes : 0;
  }
  SWITCHYARD_HOST_DEVICE std::size_t row(std::uint64_t call, int source, std::int64_t token) const {
    return set(call) + product(slot(source, token), row_stride);
  }
  SWITCHYARD_HOST_DEVICE std::size_t elements(std::size_t row, int chunk) const {
    return row + product(static_cast<std::uint32_t>(chunk), chunk_bytes);
  }
  SWITCHYARD_HOST_DEVICE std::size_t scales(std::size_t row, int chunk) const {
    return row + scales_in_row + static_cast<std::uint32_t>(chunk * shape.chunk_scale_bytes);
  }
  /// Records: the number of rows, the number for each of the reader's experts, and the call's mode
  /// (DispatchArgs::mode).
  SWITCHYARD_HOST_DEVICE std::size_t announcement(std::uint64_t call, int source) const {
    return set(call) + announcements_offset +
           product(static_cast<std::uint32_t>(source), announcement_stride);
  }
  /// Records: the token; per choice its route, or its expert id if rows are not placed by expert;
  /// then the weights.
  SWITCHYARD_HOST_DEVICE std::size_t routes(std::uint64_t call, int source, std::int64_t n) const {
    return set(call) + routes_offset + product(slot(source, n), routes_stride);
  }
  SWITCHYARD_HOST_DEVICE std::size_t returned(std::int64_t token, int column) const {
    return returns_offset +
           product(static_cast<std::uint32_t>(token * num_columns() + column), return_stride);
  }
  /// The mark of the 8 bytes at `offset`, which lies in a row of `call` or in a returned row.
  SWITCHYARD_HOST_DEVICE std::size_t mark(std::uint64_t call, std::size_t offset) const {
    if (offset >= returns_offset) return return_marks_offset + (offset - returns_offset) / 8;
    return set(call) + marks_offset + (offset - set(call)) / 8;
  }

  SWITCHYARD_HOST_DEVICE bool has_rank_columns() const {
    return !shape.keeps_every_choice && shape.num_ranks < shape.num_topk;
  }
  SWITCHYARD_HOST_DEVICE int num_columns() const {
    return has_rank_columns() ? shape.num_ranks : shape.num_topk;
  }
  SWITCHYARD_HOST_DEVICE int column(int rank, int k) const { return has_rank_columns() ? rank : k; }

 private:
  SWITCHYARD_HOST_DEVICE static std::size_t product(std::uint32_t a, std::uint32_t b) {
    return std::uint64_t{a} * b;
  }
  SWITCHYARD_HOST_DEVICE std::uint32_t slot(int source, std::int64_t n) const {
    return static_cast<std::uint32_t>(source) * static_cast<std::uint32_t>(shape.max_tokens) +
           static_cast<std::uint32_t>(n);
  }
};

/// Errors: kInvalidArgument when a size overflows, or when a row's size or the number of rows
/// exceeds 32 bits.
PushLayout make_push_layout(const PushShape& shape);

}  // namespace switchyard
