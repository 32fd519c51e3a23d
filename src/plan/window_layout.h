// SPDX-License-Identifier: Apache-2.0
//
// window_layout.h: every byte offset in a rank's window, for host and device.
//
// A rank publishes in its own window and its peers read from there. A token's row is written once,
// however many ranks want it, and always at slot t of its call's slot set (identity slots, no
// counters). Rows of combine are written to the owner's window, at slot (token, column).
//
//   line 0           {consumed}: the newest call up to which this rank has read everything
//   num_sets slot sets, each:
//     header line    {call, ...}, written by this rank
//     arrival lines  P x {call}, one written by each peer (combine)
//     ids            [T, K] u16 (dispatch)
//     weights        [T, K] f32 (dispatch, combine)
//     rows           [T] rows of dispatch, or [T, columns] rows of combine
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace switchyard {

inline constexpr std::size_t kLineBytes = 128;
inline constexpr std::size_t kRowAlignment = 16;

/// The parameters that size a window, equal on every rank.
struct WindowShape {
  std::int64_t max_tokens = 0;
  std::int32_t num_ranks = 1;
  std::int32_t num_topk = 1;
  std::int32_t num_sets = 2;
  bool sends_weights = true;
  bool keeps_every_choice = false;    ///< rows of combine by k (per_expert), else by rank if fewer
  bool returns_everywhere = false;    ///< every rank returns a row of every token
  std::size_t payload_bytes = 0;      ///< elements of one dispatched row
  std::size_t scale_bytes = 0;        ///< scales of one dispatched row
  std::size_t extra_bytes = 0;        ///< extra payloads of one dispatched row
  std::size_t combine_row_bytes = 0;  ///< one row of combine, scales included
};

struct WindowLayout {
  WindowShape shape;
  std::size_t ids_offset = 0;  ///< within a set, like the next two
  std::size_t weights_offset = 0;
  std::size_t rows_offset = 0;
  std::size_t set_bytes = 0;
  std::size_t row_stride = 0;
  std::size_t scales_in_row = 0;  ///< offset of a row's scales, a multiple of 4
  std::size_t extras_in_row = 0;  ///< offset of a row's extra payloads, a multiple of 4
  std::size_t combine_row_stride = 0;
  std::size_t total_bytes = 0;

  SWITCHYARD_HOST_DEVICE std::size_t set(std::uint64_t call) const {
    return kLineBytes +
           static_cast<std::size_t>(call % static_cast<std::uint64_t>(shape.num_sets)) * set_bytes;
  }
  SWITCHYARD_HOST_DEVICE std::size_t consumed() const { return 0; }
  SWITCHYARD_HOST_DEVICE std::size_t header(std::uint64_t call) const { return set(call); }
  SWITCHYARD_HOST_DEVICE std::size_t arrived(std::uint64_t call, int peer) const {
    return set(call) + kLineBytes * static_cast<std::size_t>(1 + peer);
  }
  SWITCHYARD_HOST_DEVICE std::size_t ids(std::uint64_t call) const {
    return set(call) + ids_offset;
  }
  SWITCHYARD_HOST_DEVICE std::size_t weights(std::uint64_t call) const {
    return set(call) + weights_offset;
  }
  SWITCHYARD_HOST_DEVICE std::size_t row(std::uint64_t call, std::int64_t token) const {
    return set(call) + rows_offset + static_cast<std::size_t>(token) * row_stride;
  }
  /// Whether the combine columns of a token are ranks rather than choices k: without choices, or
  /// when there are fewer ranks than choices and not every choice is kept.
  SWITCHYARD_HOST_DEVICE bool has_rank_columns() const {
    return shape.returns_everywhere ||
           (!shape.keeps_every_choice && shape.num_ranks < shape.num_topk);
  }
  SWITCHYARD_HOST_DEVICE std::int32_t num_columns() const {
    return has_rank_columns() ? shape.num_ranks : shape.num_topk;
  }
  SWITCHYARD_HOST_DEVICE std::int32_t column(std::int32_t rank, std::int32_t k) const {
    return has_rank_columns() ? rank : k;
  }
  SWITCHYARD_HOST_DEVICE std::size_t partial(std::uint64_t call, std::int64_t token,
                                             std::int32_t column) const {
    return set(call) + rows_offset +
           static_cast<std::size_t>(token * num_columns() + column) * combine_row_stride;
  }
};

/// Errors: kInvalidArgument when a size overflows.
WindowLayout make_window_layout(const WindowShape& shape);

}  // namespace switchyard
