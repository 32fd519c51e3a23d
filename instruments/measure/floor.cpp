// SPDX-License-Identifier: Apache-2.0

#include "measure/floor.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"

namespace switchyard::measure {
namespace {

bool has_dispatch(const BenchShape& shape) { return shape.operation != Operation::kCombine; }
bool has_combine(const BenchShape& shape) { return shape.operation != Operation::kDispatch; }

double flow_us(const FloorModel& floor, const BenchShape& shape, const Flow& flow, int num_ranks) {
  const std::int64_t bytes =
      floor.bytes == FloorBytes::kCopied ? busiest_copy(flow) : busiest_link(flow, num_ranks);
  const double saved_us = shape.is_programmatic ? floor.saved_us : 0;
  return transfer_us(floor, static_cast<double>(bytes)) - saved_us;
}

}  // namespace

const WireRate* best_of(const std::vector<WireRate>& wire) {
  const WireRate* best = nullptr;
  for (const WireRate& one : wire) {
    if (best == nullptr || one.gb_per_second > best->gb_per_second) best = &one;
  }
  return best;
}

std::vector<WireRate> best_of_each(const std::vector<WireRate>& wire) {
  std::vector<WireRate> best;
  for (const WireRate& one : wire) {
    const auto same = std::find_if(best.begin(), best.end(),
                                   [&](const WireRate& other) { return other.by == one.by; });
    if (same == best.end()) {
      best.push_back(one);
    } else if (one.gb_per_second > same->gb_per_second) {
      *same = one;
    }
  }
  return best;
}

double rate_at(const FloorModel& floor, double bytes) {
  const std::vector<RatePoint>& points = floor.rate;
  require(!points.empty(), Errc::kInternal,
          "rate_at: no measured rate, there must be at least one");
  if (bytes <= points.front().bytes) return points.front().gb_per_second;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (bytes > points[i].bytes) continue;
    const double share =
        std::log(bytes / points[i - 1].bytes) / std::log(points[i].bytes / points[i - 1].bytes);
    return points[i - 1].gb_per_second +
           share * (points[i].gb_per_second - points[i - 1].gb_per_second);
  }
  return points.back().gb_per_second;
}

double transfer_us(const FloorModel& floor, double bytes) {
  return floor.start_us + (bytes <= 0 ? 0 : bytes * 1e-3 / rate_at(floor, bytes));
}

double floor_us(const FloorModel& floor, const BenchShape& shape, const Traffic& traffic) {
  double us = 0;
  if (has_dispatch(shape)) us += flow_us(floor, shape, traffic.dispatch, traffic.num_ranks);
  if (has_combine(shape)) us += flow_us(floor, shape, traffic.combine, traffic.num_ranks);
  return us * shape.num_layers;
}

std::int64_t wire_bytes(const BenchShape& shape, const Traffic& traffic) {
  std::int64_t bytes = 0;
  if (has_dispatch(shape)) bytes += busiest_egress(traffic.dispatch, traffic.num_ranks);
  if (has_combine(shape)) bytes += busiest_egress(traffic.combine, traffic.num_ranks);
  return bytes * shape.num_layers;
}

}  // namespace switchyard::measure
