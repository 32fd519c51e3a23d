// SPDX-License-Identifier: Apache-2.0
//
// bench_baseline.h: what others need for the same: a file of measured numbers (docs/bench.md has
// the format), or MPI_Alltoallv of the same bytes, measured now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "measure/bench_shape.h"

namespace switchyard::cli {

struct BaselineRow {
  std::string name;  ///< "DeepEP V1 low latency"
  std::string mode;  ///< "CUDA graph"; may be empty
  measure::Operation operation = measure::Operation::kPair;
  std::int64_t num_tokens = 0;  ///< of each rank
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

/// Errors: kSystem (open), kMalformedFile with file, key and value.
Baseline read_baseline(const std::string& path);
Baseline parse_baseline(const std::string& text, const std::string& file);
std::string to_json(const Baseline& baseline);

/// True when its numbers are of the same sizes and number of ranks.
bool is_comparable(const Baseline& baseline, const measure::BenchShape& shape);

/// The fastest of its rows for this operation and number of tokens, times the layers of the shape;
/// nothing when there is none or the sizes are others.
std::optional<BaselineRow> best_of(const Baseline& baseline, const measure::BenchShape& shape);

/// Starts mpirun for each shape. The bytes are those of traffic_of for the timed iterations;
/// nothing is quantized, placed or summed. Errors: kNotAvailable: no mpirun, or no program for it
/// beside this one; kSystem: it failed or took longer than its limit.
Baseline measure_mpi(const std::vector<measure::BenchShape>& shapes);

}  // namespace switchyard::cli
