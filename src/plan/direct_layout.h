// SPDX-License-Identifier: Apache-2.0
//
// direct_layout.h: the part of a push window that rows stored straight to their places need
// (docs/gpu.md), for host and device code. Offsets are from the beginning of the window.
//
//   P counts     how many rows each source has for each rank, by parts of its tokens
//   2 x P        how many senders each source has; two sets alternate from call to call
//   P flags      of the senders of each source: their rows are there
//   P ready      how each rank returns rows (DirectReturn)
//   T x columns  flags of returned rows
//   P x T        what a combine knows of an arrived row: its token, and the row of each choice
//   T x P        the row of each own token at each rank
//   received     what received_memory.h lays out, where peers store rows
//   results      rows of this rank's experts, for peers to read; or, where no rank's rows lie
//                there, the returned rows of own tokens, which peers store
//
// Counts, senders and flags are records {value, tag} as in cuda/exchange/wire.cuh and never
// cleared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "plan/push_layout.h"

namespace switchyard {

/// How a rank returns rows in a combine: announced to every rank before any row, so that all know
/// what all do.
enum class DirectReturn : std::uint32_t {
  kPushes,   ///< to the owners; to where its results would lie, owners may push
  kCopies,   ///< into its results; each row has a flag
  kInPlace,  ///< the experts wrote them into its results
};

/// Senders of a dispatch, at most: each has a flag.
inline constexpr int kMaxDirectSenders = 512;

/// How the tokens of a rank are cut into parts that are counted one by one. All ranks cut alike.
struct CountParts {
  std::int32_t count = 1;
  std::int32_t tokens = 1;  ///< per part
};
/// For calls of at most `max_tokens` per rank.
CountParts count_parts(int num_ranks, std::int64_t max_tokens);

struct DirectLayout {
  std::int32_t num_ranks = 0;
  std::int32_t num_columns = 0;
  std::int32_t max_parts = 0;
  std::size_t counts_offset = 0;
  std::size_t senders_offset = 0;
  std::size_t flags_offset = 0;
  std::size_t ready_offset = 0;
  std::size_t return_flags_offset = 0;
  std::size_t arrival_tokens_offset = 0;  ///< [P, T] i32
  std::size_t arrival_rows_offset = 0;    ///< [P, T, K] i32
  std::size_t placed_rows_offset = 0;     ///< [T, P] i32; -1: none
  std::size_t received_offset = 0;
  std::size_t results_offset = 0;
  std::size_t end = 0;  ///< 0: the window has no such part

  /// How many rows rank `source` has for rank `to` in a part of its tokens.
  SWITCHYARD_HOST_DEVICE std::size_t count(int source, int part, int to) const {
    return counts_offset +
           static_cast<std::size_t>((source * max_parts + part) * num_ranks + to) * kRecordBytes;
  }
  SWITCHYARD_HOST_DEVICE std::size_t senders(std::uint64_t call, int source) const {
    const auto set = static_cast<std::size_t>(call & 1);
    return senders_offset +
           (set * static_cast<std::size_t>(num_ranks) + static_cast<std::size_t>(source)) *
               kRecordBytes;
  }
  /// What sender `sender` of rank `source` had to store is there.
  SWITCHYARD_HOST_DEVICE std::size_t flag(int source, int sender) const {
    return flags_offset +
           static_cast<std::size_t>(source * kMaxDirectSenders + sender) * kRecordBytes;
  }
  SWITCHYARD_HOST_DEVICE std::size_t ready(int source) const {
    return ready_offset + static_cast<std::size_t>(source) * kRecordBytes;
  }
  SWITCHYARD_HOST_DEVICE std::size_t return_flag(std::int64_t token, int column) const {
    return return_flags_offset +
           static_cast<std::size_t>(token * num_columns + column) * kRecordBytes;
  }
};

/// Behind `offset` bytes of a window. `num_rows`, `received_bytes`: of the receive buffer, equal on
/// every rank.
/// Errors: kInvalidArgument when a size overflows.
DirectLayout make_direct_layout(const PushLayout& layout, std::size_t offset, std::int64_t num_rows,
                                std::size_t received_bytes);

}  // namespace switchyard
