// SPDX-License-Identifier: Apache-2.0
//
// Where ranks share memory. Dispatch: a token is read once; if other ranks need it, it is written
// once, where they read it; each of them reads it once; an arriving row is written to each of its
// places. Combine: each result row is read once; what returns is written once on its way and read
// once by the token's rank, which writes the output.

#include "measure/traffic.h"

#include <algorithm>

#include "plan/expert_ownership.h"
#include "quant/scheme.h"

namespace switchyard::measure {
namespace {

constexpr std::int64_t kRoutingBytes = 8;  // a 32-bit id and a 32-bit weight

std::size_t index(int row, int columns, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
         static_cast<std::size_t>(column);
}

// A row with its scales.
std::int64_t stored_bytes(const QuantScheme& scheme, std::int64_t hidden) {
  return static_cast<std::int64_t>(
      row_bytes(scheme, hidden) +
      (num_scales(scheme, hidden) == 0 ? 0 : scale_row_bytes(scheme, hidden)));
}

// Counts how many choices of one token each rank holds.
class TokenRanks {
 public:
  TokenRanks(const BenchShape& shape)
      : ownership_{shape.workload.num_experts, shape.num_ranks},
        num_topk_(shape.workload.num_topk),
        counts_(static_cast<std::size_t>(shape.num_ranks)) {}

  const std::vector<std::int32_t>& count(const std::int32_t* ids) {
    std::fill(counts_.begin(), counts_.end(), 0);
    for (std::int32_t k = 0; k < num_topk_; ++k) {
      if (ids[k] >= 0) ++counts_[static_cast<std::size_t>(ownership_.owner(ids[k]))];
    }
    return counts_;
  }

 private:
  ExpertOwnership ownership_;
  std::int32_t num_topk_;
  std::vector<std::int32_t> counts_;
};

}  // namespace

Traffic traffic_of(const BenchShape& shape, const std::vector<std::vector<std::int32_t>>& ids) {
  const int num_ranks = shape.num_ranks;
  const std::int64_t hidden = shape.workload.hidden;
  const std::int64_t row = stored_bytes(shape.scheme, hidden);
  const std::int64_t wire_row = row + kRoutingBytes * shape.workload.num_topk;
  const std::int64_t token_row = shape.gives_codes ? row : 2 * hidden;
  const std::int64_t back_row = stored_bytes(shape.returned, hidden);
  const std::int64_t result_row = 2 * hidden;
  Traffic traffic;
  traffic.num_ranks = num_ranks;
  for (Flow* flow : {&traffic.dispatch, &traffic.combine}) {
    flow->wire.assign(index(num_ranks, num_ranks, 0), 0);
    flow->read.assign(static_cast<std::size_t>(num_ranks), 0);
    flow->written.assign(static_cast<std::size_t>(num_ranks), 0);
    flow->kept.assign(static_cast<std::size_t>(num_ranks), 0);
  }
  TokenRanks token(shape);
  for (int from = 0; from < num_ranks; ++from) {
    const std::vector<std::int32_t>& own = ids[static_cast<std::size_t>(from)];
    const auto home = static_cast<std::size_t>(from);
    for (std::size_t at = 0; at < own.size();
         at += static_cast<std::size_t>(shape.workload.num_topk)) {
      const std::vector<std::int32_t>& counts = token.count(own.data() + at);
      bool leaves = false;
      bool is_routed = false;
      for (int to = 0; to < num_ranks; ++to) {
        const auto there = static_cast<std::size_t>(to);
        if (counts[there] == 0) continue;
        const std::int64_t rows = is_expert_major(shape.layout) ? counts[there] : 1;
        is_routed = true;
        traffic.dispatch.written[there] += rows * row;
        traffic.dispatch.kept[there] += rows * row;
        traffic.combine.read[there] += rows * result_row;
        if (to == from) continue;
        leaves = true;
        traffic.dispatch.read[there] += row;
        const std::int64_t returned = shape.reduce != Reduce::kPerExpert ? 1 : counts[there];
        traffic.dispatch.wire[index(from, num_ranks, to)] += wire_row;
        traffic.combine.wire[index(to, num_ranks, from)] += returned * back_row;
        traffic.combine.written[there] += returned * back_row;
        traffic.combine.read[home] += returned * back_row;
      }
      if (is_routed) traffic.dispatch.read[home] += token_row;
      if (leaves) traffic.dispatch.written[home] += row;
      traffic.combine.written[home] += result_row;
      traffic.combine.kept[home] += result_row;
    }
  }
  return traffic;
}

Traffic traffic_of(const BenchShape& shape, std::int64_t iteration) {
  std::vector<std::vector<std::int32_t>> ids;
  for (int r = 0; r < shape.num_ranks; ++r) {
    ids.push_back(shape.routing.ids(shape.seed, iteration, r, shape.num_ranks, shape.num_tokens));
  }
  return traffic_of(shape, ids);
}

Traffic inside_hosts(const Traffic& traffic, const HostMap& map) {
  const int num_ranks = traffic.num_ranks;
  Traffic inside;
  inside.num_ranks = num_ranks;
  inside.dispatch.wire.assign(traffic.dispatch.wire.size(), 0);
  inside.combine.wire.assign(traffic.combine.wire.size(), 0);
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      const bool is_one_host = map.host_of(from) == map.host_of(to);
      const int forwarder = is_one_host ? from : map.forwarder(from, map.host_of(to));
      if (forwarder == to) continue;
      inside.dispatch.wire[index(forwarder, num_ranks, to)] +=
          traffic.dispatch.wire[index(from, num_ranks, to)];
      inside.combine.wire[index(to, num_ranks, forwarder)] +=
          traffic.combine.wire[index(to, num_ranks, from)];
    }
  }
  return inside;
}

std::int64_t busiest_egress(const Flow& flow, int num_ranks) {
  std::int64_t most = 0;
  for (int from = 0; from < num_ranks; ++from) {
    std::int64_t sum = 0;
    for (int to = 0; to < num_ranks; ++to) sum += flow.wire[index(from, num_ranks, to)];
    most = std::max(most, sum);
  }
  return most;
}

std::int64_t busiest_link(const Flow& flow, int num_ranks) {
  std::int64_t most = busiest_egress(flow, num_ranks);
  for (int to = 0; to < num_ranks; ++to) {
    std::int64_t sum = 0;
    for (int from = 0; from < num_ranks; ++from) sum += flow.wire[index(from, num_ranks, to)];
    most = std::max(most, sum);
  }
  return most;
}

std::int64_t busiest_copy(const Flow& flow) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r < flow.written.size(); ++r) {
    most = std::max(most, (flow.read[r] + flow.written[r]) / 2);
  }
  return most;
}

}  // namespace switchyard::measure
