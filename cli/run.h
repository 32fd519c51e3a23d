// SPDX-License-Identifier: Apache-2.0
//
// run.h: `switchyard run`, one MoE layer over N ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace switchyard::cli {

struct RunOptions {
  std::string model;
  int layer = -1;
  std::string input;
  int hosts = 1;                   ///< on which rows between hosts are counted
  bool exact_messages = false;     ///< cuda, several hosts: as in ExchangeOptions
  std::int64_t host_capacity = 0;  ///< likewise
  int ranks = 0;                   ///< 0: the launcher's count, else 1
  std::string engine;              ///< empty: the setting SWITCHYARD_ENGINE
  std::string device = "cpu";
  std::string prepare = "low_latency";
  std::string scheme = "none";
  std::string reduce;  ///< empty: the default of the prepare class
  std::string experts = "exact";
  std::string global_scale;        ///< nvfp4: auto or a number; empty: auto
  std::string static_scale;        ///< per-tensor schemes: auto or a number; empty: dynamic
  std::string intermediate_scale;  ///< a number; empty: see run_config.h
  std::int64_t alignment = 1;
  std::string split = "even";
  std::optional<std::int64_t> tokens;  ///< absent: all of the input, or 1024 random tokens
  std::uint64_t seed = 1;
  std::int64_t repeat = 1;
  int micro_batches = 1;
  std::int64_t timeout_ms = 0;
  std::string dump;
  std::string output;
  std::string json;  ///< a file, or "-" for stdout; empty: text
};

/// Declares the verb and its options.
CLI::App* add_run(CLI::App& app, RunOptions& options);

/// Returns the exit code: 0, or 1 when the result is wrong. Ranks
/// that are processes are started with `argv`.
int run(const CLI::App& verb, const RunOptions& options, char** argv);

}  // namespace switchyard::cli
