// SPDX-License-Identifier: Apache-2.0

#include "balance.h"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "switchyard/eplb.h"

#include "plan/expert_ownership.h"

namespace switchyard::cli {
namespace {

// Where the numbers do not divide, the last ranks have an empty slot.
std::vector<std::int32_t> placement_in_order(int num_experts, int num_ranks) {
  const ExpertOwnership ownership{num_experts, num_ranks};
  std::vector<std::int32_t> map;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int i = 0; i < ownership.max_count(); ++i) {
      map.push_back(i < ownership.count(rank) ? ownership.first(rank) + i : -1);
    }
  }
  return map;
}

}  // namespace

Balance balance_of(std::span<const std::int64_t> expert_load, int num_ranks, int num_hosts,
                   int num_groups) {
  const auto num_experts = static_cast<int>(expert_load.size());
  const std::vector<std::int32_t> in_order = placement_in_order(num_experts, num_ranks);
  Balance balance;
  balance.placed = load_balance(expert_load, in_order, num_ranks);
  balance.balanced = balance.with_redundant = balance.placed;
  constexpr std::size_t kMaxExperts = 65535;
  if (in_order.size() + static_cast<std::size_t>(num_ranks) > kMaxExperts) return balance;
  BalanceConfig config{static_cast<std::int32_t>(in_order.size()), num_ranks, num_hosts,
                       num_groups};
  balance.balanced = load_balance(expert_load, balance_experts(expert_load, config), num_ranks);
  config.num_physical += num_ranks;
  balance.with_redundant =
      load_balance(expert_load, balance_experts(expert_load, config), num_ranks);
  balance.num_redundant = config.num_physical - num_experts;
  return balance;
}

std::string to_text(const Balance& balance) {
  return fmt::format(
      "balance of ranks (mean load / largest): {:.2f} as placed, {:.2f} by balance_experts, {:.2f} "
      "with {} redundant experts\n",
      balance.placed, balance.balanced, balance.with_redundant, balance.num_redundant);
}

nlohmann::ordered_json to_json(const Balance& balance) {
  return {{"placed", balance.placed},
          {"balanced", balance.balanced},
          {"with_redundant", balance.with_redundant},
          {"redundant", balance.num_redundant}};
}

}  // namespace switchyard::cli
