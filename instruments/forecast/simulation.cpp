// SPDX-License-Identifier: Apache-2.0

#include "forecast/simulation.h"

#include <algorithm>
#include <thread>

#include "switchyard/eplb.h"

#include "core/fail.h"
#include "core/round_up.h"
#include "plan/host_crossings.h"

namespace switchyard::forecast {
namespace {

// Placements look at another iteration than the one that is counted: balancing follows the past.
constexpr std::int64_t kEarlier = 1'000'003;

using Ids = std::vector<std::vector<std::int32_t>>;  // of each rank

Ids draw(const HostsShape& shape, std::int64_t iteration) {
  const auto num_ranks = static_cast<std::size_t>(shape.num_ranks);
  Ids ids(num_ranks);
  const auto num_threads = std::min<std::size_t>(std::max(1u, std::thread::hardware_concurrency()),
                                                 cdiv<std::size_t>(num_ranks, 64));
  const auto draw_part = [&](std::size_t part) {
    for (std::size_t rank = part; rank < num_ranks; rank += num_threads) {
      ids[rank] = shape.routing.ids(shape.seed, iteration, static_cast<int>(rank), shape.num_ranks,
                                    shape.num_tokens);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t part = 1; part < num_threads; ++part) threads.emplace_back(draw_part, part);
  draw_part(0);
  return ids;
}

std::vector<std::int64_t> load_of(const Ids& ids, std::int32_t num_experts) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(num_experts), 0);
  for (const std::vector<std::int32_t>& own : ids) {
    for (const std::int32_t id : own) {
      if (id >= 0) ++load[static_cast<std::size_t>(id)];
    }
  }
  return load;
}

std::vector<std::int32_t> place(const HostsShape& shape, const Placement& placement) {
  const std::int32_t num_experts = shape.workload.num_experts;
  if (!placement.is_balanced) {
    return initial_physical_to_logical(num_experts, placement.num_redundant);
  }
  return balance_experts(load_of(draw(shape, kEarlier), num_experts),
                         {num_experts + placement.num_redundant, shape.num_ranks, shape.num_hosts,
                          shape.routing.num_groups()});
}

// Tokens of other ranks count on, so that copies are hit evenly from everywhere.
void map_to_copies(std::vector<std::int32_t>& ids, const LogicalMaps& maps,
                   std::int64_t first_token, std::int32_t num_topk) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) continue;
    const auto logical = static_cast<std::size_t>(ids[i]);
    const std::int64_t token = first_token + static_cast<std::int64_t>(i) / num_topk;
    const std::int32_t copy = choose_replica(token, maps.replica_counts[logical]);
    ids[i] = maps.logical_to_physical[logical * static_cast<std::size_t>(maps.max_replicas) +
                                      static_cast<std::size_t>(copy)];
  }
}

double balance_of(const std::vector<RankLoad>& loads) {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const RankLoad& load : loads) {
    most = std::max(most, load.placed);
    sum += load.placed;
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(loads.size());
  return most == 0 ? 1 : mean / static_cast<double>(most);
}

}  // namespace

std::int32_t min_redundant(std::int32_t num_experts, int num_ranks) {
  return align_up(num_experts, num_ranks) - num_experts;
}

Simulation simulate(const HostsShape& shape, const Placement& placement, std::int64_t iteration) {
  Simulation result;
  const std::int32_t num_topk = shape.workload.num_topk;
  result.num_physical = shape.workload.num_experts + placement.num_redundant;
  const HostMap hosts(even_host_map(shape.num_ranks, shape.num_hosts));
  const LogicalMaps maps =
      compute_logical_maps(place(shape, placement), shape.workload.num_experts);
  Ids ids = draw(shape, iteration);
  result.expert_load = load_of(ids, shape.workload.num_experts);
  const ExpertOwnership ownership{result.num_physical, shape.num_ranks};
  result.loads.resize(static_cast<std::size_t>(shape.num_ranks));
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<std::int32_t>& own = ids[static_cast<std::size_t>(rank)];
    map_to_copies(own, maps, rank * shape.num_tokens, num_topk);
    add_load(rank, own, num_topk, ownership, hosts, result.loads);
  }
  result.balance = balance_of(result.loads);
  return result;
}

}  // namespace switchyard::forecast
