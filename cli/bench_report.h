// SPDX-License-Identifier: Apache-2.0
//
// bench_report.h: what `bench` found out, as text and as JSON (docs/bench.md has the schema).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench.h"
#include "bench_baseline.h"
#include "measure/bench_target.h"

namespace switchyard::cli {

/// One shape. Where it was left out, only shape and left_out count.
struct BenchRow {
  measure::BenchShape shape;
  std::string left_out;  ///< why; empty: it was measured
  double p50_us = 0;     ///< of the slowest rank of each iteration, as all times here
  double p99_us = 0;
  double min_us = 0;
  std::int64_t wire_bytes = 0;  ///< leave the busiest rank in an iteration; median
  double floor_us = 0;          ///< median
  std::int64_t num_wrong = 0;   ///< elements, of all ranks
  std::string method;
  std::optional<BaselineRow> baseline;  ///< the fastest

  double of_floor() const { return p50_us > 0 ? floor_us / p50_us : 0; }
  double wire_gb_per_second() const {
    return p50_us > 0 ? static_cast<double>(wire_bytes) * 1e-3 / p50_us : 0;
  }
};

struct BudgetFloor {
  int num_sms = 0;
  measure::FloorModel model;
};

/// Filled on rank 0.
struct BenchReport {
  BenchOptions options;
  std::string engine;
  std::string date;  ///< UTC, 2026-11-21
  int num_ranks = 1;
  measure::Workload workload;
  std::vector<std::pair<std::string, std::string>> machine;
  std::vector<BudgetFloor> floors;
  std::optional<Baseline> baseline;
  std::vector<BenchRow> rows;

  bool is_ok() const;
  bool has_budgets() const;  ///< an SM budget was asked for
};

/// All that is known before the first row; ends with the table's head.
std::string header_text(const BenchReport& report);
std::string row_text(const BenchReport& report, const BenchRow& row);
/// What is to be said after the last row; may be empty.
std::string footer_text(const BenchReport& report);

std::string to_json(const BenchReport& report);

}  // namespace switchyard::cli
