// SPDX-License-Identifier: Apache-2.0
//
// traffic.h: the bytes that one iteration moves, computed from the ids alone. A token travels once
// to each rank that holds one of its experts, as a row of the wire scheme with its scales and eight
// bytes of routing per choice; rows return as bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "measure/bench_shape.h"
#include "plan/host_map.h"

namespace switchyard::measure {

/// One direction.
struct Flow {
  std::vector<std::int64_t> wire;     ///< [P, P] bytes from rank to rank; the diagonal is 0
  std::vector<std::int64_t> read;     ///< [P] bytes that each rank must read, whatever the method
  std::vector<std::int64_t> written;  ///< [P] the same for writing
  std::vector<std::int64_t> kept{};   ///< [P] of them, those of rows at their places and of outputs
};

struct Traffic {
  int num_ranks = 1;
  Flow dispatch;
  Flow combine;
};

/// `ids` has one entry per rank, [T, K].
Traffic traffic_of(const BenchShape& shape, const std::vector<std::vector<std::int32_t>>& ids);

/// The same for an iteration, with the ids of the shape's routing.
Traffic traffic_of(const BenchShape& shape, std::int64_t iteration);

/// Returns what GPUs of several hosts move inside them: a row for a rank of another host goes from
/// its forwarder there to that rank, and back the same way. Only `wire`.
Traffic inside_hosts(const Traffic& traffic, const HostMap& map);

/// Returns the largest number of bytes that leave one rank.
std::int64_t busiest_egress(const Flow& flow, int num_ranks);
/// Returns the largest number of bytes that one rank sends or receives: the load of the busiest
/// link in one direction.
std::int64_t busiest_link(const Flow& flow, int num_ranks);
/// Returns the largest number of bytes that one rank would copy in the time that its reads and
/// writes take: half of both, because a copy reads as much as it writes.
std::int64_t busiest_copy(const Flow& flow);

}  // namespace switchyard::measure
