// SPDX-License-Identifier: Apache-2.0
//
// balance.h: how evenly a load of experts falls on ranks, as they are placed and as balance_experts
// would place them. For the reports of run and bench.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace switchyard::cli {

/// Mean load of a rank divided by the largest.
struct Balance {
  double placed = 1;          ///< experts in order, as the exchange places them
  double balanced = 1;        ///< by balance_experts
  double with_redundant = 1;  ///< the same with one more copy on each rank
  std::int32_t num_redundant = 0;
};

/// `expert_load` has the rows of each expert. `num_groups` is that of the router.
Balance balance_of(std::span<const std::int64_t> expert_load, int num_ranks, int num_hosts,
                   int num_groups);

/// One line.
std::string to_text(const Balance& balance);
nlohmann::ordered_json to_json(const Balance& balance);

}  // namespace switchyard::cli
