// SPDX-License-Identifier: Apache-2.0
//
// bench_report.h: the results of `bench` as text and as JSON (docs/bench.md has the schema).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "balance.h"
#include "bench.h"
#include "bench_baseline.h"
#include "measure/bench_target.h"

namespace switchyard::cli {

/// What a dispatch, or a combine, sends to other hosts.
struct HostCall {
  double bytes_per_token = 0;  ///< of all ranks
  std::int64_t bytes = 0;      ///< of the rank that sends most, in one call
};

/// The result for one shape. When `left_out` is set, only `shape` is valid beside it.
struct BenchRow {
  measure::BenchShape shape;
  std::string left_out;  ///< the reason; empty: the shape was measured
  double p50_us = 0;     ///< slowest rank of each iteration, like all times here
  double p99_us = 0;
  double min_us = 0;
  // Medians of ShapeResult's; 0: not asked for.
  double apart_us = 0;
  double cold_us = 0;
  double skewed_us = 0;
  std::vector<measure::StageTimes> stages;  ///< of rank 0
  std::int64_t wire_bytes = 0;  ///< bytes that leave the busiest rank per iteration; median
  double inside_us = 0;        ///< the floor of what ranks share memory for; median over iterations
  double host_us = 0;          ///< messages between GPUs of several hosts alone; 0: none
  double floor_us = 0;         ///< the longer of the two
  std::int64_t num_wrong = 0;  ///< wrong elements, summed over ranks
  std::string method;
  std::optional<Balance> balance;         ///< of the routing's load; between several ranks
  double host_crossings = 0;              ///< rows from host to host per token
  double host_bytes = 0;                  ///< the bytes that crossed, per token
  std::optional<HostCall> host_dispatch;  ///< counted apart from one another between GPUs
  std::optional<HostCall> host_combine;
  std::optional<BaselineRow> baseline;  ///< the fastest row of the baseline

  double of_floor() const { return p50_us > 0 ? floor_us / p50_us : 0; }
  double wire_gb_per_second() const {
    return p50_us > 0 ? static_cast<double>(wire_bytes) * 1e-3 / p50_us : 0;
  }
};

struct BudgetFloor {
  int num_sms = 0;
  measure::FloorModel model;
};

/// Filled in on rank 0 only.
struct BenchReport {
  BenchOptions options;
  std::string engine;
  std::string date;  ///< UTC, for example 2026-11-21
  int num_ranks = 1;
  int num_hosts = 1;               ///< between which rows are counted
  bool has_several_hosts = false;  ///< the ranks are on them: bytes are counted too
  measure::Workload workload;
  std::vector<std::pair<std::string, std::string>> machine;
  std::vector<BudgetFloor> floors;
  std::optional<Baseline> baseline;
  std::vector<BenchRow> rows;

  bool is_empty() const;  ///< nothing was measured
  bool is_ok() const;
  bool has_budgets() const;  ///< true when an SM budget was requested
  /// Messages between GPUs are counted by call and timed alone.
  bool has_host_calls() const { return has_several_hosts && options.device == "cuda"; }
};

/// The constants of a floor on one line, the fastest way over the wire first.
std::string floor_text(const measure::FloorModel& floor);

/// What travels, such as "fp8_block given as codes, fp8_block returned".
std::string formats_text(const BenchOptions& options);

/// Returns everything known before the first row; ends with the table's header.
std::string header_text(const BenchReport& report);
std::string row_text(const BenchReport& report, const BenchRow& row);
/// Returns the table of a row's stages; empty without any.
std::string stages_text(const BenchRow& row);
/// Returns what follows the last row; may be empty.
std::string footer_text(const BenchReport& report);

std::string to_json(const BenchReport& report);

}  // namespace switchyard::cli
