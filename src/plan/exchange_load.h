// SPDX-License-Identifier: Apache-2.0
//
// exchange_load.h: what a dispatch and its combine move, rank by rank, counted from ids alone.
//
// Inside a host each token goes once to each rank that holds one of its experts. To each other host
// it goes once, to the rank that passes it on there (HostMap::forwarder), and from that one to the
// ranks that need it. Results come back the same way.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/expert_ownership.h"
#include "plan/host_map.h"

namespace switchyard {

/// Rows that one rank sends or receives; its own rows, which stay in its memory, do not count.
struct LinkRows {
  std::int64_t inside_out = 0;  ///< to ranks of its host
  std::int64_t inside_in = 0;
  std::int64_t across_out = 0;  ///< to other hosts
  std::int64_t across_in = 0;

  // In the busier direction.
  std::int64_t busier_inside() const { return inside_out > inside_in ? inside_out : inside_in; }
  std::int64_t busier_across() const { return across_out > across_in ? across_out : across_in; }

  friend bool operator==(const LinkRows&, const LinkRows&) = default;
};

/// One rank in one call. Contracts are indexed by Reduce.
struct RankLoad {
  std::int64_t tokens = 0;    ///< of its own that have an expert
  std::int64_t leaving = 0;   ///< of them, those that another rank wants
  std::int64_t arrivals = 0;  ///< tokens that its experts want, its own included
  std::int64_t placed = 0;    ///< of them, one for each expert that wants one
  LinkRows dispatch;
  std::array<LinkRows, 3> combine;         ///< by contract
  std::array<std::int64_t, 3> returned{};  ///< rows that it makes for owners, itself included
  std::array<std::int64_t, 3> partials{};  ///< rows that it adds up for its own tokens
  std::int64_t passed_on = 0;              ///< rows of other hosts that it hands on
};

/// Adds what `source` causes. Experts are those of the group; ids that are -1 count nothing.
///
///   ids    [T, num_topk]
///   loads  [P]
///
/// Errors: kInvalidArgument (an id outside of the group's experts).
void add_load(int source, std::span<const std::int32_t> ids, std::int32_t num_topk,
              const ExpertOwnership& ownership, const HostMap& hosts, std::span<RankLoad> loads);

}  // namespace switchyard
