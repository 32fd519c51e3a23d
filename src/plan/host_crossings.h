// SPDX-License-Identifier: Apache-2.0
//
// host_crossings.h: the rows that cross from host to host, counted from a routing table and a host
// map alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "plan/expert_ownership.h"

namespace switchyard {

/// Which host each rank is on.
using HostsOfRanks = std::vector<std::int32_t>;

/// Equally many consecutive ranks on each host. num_hosts divides num_ranks.
HostsOfRanks even_host_map(int num_ranks, int num_hosts);

/// The rows that leave the host of `rank`, if each of its tokens goes once to each other host that
/// holds one of its experts. A pure function.
///
///   topk_ids  [T, K]  i32 or i64, contiguous, host memory; experts of the group, or -1
///
/// Errors: kInvalidArgument (dtype, memory, an id outside of the group's experts, a host map
/// without an entry for each rank).
std::int64_t count_host_crossings(const TensorView& topk_ids, const ExpertOwnership& ownership,
                                  const HostsOfRanks& host_of_rank, int rank);

}  // namespace switchyard
