// SPDX-License-Identifier: Apache-2.0
//
// traffic.h: the bytes that one iteration moves, counted from the ids alone. A token goes once to
// each rank that holds one of its experts, as a row of the wire scheme with its scales and eight
// bytes of routing a choice; rows come back as bf16.
#pragma once

#include <cstdint>
#include <vector>

#include "measure/bench_shape.h"

namespace switchyard::measure {

/// Of one direction.
struct Flow {
  std::vector<std::int64_t> wire;     ///< [P, P] bytes from rank to rank; the diagonal is 0
  std::vector<std::int64_t> written;  ///< [P] bytes that a rank must write, whatever the method
};

struct Traffic {
  int num_ranks = 1;
  Flow dispatch;
  Flow combine;
};

/// `ids` has one entry a rank, [T, K].
Traffic traffic_of(const BenchShape& shape, const std::vector<std::vector<std::int32_t>>& ids);

/// The same for an iteration, ids by the shape's routing.
Traffic traffic_of(const BenchShape& shape, std::int64_t iteration);

/// The most bytes that leave one rank.
std::int64_t busiest_egress(const Flow& flow, int num_ranks);
/// The most bytes that one rank sends or receives: what the slowest link carries one way.
std::int64_t busiest_link(const Flow& flow, int num_ranks);
/// The most bytes that one rank must write.
std::int64_t busiest_writer(const Flow& flow);

}  // namespace switchyard::measure
