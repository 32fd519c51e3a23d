// SPDX-License-Identifier: Apache-2.0
//
// simulation.h: which ranks and links carry how much, counted from drawn or replayed routing with
// the functions that plan real calls.
#pragma once

#include <cstdint>
#include <vector>

#include "forecast/hosts_shape.h"
#include "plan/exchange_load.h"

namespace switchyard::forecast {

/// Where experts are.
struct Placement {
  std::int32_t num_redundant = 0;  ///< copies beyond one of each expert
  /// balance_experts() places by the load of an earlier iteration; otherwise copies follow in order
  /// (initial_physical_to_logical).
  bool is_balanced = false;
};

/// As few copies as give every rank equally many experts.
std::int32_t min_redundant(std::int32_t num_experts, int num_ranks);

struct Simulation {
  std::vector<RankLoad> loads;            ///< [P]
  std::vector<std::int64_t> expert_load;  ///< [logical experts] choices
  std::int32_t num_physical = 0;
  double balance = 1;  ///< mean of the rows that ranks' experts get / the largest
};

/// One iteration of a shape's routing. The shape's ranks are spread evenly over its hosts.
///
/// Errors: kInvalidArgument (hosts that do not divide ranks, copies that do not divide evenly), and
/// those of a trace.
Simulation simulate(const HostsShape& shape, const Placement& placement, std::int64_t iteration);

}  // namespace switchyard::forecast
