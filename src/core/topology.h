// SPDX-License-Identifier: Apache-2.0
//
// topology.h: the NUMA nodes of this machine, how ranks spread over them, and memory near a rank.
// hwloc_topology.cpp asks hwloc; without it no_hwloc.cpp answers that nothing is known.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace switchyard {

/// Processors that share a memory controller.
struct NumaNode {
  int number = 0;            ///< as the system counts
  std::vector<int> cores{};  ///< logical processors that the caller may run on; ascending
};

/// The nodes with at least one such processor; empty when nothing is known. Nodes without
/// processors of their own, such as memory expanders, are left out. Reads the system's files, which
/// takes milliseconds.
std::vector<NumaNode> numa_nodes();

/// The index in `nodes` of the node that our launcher binds `rank` to: consecutive ranks share a
/// node, and nodes get equally many ranks, give or take one. `num_nodes` is at least 1.
constexpr std::size_t node_of_rank(int rank, int num_ranks, std::size_t num_nodes) {
  return static_cast<std::size_t>(rank) * num_nodes / static_cast<std::size_t>(num_ranks);
}

/// Asks the system to take the pages of [data, data + bytes) from the node of the calling thread,
/// whoever touches them first. Applies to pages not yet touched, for shared memory in every
/// process. Does nothing if the thread may run on several nodes, or if the machine has only one.
void place_near_caller(void* data, std::size_t bytes) noexcept;

/// The version of hwloc's interface; empty: not in this build.
std::string hwloc_version();

}  // namespace switchyard
