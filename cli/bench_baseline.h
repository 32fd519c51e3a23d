// SPDX-License-Identifier: Apache-2.0
//
// bench_baseline.h: what other implementations need for the same work: a file of measured numbers
// (docs/bench.md describes the format), or an MPI_Alltoallv of the same bytes that bench measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "measure/bench_shape.h"

namespace switchyard::cli {

struct BaselineRow {
  std::string name;  ///< for example "DeepEP V1 low latency"
  std::string mode;  ///< for example "CUDA graph, 24 SMs"; may be empty
  measure::Operation operation = measure::Operation::kPair;
  std::int64_t num_tokens = 0;  ///< per rank
  double us = 0;
};

struct Baseline {
  std::string machine;
  std::string source;
  std::int64_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  int num_ranks = 0;
  std::vector<BaselineRow> rows;
};

/// Errors: kSystem (cannot open), kMalformedFile with file, key and value.
Baseline read_baseline(const std::string& path);
Baseline parse_baseline(const std::string& text, const std::string& file);
std::string to_json(const Baseline& baseline);

/// True when the baseline has the sizes and the number of ranks of `shape`.
bool is_comparable(const Baseline& baseline, const measure::BenchShape& shape);

/// The SMs that a row's name or mode names, as in "24 SMs"; 0: none.
int sms_of(const BaselineRow& row);

/// Whether `row` has the shape's operation and number of tokens and, where the shape has a budget
/// of SMs, names at most as many.
bool is_match(const BaselineRow& row, const measure::BenchShape& shape);

/// Returns the fastest row that matches the shape, its time multiplied by the shape's number of
/// layers; nothing when there is no such row or the sizes differ.
std::optional<BaselineRow> best_of(const Baseline& baseline, const measure::BenchShape& shape);

/// Starts mpirun once per shape. The bytes are those of traffic_of for the timed iterations;
/// nothing is quantized, placed or summed. Errors: kNotAvailable: no mpirun, or its program is not
/// beside this one; kSystem: the job failed or exceeded its time limit.
Baseline measure_mpi(const std::vector<measure::BenchShape>& shapes);

}  // namespace switchyard::cli
