// SPDX-License-Identifier: Apache-2.0
//
// floor.h: the least time that a machine could take, out of constants measured on it: a start, and
// bytes at the rate of transfers of that size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/bench_shape.h"
#include "measure/traffic.h"

namespace switchyard::measure {

/// A measured transfer, all ranks at once.
struct RatePoint {
  double bytes = 0;  ///< of each rank
  double gb_per_second = 0;
};

/// For the report.
struct Constant {
  std::string name;  ///< "hop", "copy of 1 MiB"
  double value = 0;
  std::string unit;  ///< "us", "GB/s"
};

/// Which bytes a floor is made of.
enum class FloorBytes : std::uint8_t {
  kWritten,  ///< ranks that share memory: what must be written
  kWire,     ///< ranks with links: what the busiest rank sends or receives
};

struct FloorModel {
  FloorBytes bytes = FloorBytes::kWritten;
  double start_us = 0;          ///< of one dispatch or combine, however small
  std::vector<RatePoint> rate;  ///< by bytes, ascending; at least one
  std::vector<Constant> constants;
};

/// GB/s at this size: linear between points over the logarithm of bytes, constant outside.
double rate_at(const FloorModel& floor, double bytes);

/// start_us + bytes / rate.
double transfer_us(const FloorModel& floor, double bytes);

/// Of one iteration: a pair is a dispatch and a combine; a layer likewise, its experts not counted;
/// times num_layers.
double floor_us(const FloorModel& floor, const BenchShape& shape, const Traffic& traffic);

/// Bytes that leave the busiest rank in one iteration.
std::int64_t wire_bytes(const BenchShape& shape, const Traffic& traffic);

}  // namespace switchyard::measure
