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

/// A measured constant, for the report.
struct Constant {
  std::string name;  ///< for example "hop" or "copy of 1 MiB"
  double value = 0;
  std::string unit;  ///< "us" or "GB/s"
};

/// Which bytes determine a floor.
enum class FloorBytes : std::uint8_t {
  kWritten,  ///< ranks that share memory: what must be written
  kWire,     ///< ranks with links: what the busiest rank sends or receives
};

struct FloorModel {
  FloorBytes bytes = FloorBytes::kWritten;
  double start_us = 0;          ///< per dispatch or combine, however small
  std::vector<RatePoint> rate;  ///< ascending by bytes; at least one point
  std::vector<Constant> constants;
};

/// Returns GB/s at this size, interpolated linearly over the logarithm of bytes and constant
/// outside the measured range.
double rate_at(const FloorModel& floor, double bytes);

/// Returns start_us + bytes / rate.
double transfer_us(const FloorModel& floor, double bytes);

/// Returns the floor of one iteration. A pair is a dispatch and a combine; so is a layer, whose
/// experts are not counted. Multiplied by num_layers.
double floor_us(const FloorModel& floor, const BenchShape& shape, const Traffic& traffic);

/// Returns the bytes that leave the busiest rank in one iteration.
std::int64_t wire_bytes(const BenchShape& shape, const Traffic& traffic);

}  // namespace switchyard::measure
