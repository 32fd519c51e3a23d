// SPDX-License-Identifier: Apache-2.0
//
// transit.h: how rows lie where a transport has put them, so that the loops over rows of
// CpuExchange compute addresses without asking the transport for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/routing.h"

namespace switchyard {

/// What a rank says with each dispatch. The last four must be equal on every rank.
struct SourceRouting {
  RankRouting routing;             ///< ids are absent when the routing is an earlier one
  std::uint64_t routing_call = 0;  ///< the dispatch whose routing holds
  std::int64_t max_tokens = 0;
  float tensor_scale = 1.0f;
  bool routing_only = false;
};

/// Rows of one source in the form in which they travel. The position of a row is its token, or its
/// number among the source's arrivals, or a table of these numbers says it.
struct SourceRows {
  const std::byte* first = nullptr;
  std::size_t stride = 0;
  bool is_by_token = false;
  const std::int32_t* positions = nullptr;  ///< by number among the source's arrivals; or null

  std::int64_t position(std::size_t number, const Arrival& arrival) const {
    if (is_by_token) return arrival.token;
    return positions == nullptr ? static_cast<std::int64_t>(number) : positions[number];
  }
  const std::byte* row(std::int64_t position) const {
    return first + static_cast<std::size_t>(position) * stride;
  }
};

/// Where one rank's rows for one owner lie, on either side: at (token, column), or packed in the
/// order in which the rank has the owner's tokens (per_expert: k ascending). Weights that return
/// likewise: at (token, k), or packed.
struct ReturnedRows {
  std::byte* first = nullptr;
  std::size_t stride = 0;
  std::int32_t num_columns = 0;  ///< 0: packed
  float* weights = nullptr;
  const std::int32_t* positions = nullptr;  ///< by number of the arrival: instead of the token

  std::int64_t place_of(std::size_t number, const Arrival& arrival) const {
    return positions == nullptr ? arrival.token : positions[number];
  }
  bool is_packed() const { return num_columns == 0; }
  std::byte* row(std::int64_t number, std::int64_t token, std::int32_t column) const {
    const std::int64_t at = is_packed() ? number : token * num_columns + column;
    return first + static_cast<std::size_t>(at) * stride;
  }
  float& weight(std::int64_t number, std::int64_t choice) const {
    return weights[is_packed() ? number : choice];
  }
};

}  // namespace switchyard
