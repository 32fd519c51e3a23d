// SPDX-License-Identifier: Apache-2.0
//
// bench.h: `switchyard bench` times dispatch and combine against the machine's limits and against
// other implementations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/bench_shape.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

struct BenchOptions {
  std::string device = "cpu";
  int ranks = 0;       ///< 0: the launcher's count, else 2
  std::string engine;  ///< empty: the setting SWITCHYARD_ENGINE
  std::string workload = "deepseek-v3";
  std::string tokens = "1,8,32,128";  ///< per rank
  std::int64_t max_tokens = 0;        ///< upper bound on tokens per rank; 0: as many as each has
  std::string op = "pair";
  std::string layout = "expanded";
  std::string scheme = "fp8_block";
  std::string scales = "row_major";  ///< layout of received scales
  std::string returned = "none";     ///< scheme of rows on the way back
  bool codes = false;                ///< tokens are quantized before they are dispatched
  std::string reduce = "per_rank";
  std::string experts = "exact";  ///< of --op layer
  int micro_batches = 1;          ///< of --op layer
  int shared_experts = 0;         ///< of --op layer
  int layers = 1;
  bool graph = false;
  bool pdl = true;  ///< cuda: programmatic dependent launch
  std::string sms;  ///< empty: chosen by heuristics
  bool cold_code = false;
  bool skew = false;
  bool stages = false;
  std::string routing = "uniform";
  int hosts = 1;                   ///< on which rows between hosts are counted
  bool exact_messages = false;     ///< cuda, several hosts: as in ExchangeOptions
  std::int64_t host_capacity = 0;  ///< likewise
  std::int64_t runs = 51;
  std::uint64_t seed = 1;
  std::int64_t timeout_ms = 0;
  std::string baseline;       ///< "nccl", "mpi" or a file
  std::string baseline_file;  ///< hidden option: passes the measured times of `mpi` to the ranks
  std::string json;
  std::string html;
};

/// Declares the verb and its options.
CLI::App* add_bench(CLI::App& app, BenchOptions& options);

/// Returns the exit code: 0, or 1 when any element is wrong.
int bench(const CLI::App& verb, const BenchOptions& options, char** argv);

/// Returns the shapes that the options ask for, ordered by SM budget, then by tokens.
/// Errors: kInvalidArgument, kNotSupported: lists, names or fields that do not go together.
std::vector<measure::BenchShape> bench_shapes(const BenchOptions& options, int num_ranks);

}  // namespace switchyard::cli
