// SPDX-License-Identifier: Apache-2.0
//
// plan.h: `switchyard plan` predicts what an exchange costs on machines that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forecast/forecast.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

struct PlanOptions {
  std::string workload = "deepseek-v3";
  std::int64_t tokens = 128;
  int ranks_per_host = 8;
  std::string hosts = "1,2,4,...,256";
  std::string constants;  ///< empty: h200, or for --measured what a file names
  // Absent: those of the constants.
  std::optional<double> nvlink;  ///< GB/s
  std::optional<double> nic;     ///< GB/s
  std::optional<double> tflops;
  std::optional<double> memory_bandwidth;  ///< GB/s
  int weight_bits = 8;
  int sms = 0;
  std::string scheme = "fp8_block";
  std::string routing = "uniform";
  int redundant = -1;
  bool balanced = false;
  int micro_batches = 1;
  double max_memory = 0;  ///< GB of the exchange; 0: any
  std::uint64_t seed = 1;
  std::vector<std::string> measured;
  bool fixed_roles = false;
  std::string json;
  std::string html;
};

/// Declares the verb and its options.
CLI::App* add_plan(CLI::App& app, PlanOptions& options);

/// Returns the exit code.
int plan(const CLI::App& verb, const PlanOptions& options);

/// The constants, with the rates that options give. Errors: kInvalidArgument, kMalformedFile,
/// kNotSupported, kSystem.
forecast::Machine plan_machine(const PlanOptions& options, const std::string& by_default);
/// Errors: kInvalidArgument.
forecast::ExpertCosts plan_experts(const PlanOptions& options, const forecast::Machine& machine);

/// What the options ask, without the number of hosts. Errors: kInvalidArgument, kMalformedFile,
/// kNotSupported, kSystem.
forecast::Question plan_question(const PlanOptions& options);

/// "1,2,4,...,256": numbers that ascend; dots continue at the ratio of the two before them.
/// Errors: kInvalidArgument.
std::vector<int> parse_hosts(const std::string& text, int ranks_per_host);

}  // namespace switchyard::cli
