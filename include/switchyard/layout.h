// SPDX-License-Identifier: Apache-2.0
//
// layout.h: how received rows are arranged, and where sums are computed. Values, not libraries.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/export.h"

namespace switchyard {

/// Receive layouts. Rows of an expert are always ordered by (source rank, token, k).
enum class Layout : std::uint8_t {
  kBatched,    ///< [L, capacity, H] and counts; expert-major (DeepEP low latency)
  kExpanded,   ///< one row per (token, local expert), experts contiguous (ElasticBuffer do_expand)
  kCompact,    ///< one row per (token, rank) with local expert ids (DeepEP high throughput)
  kByRank,     ///< [P, Tmax, ...]: row n of source s at (s, n) (TRT-LLM all-to-all)
  kAllGather,  ///< every token of every rank, by (source rank, token)
};

/// What happens when more rows want an expert than its capacity. The decision follows from the
/// routing of all ranks before any row moves, and is the same on every rank.
enum class Overflow : std::uint8_t {
  kError,  ///< dispatch fails on every rank and nothing is lost
  kDrop,   ///< drops the rows of lowest weight; among equal ones the last by (rank, token, k)
};

/// Where the weighted sum of a token's expert rows is computed.
enum class Reduce : std::uint8_t {
  /// Exact: rows return unreduced, and the owner runs one f32 chain, k ascending. The bits are the
  /// same for every backend, batch split and number of ranks.
  kPerExpert,
  /// Fast: each rank sums its rows of a token and rounds once to the wire type; the owner adds up
  /// the partial sums. The bits are the same for every backend and run at one placement.
  kPerRank,
  /// Each rank sums as with kPerRank; the partial sums of a host's ranks are added from +0, ranks
  /// ascending, and rounded once to the wire type; the owner adds up those of hosts, ascending. One
  /// row per token crosses between two hosts. The bits are the same for every backend and run at
  /// one placement and one map of hosts. On GPUs only where they are of several hosts.
  kPerHost,
};

/// True when the rows of each expert are contiguous, one per (token, expert); false when each token
/// has one row.
constexpr bool is_expert_major(Layout layout) {
  return layout == Layout::kBatched || layout == Layout::kExpanded;
}

/// @{ Names in options and JSON: "batched", ..., "per_expert", ...
SWITCHYARD_API const char* name_of(Layout layout) noexcept;
SWITCHYARD_API const char* name_of(Reduce reduce) noexcept;
SWITCHYARD_API std::optional<Layout> layout_from_name(std::string_view name) noexcept;
SWITCHYARD_API std::optional<Reduce> reduce_from_name(std::string_view name) noexcept;
/// @}

}  // namespace switchyard
