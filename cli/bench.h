// SPDX-License-Identifier: Apache-2.0
//
// bench.h: `switchyard bench`, time against what the machine allows and against others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "measure/bench_shape.h"

namespace switchyard::cli {

struct BenchOptions {
  std::string device = "cpu";
  int ranks = 0;       ///< 0: the launcher's, else 2
  std::string engine;  ///< empty: the setting SWITCHYARD_ENGINE
  std::string workload = "deepseek-v3";
  std::string tokens = "1,8,32,128";  ///< of each rank
  std::int64_t max_tokens = 0;        ///< that a rank may have; 0: as many as it has
  std::string op = "pair";
  std::string layout = "expanded";
  std::string scheme = "fp8_block";
  std::string reduce = "per_rank";
  int layers = 1;
  bool graph = false;
  bool pdl = false;  ///< programmatic dependent launch
  std::string sms;   ///< empty: by heuristics
  std::string routing = "uniform";
  std::int64_t runs = 51;
  std::uint64_t seed = 1;
  std::int64_t timeout_ms = 0;
  std::string baseline;       ///< nccl, mpi or a file
  std::string baseline_file;  ///< hidden: what `mpi` was measured to take, for the ranks
  std::string json;
  std::string html;
};

/// Declares the verb and its options.
CLI::App* add_bench(CLI::App& app, BenchOptions& options);

/// Returns the exit code: 0, or 1 when an element was wrong.
int bench(const BenchOptions& options, char** argv);

/// The lines that the options ask for, by SM budget, then tokens.
/// Errors: kInvalidArgument, kNotSupported: lists, names and fields that do not go together.
std::vector<measure::BenchShape> bench_shapes(const BenchOptions& options, int num_ranks);

}  // namespace switchyard::cli
