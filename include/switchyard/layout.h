// SPDX-License-Identifier: Apache-2.0
//
// layout.h: how received rows lie, and where sums happen. Values, not libraries.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/export.h"

namespace switchyard {

/// Receive layouts. Rows of an expert are always ordered by (source rank, token, k).
enum class Layout : std::uint8_t {
  kBatched,    ///< [L, capacity, H] and counts; expert-major (DeepEP low latency)
  kExpanded,   ///< a row for each (token, local expert), experts contiguous (ElasticBuffer
               ///< do_expand)
  kCompact,    ///< a row for each (token, rank) with local expert ids (DeepEP high throughput)
  kByRank,     ///< [P, Tmax, ...]: row n of source s at (s, n) (TRT-LLM all-to-all)
  kAllGather,  ///< every token of every rank, by (source rank, token)
};

/// What happens when more rows want an expert than its capacity. Decided from the routing of all
/// ranks before rows move, alike on every rank.
enum class Overflow : std::uint8_t {
  kError,  ///< dispatch fails on every rank and nothing is lost
  kDrop,   ///< rows of the lowest weight are dropped; ties: those of the later (rank, token, k)
};

/// Where the weighted sum of a token's expert rows happens.
enum class Reduce : std::uint8_t {
  /// Exact: rows travel un-reduced; the owner runs one f32 chain, k ascending. Same bits for every
  /// engine, grouping and number of ranks.
  kPerExpert,
  /// Fast: each rank sums its rows of a token, rounds once to the wire type, and the owner sums the
  /// partial rows. Same bits for every engine and run at one placement.
  kPerRank,
};

/// True when each expert's rows are together, a row for each (token, expert); else there is a row
/// for each token.
constexpr bool is_expert_major(Layout layout) {
  return layout == Layout::kBatched || layout == Layout::kExpanded;
}

SWITCHYARD_API const char* name_of(Layout layout) noexcept;
SWITCHYARD_API const char* name_of(Reduce reduce) noexcept;
SWITCHYARD_API std::optional<Layout> layout_from_name(std::string_view name) noexcept;
SWITCHYARD_API std::optional<Reduce> reduce_from_name(std::string_view name) noexcept;

}  // namespace switchyard
