// SPDX-License-Identifier: Apache-2.0
//
// floor.h: the shortest time that this machine allows, computed from measured constants: a start
// time, and bytes at the rate of transfers of that size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/bench_shape.h"
#include "measure/traffic.h"

namespace switchyard::measure {

/// A measured transfer; all ranks run it at once.
struct RatePoint {
  double bytes = 0;  ///< per rank
  double gb_per_second = 0;
};

/// What one way of carrying bytes to all peers at once reached.
struct WireRate {
  std::string by;  ///< for example "bulk copies"
  int num_ctas = 0;
  double gb_per_second = 0;  ///< that leave a rank, or arrive at it
};

/// A measured constant, for the report.
struct Constant {
  std::string name;  ///< for example "hop" or "copy of 1 MiB"
  double value = 0;
  std::string unit;  ///< "us" or "GB/s"
};

/// Which bytes determine a floor.
enum class FloorBytes : std::uint8_t {
  kCopied,  ///< ranks that share memory: half of what must be read and written
  kWire,    ///< ranks with links: what the busiest rank sends or receives
};

struct FloorModel {
  FloorBytes bytes = FloorBytes::kCopied;
  double start_us = 0;          ///< per dispatch or combine, however small
  double saved_us = 0;          ///< of start_us, by programmatic launch
  std::vector<RatePoint> rate;  ///< ascending by bytes; at least one point
  std::vector<WireRate> wire;   ///< all that was tried, way by way, ascending by CTAs
  std::vector<Constant> constants;
};

/// Returns the fastest, of equals the first; null: none was measured.
const WireRate* best_of(const std::vector<WireRate>& wire);
/// The fastest of each way, in the order in which they were tried.
std::vector<WireRate> best_of_each(const std::vector<WireRate>& wire);

/// Returns GB/s at this size, interpolated linearly over the logarithm of bytes and constant
/// outside the measured range.
double rate_at(const FloorModel& floor, double bytes);

/// Returns start_us + bytes / rate.
double transfer_us(const FloorModel& floor, double bytes);

/// Returns the floor of one iteration. A pair is a dispatch and a combine; so is a layer, whose
/// experts are not counted. Launches are programmatic if the shape's are. Multiplied by num_layers.
double floor_us(const FloorModel& floor, const BenchShape& shape, const Traffic& traffic);

/// Returns the bytes that leave the busiest rank in one iteration.
std::int64_t wire_bytes(const BenchShape& shape, const Traffic& traffic);

}  // namespace switchyard::measure
